"""The offload agent's loop: hears the scheduler and the executor, steps the core once per turn, does what it says."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import Callable, Sequence
from typing import assert_never

from scaler.errors import LimitError, ProtocolError, RefusedError
from scaler.logs import about, escaped
from scaler.net.connection import Broken, ConnectionRefused, Connector, ConnectorEvent, Received, Resumed, Welcomed
from scaler.object_storage.client import StorageClient
from scaler.processes import Load, LoadMeter
from scaler.protocol.codec import split
from scaler.protocol.messages import (
    Done,
    Drain,
    ForgetFunctions,
    HeartbeatEcho,
    Message,
    Outcome,
    Recall,
    Relay,
    RelayClosed,
    Returned,
    Run,
    Shutdown,
    WorkerHeartbeat,
)
from scaler.serialization import Buffer
from scaler.worker import executor as executors
from scaler.worker.agent.lifetime import Lifetime
from scaler.worker.agent.shell import MAX_OUTPUT_BACKLOG_BYTES
from scaler.worker.attempts import Attempt
from scaler.worker.call import CallResult, unpack_result
from scaler.worker.processor.calling import failure_of
from scaler.worker_manager.offload import hands
from scaler.worker_manager.offload.config import OffloadConfig
from scaler.worker_manager.offload.core import HandOn, OffloadCore, Settings, Withdraw
from scaler.worker_manager.offload.objects import Objects
from scaler.worker_manager.offload.telling import output_of, statuses_of
from scaler.worker_manager.offload.transfers import Transfers

MAX_STATUSES = 100
"""Running tasks that a heartbeat tells of."""

_log = logging.getLogger(__name__)

OnEvents = Callable[[list[ConnectorEvent]], None]


class OffloadAgent:
    """One worker. Belongs to the running loop; `ended` completes with the exit code, or with the error that ends it.

    connect: makes the connector to the scheduler, given what it calls with the events of a turn; it is called when the
    executor has started. connect_storage: makes the client of the object storage at an address. show_trouble: is told
    what keeps tasks from running, and "" when nothing does any more.
    """

    def __init__(
        self,
        config: OffloadConfig,
        executor: executors.Executor,
        connect: Callable[[OnEvents], Connector],
        connect_storage: Callable[[str], StorageClient],
        show_trouble: Callable[[str], None],
    ) -> None:
        self._config = config
        self._connect = connect
        self._show_trouble = show_trouble
        self._loop = asyncio.get_running_loop()
        self.life = Lifetime(config.scheduler_address)
        self._objects = Objects(connect_storage)
        self._hands = hands.Hands(executor, self._on_news)
        self._transfers = Transfers(self._objects, self._hands.run, self._on_end, config.preload or "")
        self._meter = LoadMeter()
        self._latency_seconds = 0.0
        self._heartbeat_seconds = config.heartbeat_interval_seconds
        self._trouble = ""
        self._is_settling = False
        self._is_closed = False
        now = time.monotonic()
        self._core = OffloadCore(
            Settings(
                slots=config.slots,
                queue_size=config.per_worker_task_queue_size,
                task_timeout_seconds=config.task_timeout_seconds,
                death_timeout_seconds=config.death_timeout_seconds,
            ),
            now,
        )
        self._connector: Connector | None = None
        self._wake = self._loop.call_later(0, self._tick)
        self._wake_at = now
        self._beat = self._loop.call_later(config.heartbeat_interval_seconds, self._heartbeat)

    def stop(self) -> None:
        """Take no more work, give running tasks a short grace, and end."""
        self._core.stop("the worker was told to end", self._config.stop_grace_seconds, time.monotonic())
        self._settle()

    async def close(self) -> None:
        """End what is left elsewhere, let the scheduler have the last results, and say goodbye."""
        self._is_closed = True
        self._wake.cancel()
        await self._hands.close()
        self._beat.cancel()
        await self._transfers.close()
        if self._connector is None:
            return
        await self.life.say_goodbye(self._connector)

    # -- the scheduler

    def _on_events(self, events: list[ConnectorEvent]) -> None:
        if self._is_closed:
            return
        now = time.monotonic()
        core = self._core
        for event in events:
            match event:
                case Received(_, message):
                    core.heard(now)
                    self._hear(message, now)
                case Welcomed(welcome):
                    self._objects.move(self._config.object_storage_address or welcome.object_storage_address)
                    core.welcomed(welcome, now)
                    self._beat_within(welcome.heartbeat_seconds)
                    self.life.welcomed.set()
                case Resumed():
                    core.heard(now)
                case Broken():
                    _log.info("the connection to the scheduler broke; connecting again")
                case ConnectionRefused(refused):
                    self.life.end(RefusedError(f"the scheduler refused this worker: {refused.text}"))
                case _:
                    assert_never(event)
        self._settle()

    def _hear(self, message: Message, now: float) -> None:
        core = self._core
        match message:
            case Run():
                core.run(message)
            case HeartbeatEcho(sent_at):
                self._latency_seconds = max(0.0, now - sent_at)
            case Recall():
                core.recall(message)
            case ForgetFunctions():
                core.undefine(message)
            case Drain(text):
                core.drain(text)
            case Shutdown(text):
                core.shutdown(text)
            case Relay(client, _):
                self._send(RelayClosed(client))  # no client lives inside these tasks
            case _:
                _log.warning("the scheduler sent a %s, which is nothing for a worker", type(message).__name__)

    def _send(self, message: Message, attachments: Sequence[Buffer] = ()) -> None:
        if self._connector is None:
            return
        try:
            self._connector.send(message, attachments)
        except LimitError as error:
            self.life.end(error)
        except RefusedError:
            return  # the news of it, which ends this agent and says why, comes in this turn or the next

    # -- the executor

    def _on_news(self, news: list[hands.News]) -> None:
        now = time.monotonic()
        for item in news:
            self._take_in(item, now)
        self._settle()

    def _take_in(self, news: hands.News, now: float) -> None:
        core = self._core
        match news:
            case executors.CallStarted(task, attempt):
                core.started((task, attempt), now)
            case executors.CallFinished(task, attempt, data):
                self._finished((task, attempt), data)
            case executors.CallFailed(task, attempt, outcome, text):
                core.failed((task, attempt), outcome, text, now, random.random())  # noqa: S311
            case executors.ExecutorDegraded(text):
                core.setbacks.executors_own = text
            case hands.Taken():
                core.taken()
            case hands.NotTaken(keys, text):
                core.not_taken(keys, text, now, random.random())  # noqa: S311
            case hands.Ready():
                if not self.life.ended.done():
                    self._connector = self._connect(self._on_events)
            case hands.Broken(error):
                self.life.end(error)
            case _:
                assert_never(news)

    def _finished(self, key: executors.CallKey, data: Buffer) -> None:
        item = self._core.arrived(key)
        if item is None:
            return
        try:
            result = unpack_result(data)
        except (ProtocolError, RefusedError) as error:
            self._core.done(item, *failure_of(error, lambda _: False, __file__))
            return
        for message in output_of(item, result):
            if self._connector is None or self._connector.outbox_bytes() >= MAX_OUTPUT_BACKLOG_BYTES:
                break
            self._send(message)
        self._transfers.deliver(item, result)

    def _on_end(self, item: Attempt, outcome: Outcome, payload: bytes, result: CallResult | None) -> None:
        if result is None:
            self._core.done(item, outcome, payload)
        else:
            self._core.done(item, outcome, payload, result.duration_us, result.cpu_us, result.peak_bytes)
        self._settle_soon()

    # -- the turn

    def _settle_soon(self) -> None:
        """Settle once for all that ends in this turn of the loop."""
        if not self._is_settling:
            self._is_settling = True
            self._loop.call_soon(self._settle)

    def _settle(self) -> None:
        self._is_settling = False
        core = self._core
        if self._is_closed or self.life.ended.done():
            return
        core.settle(time.monotonic())
        for command in core.take_commands():
            match command:
                case HandOn():
                    self._transfers.hand_on(command)
                case Withdraw(item):
                    if not self._transfers.withdraw(item):
                        self._hands.cancel((item.id, item.attempt))
                case _:
                    assert_never(command)
        self._say()
        if core.ending is not None:
            self.life.obey(core.ending)
        elif core.wake_at < self._wake_at - 0.001:
            self._wake.cancel()
            self._arm()

    def _say(self) -> None:
        core = self._core
        for message in core.outbox.take_messages():
            if isinstance(message, Done):
                for part in split(message):
                    self._send(part)
            elif isinstance(message, Returned):
                for piece in split(message):
                    self._send(piece)
            else:
                self._send(message)
        for note in core.outbox.take_notes():
            _log.log(note.level, "%s", escaped(note.text), extra=about(task=note.task.hex()))
        trouble = core.setbacks.text
        if trouble != self._trouble:
            self._trouble = trouble
            if trouble:
                _log.warning("%s", escaped(trouble))
            else:
                _log.info("tasks can run again")
            self._show_trouble(trouble)

    def _arm(self) -> None:
        self._wake_at = self._core.wake_at
        self._wake = self._loop.call_later(max(0.0, self._wake_at - time.monotonic()), self._tick)

    def _tick(self) -> None:
        self._core.tick(time.monotonic())
        self._arm()
        self._settle()

    def _beat_within(self, seconds: float) -> None:
        """Send heartbeats at least this often: the scheduler's lease may be short."""
        self._heartbeat_seconds = min(self._config.heartbeat_interval_seconds, seconds)
        self._beat.cancel()
        self._beat = self._loop.call_later(self._heartbeat_seconds, self._heartbeat)

    def _heartbeat(self) -> None:
        self._beat = self._loop.call_later(self._heartbeat_seconds, self._heartbeat)
        if self._connector is None or not self._connector.connected:
            return
        now = time.monotonic()
        own = self._meter.measure().get(os.getpid(), Load())
        self._send(
            WorkerHeartbeat(
                sent_at=now,
                agent_cpu_percent=own.cpu_percent,
                agent_rss_bytes=own.rss_bytes,
                queued=self._core.queued,
                latency_seconds=self._latency_seconds,
                processors=statuses_of(self._core.out()[:MAX_STATUSES], now),
            )
        )
