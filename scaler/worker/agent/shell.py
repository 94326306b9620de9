"""The agent's shell: receives messages and executor reports, steps the core, and performs its commands."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, cast

from scaler.component import Component, run_component
from scaler.config.worker import WorkerConfig
from scaler.errors import LimitError, RefusedError, ScalerError
from scaler.host import usable_memory
from scaler.ids import new_peer_id
from scaler.logs import about, identify
from scaler.net.connection import Broken, ConnectionRefused, Connector, ConnectorEvent, Received, Resumed, Welcomed
from scaler.net.connector import SocketConnector
from scaler.net.versions import own_hello
from scaler.plugins import extensions, load
from scaler.processes import Load, LoadMeter
from scaler.protocol import messages as m
from scaler.texts import escaped
from scaler.worker.agent import events as e
from scaler.worker.agent.base import ExecutorBase
from scaler.worker.agent.core import AgentCore, ClockOffset
from scaler.worker.credential import own_access
from scaler.worker.frames import Note, PageReader, Snapshot, ToAgent

MAX_OUTPUT_BACKLOG_BYTES = 16 * 1024 * 1024
"""Bytes queued for the scheduler above which task output is dropped, so that results have priority."""
CLOSE_SECONDS = 2.0
"""Seconds that an exiting agent waits for the scheduler to acknowledge its last messages."""
WELCOME_SECONDS = 1.0
_POLL_SECONDS = 0.005

_log = logging.getLogger(__name__)

OnEvents = Callable[[list[ConnectorEvent]], None]
MakeConnector = Callable[[OnEvents], Connector]


class Agent:
    """One worker on the running event loop. Subclasses perform commands and report with `take_soon`."""

    make_executor: type[ExecutorBase]
    has_tasks_here = False
    """Whether its tasks run on this host."""

    def __init__(
        self, config: WorkerConfig, make_connector: MakeConnector, show_degraded: Callable[[str], None]
    ) -> None:
        """show_degraded: receives why tasks cannot run, or "" when cleared."""
        self.config = config
        self._show_degraded = show_degraded
        self._make_connector = make_connector
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._on_unexpected_error)
        self.ended: asyncio.Future[int] = self._loop.create_future()
        """Completes with the exit code, or with the error that ends the agent."""
        self._welcomed: asyncio.Future[None] = self._loop.create_future()
        self._meter = LoadMeter()
        self._latency_seconds = 0.0
        self._clock = ClockOffset()
        self._heartbeat_seconds = config.heartbeat_interval_seconds
        self._is_closed = False
        self._connector: Connector | None = None
        self._pending: list[e.AgentInput] = []
        self._wake_at = time.monotonic()
        self._core = AgentCore(config, self.make_executor, self._wake_at)
        self.executor = self._core.executor
        self.on_note: dict[ToAgent, Callable[[int, Note, list[int]], object]] = {}
        """Called with a processor's number, an untrusted note, and attached descriptors, which are closed unless
        removed from the list. Raise ProtocolError for a malformed note."""
        self.on_heartbeat: list[Callable[[m.WorkerHeartbeat], object]] = []
        """Each sets fields of a heartbeat, or sends messages before it."""
        self.on_session: list[Callable[[m.Welcome, bool], object]] = []
        """Called with a new session's Welcome and whether the scheduler was restarted. The scheduler has no earlier
        reports from this worker."""
        self.before_results: list[Callable[[Sequence[bytes]], object]] = []
        """Called with the ids of tasks before their results are sent. A callback may remove itself."""
        self.relay: Callable[[m.Relay], bool] = lambda _: False
        """Pass a message to a client inside a task. Returns False if there is no such client."""
        self.why_killed: list[Callable[[], str]] = []
        """Return evidence that memory ran out, if a processor was killed from outside; otherwise an empty text."""
        self.on_close: list[Callable[[], object]] = []
        """Called once when the agent exits. May send messages."""

    # -- for subclasses ------------------------------------------------------------------------------------------------

    def _perform(self, command: Any) -> None:
        raise NotImplementedError

    async def _end_tasks(self) -> None:
        raise NotImplementedError

    def _last_inputs(self) -> list[e.AgentInput]:
        """Stop all work, and return the inputs that the core needs to account for its tasks."""
        return []

    def running_task(self, number: int) -> bytes:  # noqa: ARG002 (runs none)
        """Return the id of the task that a processor runs, or "" if idle."""
        return b""

    def processors(self) -> Mapping[int, tuple[int, PageReader]]:
        """Return the pid and status page of every processor that has a process, by number."""
        return {}

    # -- lifecycle ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start. Subclasses call `connect` when they are ready for tasks."""
        for extension in extensions():
            if extension.agent:
                cast("Callable[[Agent], object]", load(extension.agent))(self)
        self._timer = self._loop.call_later(0, self._on_timer)
        self._heartbeat_timer = self._loop.call_later(self._heartbeat_seconds, self._heartbeat)
        self.take()

    async def run(self, component: Component) -> int:
        """Run until the end, then close. Returns the exit code or raises the error that ended the agent."""
        self._welcomed.add_done_callback(lambda _: component.ready({}))
        stop = asyncio.ensure_future(component.stop.wait())
        stop.add_done_callback(lambda stop: None if stop.cancelled() else self.stop())
        try:
            return await self.ended
        finally:
            stop.cancel()
            await self.close()

    def stop(self) -> None:
        self.take([e.StopRequested("the worker was told to end")])

    def fail(self, error: BaseException) -> None:
        if not self.ended.done():
            self.ended.set_exception(error)

    async def close(self) -> None:
        if self._connector is not None and not isinstance(self._error, RefusedError):
            # The scheduler may already have sent tasks.
            await asyncio.wait([self._welcomed], timeout=WELCOME_SECONDS)
        self._account()
        self._is_closed = True
        self._timer.cancel()
        await self._end_tasks()
        self._heartbeat_timer.cancel()
        for close in self.on_close:
            close()
        connector = self._connector
        if connector is None:
            return
        for _ in range(round(CLOSE_SECONDS / _POLL_SECONDS)):
            # Lower levels have no event for acknowledgements, so poll.
            if not (connector.connected and connector.outbox_bytes()):
                break
            await asyncio.sleep(_POLL_SECONDS)
        connector.close("the worker ends" if self._error is None else f"the worker ends: {self._error}")

    @property
    def _error(self) -> BaseException | None:
        return self.ended.exception() if self.ended.done() and not self.ended.cancelled() else None

    def _account(self) -> None:
        if self._is_closed or not self._welcomed.done():
            return
        pending, self._pending = self._pending, []
        for command in self._core.close([*pending, *self._last_inputs()], time.monotonic()):
            if isinstance(command, m.Message):
                self.send(command)
        self.send(m.Returned([], [], []))

    def _end(self, command: e.EndAgent) -> None:
        if self.ended.done():
            return
        if not command.exit_code:
            _log.info("ending: %s", command.text)
            self.ended.set_result(0)
        else:
            self.fail(ScalerError(command.text))

    def _on_unexpected_error(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, BaseException) and not self.ended.done():
            self.fail(error)
        else:
            _log.error("%s", context.get("message"))

    def connect(self) -> None:
        if not (self.ended.done() or self._is_closed):
            self._connector = self._make_connector(self._on_events)

    def send(self, message: m.Message) -> None:
        if self._connector is None:
            return
        if type(message) is m.Done:
            for send_first in [*self.before_results]:
                send_first(message.ids)
        try:
            self._connector.send(message)
        except LimitError as error:
            self.fail(error)
        except RefusedError:
            return  # an event with the reason arrives in this wakeup or the next, and ends the agent

    def send_output(self, message: m.Output | m.Printed | m.TasksProfiled) -> None:
        """Send task output or samples, unless the outbox is too full."""
        if self._connector is not None and self._connector.outbox_bytes() < MAX_OUTPUT_BACKLOG_BYTES:
            self.send(message)

    def _on_events(self, events: list[ConnectorEvent]) -> None:
        if self._is_closed:
            return
        for event in events:
            match event:
                case Received(_, m.HeartbeatEcho(sent_at, answered_at)):
                    now = time.monotonic()
                    self._latency_seconds = max(0.0, now - sent_at)
                    is_first = not self._clock.error_seconds
                    self._clock.observe(sent_at, answered_at, now)
                    if is_first:
                        self._heartbeat()  # before the first tasks finish
                case Received(_, m.Relay() as message):
                    if not self.relay(message):
                        self.send(m.RelayClosed(message.client))
                case Welcomed(welcome):
                    is_restarted = self._core.incarnation not in (0, welcome.incarnation)
                    for call in self.on_session:
                        call(welcome, is_restarted)
                    # The scheduler's lease may be short.
                    self._heartbeat_seconds = min(self.config.heartbeat_interval_seconds, welcome.heartbeat_seconds)
                    self._clock = ClockOffset()
                    self.heartbeat_soon()
                    if not self._welcomed.done():
                        self._welcomed.set_result(None)
                case Resumed():
                    self.heartbeat_soon()
                case Broken():
                    _log.info("the connection to the scheduler broke; connecting again")
                case ConnectionRefused(refused):
                    self.fail(RefusedError(f"the scheduler refused this worker: {refused.text}"))
        self.take([event for event in events if not isinstance(event, ConnectionRefused)])

    def pids(self) -> dict[int, int]:
        return {number: pid for number, (pid, _) in self.processors().items()}

    def _snapshots(self, resting: Collection[int] = ()) -> dict[int, Snapshot]:
        return {number: page.snapshot() for number, (_, page) in self.processors().items() if number not in resting}

    def heartbeat_soon(self) -> None:
        """Send a heartbeat after the inputs of this event loop iteration."""
        self._heartbeat_timer.cancel()
        self._heartbeat_timer = self._loop.call_later(0, self._heartbeat)

    def _heartbeat(self) -> None:
        self._heartbeat_timer.cancel()
        self._heartbeat_timer = self._loop.call_later(self._heartbeat_seconds, self._heartbeat)
        if self._connector is None or not self._connector.connected:
            return
        pids = self.pids()
        loads = self._meter.measure(pids.values())
        now = time.monotonic()
        executor = self.executor
        processors = []
        for number, status in executor.statuses(self._snapshots(), now).items():
            pid = pids.get(number, 0)
            load = loads.get(pid, Load())
            processors.append(m.ProcessorStatus(pid, load.cpu_percent, load.rss_bytes, *status))
        own = loads.get(os.getpid(), Load())
        clock = self._clock.seconds, self._clock.error_seconds, time.time()
        counts = executor.memory_kills, executor.processors_replaced
        heartbeat = m.WorkerHeartbeat(now, *own, executor.queued, self._latency_seconds, processors, *clock, *counts)
        heartbeat.degraded_reason = executor.obstacle()
        heartbeat.dispatch_seconds = executor.dispatch_seconds
        heartbeat.paid_seconds, heartbeat.paid_tasks = executor.paid_seconds, executor.paid_tasks
        for complete in self.on_heartbeat:
            complete(heartbeat)
        self.send(heartbeat)

    def take_soon(self, *inputs: e.AgentInput) -> None:
        """Step the core once for all inputs of this event loop iteration."""
        if not self._pending:
            self._loop.call_soon(self._take_pending)
        self._pending.extend(inputs)

    def _take_pending(self) -> None:
        if not self._pending:  # an earlier step has taken the inputs
            return
        if self._connector is None:
            self.take()
        else:
            self._connector.together(self.take)

    def take(self, inputs: Sequence[e.AgentInput] = ()) -> None:
        if self._pending:
            inputs = [*self._pending, *inputs]
            self._pending = []
        if self.ended.done():
            self._pending = [*inputs]  # kept for the final report about tasks
            return
        if self._is_closed:
            return
        now = time.monotonic()
        core = self._core
        for command in core.step(inputs, now):
            match command:
                case m.Message():
                    self.send(command)
                case e.WriteLog(text, task, level):
                    line = escaped(text) if "\n" not in text else text
                    getattr(_log, level)("%s", line, extra=about(task=task.hex()))
                case e.EndAgent():
                    self._end(command)
                case e.ShowDegradedReason(text):
                    if text:
                        _log.warning("%s", escaped(text))
                    else:
                        _log.info("tasks can run again")
                    self._show_degraded(text)
                case _:
                    self._perform(command)
        if core.wake_at < self._wake_at - 0.001:
            self._timer.cancel()
            self._set_timer()

    def _set_timer(self) -> None:
        self._wake_at = self._core.wake_at
        self._timer = self._loop.call_later(max(0.0, self._wake_at - time.monotonic()), self._on_timer)

    def _on_timer(self) -> None:
        self._wake_at = 0.0  # the timer is set below
        self.take([e.TimeElapsed(self._snapshots(self.executor.resting(time.monotonic())))])
        if not self._is_closed and not self.ended.done():
            self._set_timer()


class StatusFile:
    """File in which the worker manager reads the agent's degraded reason or final error."""

    def __init__(self, descriptor: str | None) -> None:
        self._descriptor = None if descriptor is None else int(descriptor)

    def write(self, text: str) -> None:
        if self._descriptor is not None:
            with contextlib.suppress(OSError):  # the disk is full or file sizes are limited; the log also has the text
                os.ftruncate(self._descriptor, 0)
                os.pwrite(self._descriptor, text.encode("utf-8", "replace"), 0)

    def write_error(self, error: Exception) -> None:
        self.write(str(error) if isinstance(error, ScalerError) else f"{type(error).__name__}: {error}")


def run_agent(
    config: WorkerConfig, make_agent: Callable[[MakeConnector], Agent], status: StatusFile, *, runs_tasks: bool = True
) -> int:
    """Run an agent and return the exit code. runs_tasks: tasks use this machine's memory."""

    async def work(component: Component) -> int:
        try:
            agent = make_agent(_as_worker(config, runs_tasks))
            agent.start()
            gc.freeze()  # exempt permanent objects from garbage collection
            return await agent.run(component)
        except Exception as error:
            status.write_error(error)
            raise

    return run_component("worker", config, work, config.event_loop)


def _as_worker(config: WorkerConfig, runs_tasks: bool) -> MakeConnector:
    memory_bytes, memory_pool = usable_memory() if runs_tasks else (0, "")
    if 0 < config.memory_limit_bytes < memory_bytes:
        memory_bytes, memory_pool = config.memory_limit_bytes, ""
    details = m.WorkerDetails(
        manager_id=config.worker_manager_id,
        unit_id=config.unit_id,
        slots=config.slots,
        queue_size=config.per_worker_task_queue_size,
        capabilities=config.per_worker_capabilities,
        memory_bytes=memory_bytes,
        memory_pool=memory_pool,
        death_timeout_seconds=config.death_timeout_seconds,
    )
    peer, access = new_peer_id(), own_access(config)
    identify(manager=config.worker_manager_id, unit=config.unit_id, worker=peer.hex())
    hello = own_hello(m.Role.WORKER, details)
    return lambda on_events: SocketConnector(
        config.scheduler_address, m.Server.SCHEDULER, access, hello, on_events, peer=peer
    )
