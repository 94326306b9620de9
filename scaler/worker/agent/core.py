"""The agent's core: owns the worker's attempts and decides what to report to the scheduler. Pure.

Attempts run in one of two executors: processors on this host (`pool.py`) or calls to a service (`scaler.offload`). The
core contains the shared parts: queue, scheduler lease, drain, recall, and reports. Invariants: an attempt is in exactly
one place; every received attempt is answered by exactly one Done or Returned(started=False), unless the scheduler has
dropped this worker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, cast

from scaler.config.worker import WorkerConfig
from scaler.ids import show
from scaler.net.connection import Broken, Received, Resumed, Welcomed
from scaler.protocol import messages as m
from scaler.worker.agent import events as e
from scaler.worker.agent.base import ExecutorBase
from scaler.worker.agent.state import CANCELLED, PREEMPTED, RECALLED, Attempt, KillReason

IDLE_TICK_SECONDS = 0.5
START_NOTHING_AT = 2 / 3
KILL_ONCE_AT = 5 / 6
BROKEN_SECONDS = 2.0
"""Seconds without a connection after which a worker starts no tasks; shorter than the scheduler's wait."""
STALL_SECONDS = BROKEN_SECONDS
"""After a stall this long, received messages may predate a connection that has since broken. The agent starts nothing,
and counts no message as contact, until the scheduler has answered a later heartbeat. The agent waits as long for this
answer before it ends tasks or exits because of the scheduler's silence."""
_CONTACT = frozenset((Received, Resumed, Welcomed))
MAX_DRIFT = 1e-4
"""Maximum relative drift between two clocks: seconds per second."""
DRAIN_ANSWER_SECONDS = 2.0
"""Seconds to wait for the scheduler's answer to Drain."""


class LeaseStage(IntEnum):
    """Actions of a worker by the time since the scheduler's last message. docs/design.md derives the times."""

    NORMAL = 0
    START_NOTHING = 1
    """The scheduler may soon reassign queued tasks, or the connection is broken."""
    KILL_ONCE = 2
    """Running tasks that may not run twice are killed before the scheduler drops the worker."""
    DEATH = 3
    """Death timeout: the worker exits."""


class AgentCore:
    """The decisions of one agent. `wake_at`: time at which the next `TimeElapsed` is due.

    A drain cannot be undone. A worker that stops without a Drain from the scheduler sends a Drain itself and waits for
    the answer, so that it can return tasks already in flight. Otherwise these tasks would be lost with the worker and
    charged for the loss.
    """

    def __init__(self, config: WorkerConfig, executor: type[ExecutorBase], now: float) -> None:
        self._config = config
        self.executor = executor(config, now)
        self.wake_at = now
        self._has_reported = False
        """The scheduler has not answered a new session's report, so queued tasks may have been assigned elsewhere."""
        self.incarnation = 0
        """Incarnation of the scheduler that last welcomed this agent; 0: not welcomed yet."""
        self._has_ended = False
        self._store: e.Store | None = e.Store("", b"")
        """Store for results; None: not known yet, so no task starts."""
        self._object_storage_address = ""
        self._stage = LeaseStage.NORMAL
        self._lease_seconds = float("inf")
        """Seconds without contact after which the scheduler reassigns this worker's tasks."""
        self._heard_at = self._stepped_at = now
        self._stalled_at = float("inf")
        """End of the last stall; infinite once the scheduler has answered a heartbeat sent since."""
        self._broken_at = float("inf")
        """Time at which the connection broke; infinite while connected."""
        self._drain_text = ""
        self._exit_code = 0
        self._drain_deadline = float("inf")
        """Time at which running tasks are killed."""
        self._drain_answer_until = 0.0
        self._handlers: dict[type[Any], Callable[[Any, float], None]] = {
            e.TimeElapsed: self._tick,
            Welcomed: self._welcomed,
            e.StopRequested: self._stop,
            Resumed: self._resumed,
            Broken: self._broke,
            e.StoreChanged: self._change_store,
            m.Run: self._run,
            m.Recall: self._recall,
            m.ReleaseResults: lambda message, _now: self.executor.retained.release(message.numbers),
            m.ForgetFunctions: lambda message, _now: self.executor.forget_functions(set(message.ids)),
            m.Drain: self._drained,
            m.Shutdown: lambda message, _now: self._end(0, message.text or "the cluster was shut down"),
            m.HeartbeatEcho: self._echoed,
            m.Named: lambda message, _now: self.executor.log(
                f"the scheduler named this worker {message.name}", level="info"
            ),
            m.Relay: lambda _message, _now: None,
        }

    def step(self, inputs: Sequence[e.AgentInput], now: float) -> list[e.Command]:
        executor, handlers = self.executor, self._handlers
        if now - self._stepped_at > STALL_SECONDS:
            self._stalled_at = now
            self._check_lease(now)
        self._stepped_at = now
        for item in inputs:
            kind = type(item)
            if kind in _CONTACT:
                if now < self._stalled_at:
                    self._heard_at = now
                if self._stage is not LeaseStage.NORMAL:
                    self._stage = self._lease_stage(now)
            if kind is Received:
                message = cast("Received", item).message
                if handler := handlers.get(type(message)):
                    handler(message, now)
                else:
                    executor.log(f"unexpected message {type(message).__name__} from the scheduler")
            elif kind in handlers:
                handlers[kind](item, now)
            else:
                executor.take(item, now)
        if executor.broken and not self._exit_code:
            self._exit_code = 1
            self._stop(e.StopRequested(executor.broken), now)
        if self._drain_text and not self._has_ended:
            executor.returned(executor.queue.drain(), started=False)
            if not executor.queue.attempts and now >= self._drain_answer_until:
                self._end(self._exit_code, executor.broken or self._drain_text)
        if not self._has_ended:
            may_start = self._stage is LeaseStage.NORMAL and self._store is not None and not self._has_reported
            executor.settle(now, may_start)
        self.wake_at = executor.wake_at
        return executor.take_commands()

    def close(self, inputs: Sequence[e.AgentInput], now: float) -> list[e.Command]:
        self._has_ended = True
        commands = self.step(inputs, now)
        self.executor.close()
        return commands + self.executor.take_commands()

    # -- events and messages from the scheduler ----------------------------------------------------------------------

    def _stop(self, event: e.StopRequested, now: float) -> None:
        is_draining = bool(self._drain_text)
        self._drain_text = self._drain_text or event.text
        self._drain_deadline = min(self._drain_deadline, now + self._config.stop_grace_seconds)
        self.executor.wake_by(self._drain_deadline)
        if self.incarnation and not is_draining:
            self._request_drain(now)
        self.executor.reclaim()

    def _request_drain(self, now: float) -> None:
        self._drain_answer_until = now + DRAIN_ANSWER_SECONDS
        self.executor.send(m.Drain(self._drain_text))
        self.executor.wake_by(self._drain_answer_until)

    def _drained(self, message: m.Drain, _now: float) -> None:
        """Handle a Drain, which requests a drain, or confirms that the scheduler sends no more tasks."""
        self._drain_text = self._drain_text or message.text or "drained"
        self._drain_answer_until = 0.0
        self.executor.reclaim()

    def _welcomed(self, event: Welcomed, now: float) -> None:
        """Handle the first session, or the session after the scheduler dropped this worker or restarted.

        The tasks of a dropped worker already run elsewhere. After a restart, running tasks continue, and queued tasks
        wait until the scheduler has recalled the tasks that it assigned elsewhere.
        """
        welcome = event.welcome
        if welcome.incarnation == self.incarnation:
            text = "the scheduler no longer knows this worker"
            why_not = self.executor.forget_all()
            if why_not:
                # The agent keeps running until it has returned the tasks still in flight, so that no task is charged.
                self._drain_text = self._drain_text or f"{text}, {why_not}"
                self._drain_deadline = now
            else:
                self.executor.log(f"{text}: it starts over")
        if self.incarnation:
            self.executor.reclaim()
            self.executor.report()
            self._has_reported = True
        self.incarnation = welcome.incarnation
        if self._drain_text:
            self._request_drain(now)
        self._lease_seconds = welcome.lease_seconds
        self._broken_at = float("inf")
        self._stage = self._lease_stage(now)
        self._object_storage_address = self._config.object_storage_address or welcome.object_storage_address
        self._use_store(is_new_session=True)

    def _change_store(self, event: e.StoreChanged, _now: float) -> None:
        is_new_session = self._store is None
        self._store = event.store
        self._use_store(is_new_session=is_new_session)

    def _use_store(self, *, is_new_session: bool) -> None:
        store = self._store
        if store is None or not self.incarnation:
            return
        executor = self.executor
        addresses = store.address or self._object_storage_address, self._object_storage_address
        has_moved = addresses != (executor.storage_address, executor.object_storage_address)
        if store.peer and (has_moved or is_new_session):
            executor.send(m.UseStore(store.peer))
        elif has_moved and executor.storage_address != executor.object_storage_address:
            executor.send(m.UseStore())
        if has_moved:
            executor.storage_address, executor.object_storage_address = addresses
            executor.storage_moved()

    def _broke(self, _event: Broken, now: float) -> None:
        self._broken_at = now

    def _resumed(self, _event: Resumed, now: float) -> None:
        self._broken_at = float("inf")
        self._stage = self._lease_stage(now)

    def _run(self, message: m.Run, now: float) -> None:
        executor, queue = self.executor, self.executor.queue
        for function, code in message.functions:
            if m.is_function_id(function, code):
                executor.functions[function] = code
            else:  # lose the function's tasks rather than let a processor unpickle the wrong code
                executor.log(f"the scheduler sent a different function under id {show(function)}")
        refused: list[Attempt] = []
        for group in message.groups:
            spec, known = group.spec, executor.know(group.spec)
            rank = queue.nested_rank(spec) if spec.parent else (-spec.priority, 0)
            inputs = group.inputs or [()] * len(group.ids)
            rows = zip(group.ids, group.attempts, group.payloads, inputs, strict=True)
            items = [Attempt(task, number, known, payload, values, rank) for task, number, payload, values in rows]
            for item, devices in zip(items, group.devices, strict=False):
                item.devices = devices
            if group.spec.environment:
                items = executor.admit(group.spec.environment, items, now)
            refused += queue.add(items)
        if refused:
            executor.returned(refused, started=False)

    def _recall(self, message: m.Recall, _now: float) -> None:
        """Return queued attempts, and stop running attempts on request. A Recall also answers a session's report."""
        self._has_reported = False
        attempts = self.executor.queue.attempts
        recalled = zip(message.ids, message.attempts, strict=True)
        here = [item for key, number in recalled if (item := attempts.get(key)) is not None and item.attempt == number]
        self.executor.give_back([item for item in here if not item.executor])
        reason = CANCELLED if message.kill else PREEMPTED if message.preempt else RECALLED
        self.executor.end([item for item in here if item.executor], reason)

    # -- time ------------------------------------------------------------------------------------------------------

    def _tick(self, event: e.TimeElapsed, now: float) -> None:
        self.executor.wake_at = now + IDLE_TICK_SECONDS
        self._check_lease(now)
        may_start = self._stage is LeaseStage.NORMAL and self._store is not None and not self._has_reported
        self.executor.tick(event.snapshots, now, may_start)
        if now >= self._drain_deadline:
            text = f"the worker was told to exit ({self._drain_text}) while the task ran"
            self._end_running(KillReason(m.Outcome.NOT_STARTED, text))
        else:
            self.executor.wake_by(self._drain_deadline)

    def _echoed(self, message: m.HeartbeatEcho, now: float) -> None:
        if message.sent_at >= self._stalled_at:
            self._stalled_at, self._heard_at = float("inf"), now
            self._stage = self._lease_stage(now)

    def _lease_stage(self, now: float) -> LeaseStage:
        limits = {
            LeaseStage.DEATH: self._config.death_timeout_seconds,
            LeaseStage.KILL_ONCE: self._lease_seconds * KILL_ONCE_AT,
            LeaseStage.START_NOTHING: self._lease_seconds * START_NOTHING_AT,
        }
        silent = now - self._heard_at
        stage = next((stage for stage, seconds in limits.items() if silent >= seconds), LeaseStage.NORMAL)
        if now - self._broken_at >= BROKEN_SECONDS or now >= self._stalled_at:
            stage = max(stage, LeaseStage.START_NOTHING)
        return LeaseStage.START_NOTHING if 0 <= now - self._stalled_at <= STALL_SECONDS else stage

    def _check_lease(self, now: float) -> None:
        before, self._stage = self._stage, self._lease_stage(now)
        if (stage := self._stage) is before:
            return
        if stage is not LeaseStage.NORMAL:
            self.executor.log(f"no recent contact with the scheduler: {stage.name.lower().replace('_', ' ')}")
            self.executor.reclaim()
        if stage is LeaseStage.KILL_ONCE:
            text = "the worker lost contact with the scheduler and ended the task, because it must not run twice"
            self._end_running(KillReason(m.Outcome.WORKER_LOST, text), once_only=True)
        elif stage is LeaseStage.DEATH:
            limit = f"{self._config.death_timeout_seconds:g} s (death_timeout_seconds)"
            self._end(1, f"no contact with the scheduler at {self._config.scheduler_address} for {limit}")

    def _end_running(self, reason: KillReason, *, once_only: bool = False) -> None:
        dispatched = [item for item in self.executor.queue.attempts.values() if item.executor]
        self.executor.end([item for item in dispatched if not (once_only and item.spec.wire.retries)], reason)

    def _end(self, exit_code: int, text: str) -> None:
        self._has_ended = True
        self.executor.commands.append(e.EndAgent(exit_code, text))


class ClockOffset:
    """Estimates the offset of the scheduler's clock in seconds, and its maximum error; both 0 before the first echo.

    Each heartbeat echo bounds the offset on both sides, and the bounds widen with time because clocks drift. To avoid
    jitter in timelines, the estimate changes only when it leaves the bounds.
    """

    def __init__(self) -> None:
        self.seconds = self.error_seconds = 0.0
        self._low, self._high = float("-inf"), float("inf")
        self._at = 0.0

    def observe(self, sent_at: float, answered_at: float, received_at: float) -> None:
        """Record one exchange. answered_at: scheduler's clock; sent_at and received_at: this process's clock."""
        low, high = answered_at - received_at, answered_at - sent_at
        drift = (received_at - self._at) * MAX_DRIFT
        self._at = received_at
        self._low, self._high = max(self._low - drift, low), min(self._high + drift, high)
        if self._low > self._high:  # the scheduler has a different clock, or a clock stopped for a while
            self._low, self._high = low, high
        if not self._low <= self.seconds <= self._high or not self.error_seconds:
            self.seconds = (self._low + self._high) / 2
        self.error_seconds = max(self._high - self.seconds, self.seconds - self._low, 1e-9)
