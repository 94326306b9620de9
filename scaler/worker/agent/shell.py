"""The agent's loop: hears the scheduler and the processors, steps the core once per turn, and does what it says."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import assert_never

from scaler.config.worker import WorkerConfig
from scaler.errors import LimitError, ProtocolError, RefusedError, ScalerError
from scaler.logs import about, escaped
from scaler.net.connection import Broken, ConnectionRefused, Connector, ConnectorEvent, Received, Resumed, Welcomed
from scaler.processes import Load, LoadMeter, describe_exit
from scaler.protocol.codec import split
from scaler.protocol.messages import (
    Done,
    Drain,
    ForgetFunctions,
    HeartbeatEcho,
    Message,
    Output,
    Printed,
    ProcessorStatus,
    Recall,
    Relay,
    RelayClosed,
    Returned,
    Run,
    Shutdown,
    WorkerHeartbeat,
)
from scaler.protocol.session import Buffer
from scaler.worker.agent.lifetime import Lifetime
from scaler.worker.agent.output import OutputPipes, PrintBuffer
from scaler.worker.agent.processors import Control, Nonsense, Processors, Said
from scaler.worker.agent.relays import Relays
from scaler.worker.core import AgentCore, Settings
from scaler.worker.fork_server import ForkServer, Spawned
from scaler.worker.frames import Results, ToAgent, unpack_channel, unpack_output, unpack_printed
from scaler.worker.pool import Standing

MAX_OUTPUT_BACKLOG_BYTES = 16 * 1024 * 1024
"""While more is on its way to the scheduler, what tasks print is dropped: results come first."""

_log = logging.getLogger(__name__)

OnEvents = Callable[[list[ConnectorEvent]], None]


class Agent:
    """One worker. Belongs to the running loop; `life` tells of its beginning and end."""

    def __init__(self, config: WorkerConfig, fork_server: ForkServer, connect: Callable[[OnEvents], Connector]) -> None:
        """connect: makes the connector to the scheduler, given what it calls with the events of a turn."""
        self._config = config
        self._fork_server = fork_server
        self._loop = asyncio.get_running_loop()
        self.life = Lifetime(config.scheduler_address)
        self._processors = Processors(fork_server, self._loop, self._on_processor)
        self._relays = Relays(self._loop, self._on_relay, self._on_relay_closed)
        self._outputs = OutputPipes(self._loop, self._on_output)
        self._prints = PrintBuffer(self._loop, self._say_printed)
        self._meter = LoadMeter()
        self._latency_seconds = 0.0
        self._heartbeat_seconds = config.heartbeat_interval_seconds
        self._is_settling = False
        self._is_closed = False
        now = time.monotonic()
        self._core = AgentCore(
            Settings(
                slots=config.slots,
                queue_size=config.per_worker_task_queue_size,
                task_timeout_seconds=config.task_timeout_seconds,
                death_timeout_seconds=config.death_timeout_seconds,
                hard_suspend=config.hard_processor_suspend,
            ),
            self._processors,
            now,
        )
        self._loop.add_reader(fork_server, self._on_fork_server)
        self._connector = connect(self._on_events)
        self._wake = self._loop.call_later(0, self._tick)
        self._wake_at = now
        self._beat = self._loop.call_later(config.heartbeat_interval_seconds, self._heartbeat)
        self._settle()

    def stop(self) -> None:
        """Take no more work, give running tasks a short grace, and end."""
        self._core.stop("the worker was told to end", self._config.stop_grace_seconds, time.monotonic())
        self._settle()

    async def close(self) -> None:
        """End all processors, let the scheduler have the last results, and say goodbye."""
        self._prints.close()
        self._is_closed = True
        self._wake.cancel()
        self._beat.cancel()
        self._loop.remove_reader(self._fork_server)
        self._processors.close()
        self._fork_server.close()
        self._relays.close_all()
        self._outputs.close()
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
                    self._relays.close_all()
                    address = self._config.object_storage_address or welcome.object_storage_address
                    core.welcomed(welcome, address, now)
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
                core.run(message, now)
            case HeartbeatEcho(sent_at):
                self._latency_seconds = max(0.0, now - sent_at)
            case Relay(client, body):
                self._relay(client, body, now)
            case Recall():
                core.recall(message, now)
            case ForgetFunctions():
                core.undefine(message)
            case Drain(text):
                core.drain(text)
            case Shutdown(text):
                core.shutdown(text)
            case _:
                _log.warning("the scheduler sent a %s, which is nothing for a worker", type(message).__name__)

    def _send(self, message: Message, attachments: Sequence[Buffer] = ()) -> None:
        try:
            self._connector.send(message, attachments)
        except LimitError as error:
            self.life.end(error)
        except RefusedError:
            return  # the news of it, which ends this agent and says why, comes in this turn or the next

    # -- processors

    def _on_fork_server(self) -> None:
        reports = self._fork_server.reports()
        now = time.monotonic()
        if reports is None:
            self.life.end(ScalerError("the process that makes processors is gone"))
            return
        for report in reports:
            if isinstance(report, Spawned):
                self._processors.spawned(report.number, report.pid, report.pidfd)
                continue
            for said in self._processors.read(report.number):
                self._take_in(report.number, said, now)
            how = describe_exit(report.returncode)
            words = self._processors.last_words(report.number)
            self._core.exited(report.number, f"{how}\n{words}" if words else how, now)
        self._settle()

    def _on_processor(self, number: int) -> None:
        now = time.monotonic()
        for said in self._processors.read(number):
            self._take_in(number, said, now)
        self._settle_soon()

    def _take_in(self, number: int, said: Said, now: float) -> None:
        match said:
            case Results():
                if self._outputs.is_open:
                    for row in said.rows:
                        self._outputs.drain(row[0])
                self._core.results(number, said, True, now)
            case Control(kind, datagram, descriptors):
                try:
                    self._obey(number, kind, datagram, descriptors, now)
                except ProtocolError as error:
                    for descriptor in descriptors:
                        os.close(descriptor)
                    self._core.nonsense(number, str(error))
            case Nonsense(text):
                self._core.nonsense(number, text)
            case _:
                assert_never(said)

    def _obey(self, number: int, kind: ToAgent, datagram: bytes, descriptors: tuple[int, ...], now: float) -> None:
        expected = {ToAgent.CHANNEL: 1, ToAgent.OUTPUT: 2}.get(kind, 0)
        if len(descriptors) != expected:
            raise ProtocolError(f"a {kind.name} datagram came with {len(descriptors)} descriptors")
        match kind:
            case ToAgent.READY:
                self._core.started(number)
            case ToAgent.FAILED:
                self._core.start_failed(number, datagram[1:].decode("utf-8", "replace"))
            case ToAgent.BLOCKED:
                self._core.blocked(number, now)
            case ToAgent.UNBLOCKED:
                self._core.unblocked(number, now)
            case ToAgent.CHANNEL:
                self._relays.open(unpack_channel(datagram), number, descriptors[0])
            case ToAgent.OUTPUT:
                self._outputs.open(unpack_output(datagram), descriptors)
            case ToAgent.PRINTED:
                self._prints.add(*unpack_printed(datagram))
            case ToAgent.RESULTS | ToAgent.LARGE:
                raise ProtocolError("a memory file holds what should not be in one")
            case _:
                assert_never(kind)

    def _relay(self, client: bytes, body: bytes, now: float) -> None:
        number = self._relays.deliver(client, body)
        if number is None:
            self._send(RelayClosed(client))
        else:
            self._core.nested_traffic(number, now)

    def _on_relay(self, number: int, client: bytes, body: bytes) -> None:
        self._core.nested_traffic(number, time.monotonic())
        self._send(Relay(client, body))

    def _on_relay_closed(self, client: bytes) -> None:
        if not self._is_closed:
            self._send(RelayClosed(client))

    def _on_output(self, task: bytes, is_stderr: bool, text: bytes) -> None:
        if not self._is_closed and self._connector.outbox_bytes() < MAX_OUTPUT_BACKLOG_BYTES:
            self._send(Output(task, is_stderr, text))

    def _say_printed(self, message: Printed) -> None:
        if not self._is_closed and self._connector.outbox_bytes() < MAX_OUTPUT_BACKLOG_BYTES:
            self._send(message)

    # -- the turn

    def _settle_soon(self) -> None:
        """Settle once for all processors that have something in this turn of the loop."""
        if not self._is_settling:
            self._is_settling = True
            self._loop.call_soon(self._settle)

    def _settle(self) -> None:
        self._is_settling = False
        core = self._core
        if self._is_closed or self.life.ended.done():
            return
        core.settle(time.monotonic())
        for message in core.outbox.take_messages():
            if isinstance(message, Done):
                if not self._prints.is_empty:
                    self._prints.flush(message.ids)
                for part in split(message):
                    self._send(part)
            elif isinstance(message, Returned):
                for piece in split(message):
                    self._send(piece)
            else:
                self._send(message)
        for note in core.outbox.take_notes():
            text = escaped(note.text) if "\n" not in note.text else note.text
            _log.log(note.level, "%s", text, extra=about(task=note.task.hex()))
        if core.ending is not None:
            self.life.obey(core.ending)
        elif core.wake_at < self._wake_at - 0.001:
            self._wake.cancel()
            self._arm()

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
        if not self._connector.connected:
            return
        now = time.monotonic()
        pids = self._processors.pids()
        loads = self._meter.measure(pids.values())
        own = loads.get(os.getpid(), Load())
        statuses = []
        for number, pid in pids.items():
            processor = self._core.pool.processors.get(number)
            if processor is None:
                continue
            running = self._core.running(number)
            load = loads.get(pid, Load())
            statuses.append(
                ProcessorStatus(
                    pid=pid,
                    cpu_percent=load.cpu_percent,
                    rss_bytes=load.rss_bytes,
                    initialized=processor.ready,
                    suspended=processor.standing in (Standing.SUSPENDED, Standing.WAITING),
                    running=running[0] if running else b"",
                    running_seconds=max(0.0, now - running[1]) if running else 0.0,
                )
            )
        self._send(
            WorkerHeartbeat(
                sent_at=now,
                agent_cpu_percent=own.cpu_percent,
                agent_rss_bytes=own.rss_bytes,
                queued=self._core.queued,
                latency_seconds=self._latency_seconds,
                processors=statuses,
            )
        )
