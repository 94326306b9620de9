"""Executor that runs attempts as calls to a service. Pure.

An attempt is queued, *in flight*, or *arriving*: finished, but with a large result still being uploaded. A call in
flight may have started, so it counts as started. Refused calls return to the queue, which counts against no task.
Invariant: at most `slots` calls are in flight.
"""

from __future__ import annotations

import heapq
import zlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple, assert_never

from scaler.backoff import BackoffByCause
from scaler.config.worker import WorkerConfig
from scaler.offload.call import Call, CallFailed, CallFinished, CallKey, CallStarted, ExecutorDegraded
from scaler.protocol.messages import STARTED_AFTER_SECONDS, Outcome, Started
from scaler.worker.agent.base import ExecutorBase, Status
from scaler.worker.agent.state import PREEMPTED, RECALLED, Attempt, KillReason, micros
from scaler.worker.frames import Snapshot

MAX_STATUSES = 100
NEW_TASKS_SECONDS = 5.0
"""Maximum seconds that a refusal delays later tasks, which might not be refused."""
DISPATCH_WEIGHT = 0.1
"""Weight of a new task in the moving average of dispatch times."""
_LOSSES = "losses"


class CallsAccepted(NamedTuple):
    """The executor accepted some or all calls."""


class CallsRefused(NamedTuple):
    """The executor refused these calls, but may accept them later."""

    keys: Sequence[CallKey]
    text: str


class CallCompleted(NamedTuple):
    """Final outcome of a call: the result was delivered, or the call could not be made."""

    number: int
    key: CallKey
    outcome: Outcome
    payload: bytes
    duration_us: int = 0
    cpu_us: int = 0
    peak_bytes: int = 0


CallInput = CallStarted | CallFinished | CallFailed | ExecutorDegraded | CallsAccepted | CallsRefused | CallCompleted


class StartCall(NamedTuple):
    """Fetch a call's payloads from the object storage, then pass the call to the executor."""

    number: int
    call: Call


class CancelCall(NamedTuple):
    number: int
    key: CallKey


class DeliverResult(NamedTuple):
    """Forward a task's output, and store a large result. `CallCompleted` follows."""

    number: int
    key: CallKey
    stream_output: bool
    data: bytes | bytearray | memoryview


class UseStorage(NamedTuple):
    address: str


CallCommand = StartCall | CancelCall | DeliverResult | UseStorage


class PaidCalls:
    """Paid seconds of calls: the sum of their durations, with a minimum per call. Invariant: `seconds` never
    decreases."""

    def __init__(self, least_seconds: float = 0.0) -> None:
        """least_seconds: minimum paid time per call."""
        self.least_seconds = least_seconds
        self._ended = 0.0
        self._running: dict[CallKey, float] = {}
        self._ending: list[CallKey] = []

    def __len__(self) -> int:
        return len(self._running)

    def begin(self, key: CallKey, now: float) -> None:
        """Record the start of a call. Idempotent."""
        self._running.setdefault(key, now)

    def end(self, key: CallKey, now: float, took: float = 0.0) -> None:
        """Record the end of a call, if it has started. took: lower bound for its duration."""
        began = self._running.pop(key, None)
        if began is not None:
            self._ended += max(self.least_seconds, took, now - began)

    def cancel(self, key: CallKey) -> None:
        self._ending.append(key)

    def settle(self, now: float) -> None:
        for key in self._ending:
            self.end(key, now)
        self._ending.clear()

    def seconds(self, now: float) -> float:
        return self._ended + sum(max(self.least_seconds, now - began) for began in self._running.values())


class ServiceCalls(ExecutorBase):
    def __init__(self, config: WorkerConfig, now: float) -> None:
        super().__init__(config, now)
        self._count = 0
        self._in_flight: dict[bytes, Attempt] = {}
        self._due: list[tuple[float, int, bool, Attempt]] = []
        """Heap of the times at which running calls are reported as started (False) or time out (True)."""
        self._dispatched: float | None = None
        """Moving average of the seconds from dispatch to start."""
        self.paid = PaidCalls()
        self._added_at_refusal = 0
        # Refusals and losses back off separately. The scheduler resends a lost task immediately, so a service that
        # loses every call must be called less and less often.
        self._refusals = BackoffByCause()
        self._losses = BackoffByCause()
        self._refused_at = 0.0
        self._refusal = self._loss = self._executor_reason = ""

    # -- inputs -------------------------------------------------------------------------------------------------------

    def take(self, item: CallInput, now: float) -> None:
        """Handle a report. Reports about unknown calls are dropped."""
        match item:
            case CallsAccepted():
                self._refusals.succeeded()
                self._refusal = ""
            case CallsRefused(keys, text):
                self._refused(keys, text, now)
            case CallStarted(task, attempt):
                call = self._find(task, attempt)
                if call is not None and not call.started_at:
                    self._started(call, now)
            case CallFinished(task, attempt, data):
                call = self._find(task, attempt)
                if call is not None:
                    del self._in_flight[task]
                    self.paid.begin((task, attempt), now)
                    if call.started_at:  # otherwise, the duration in the result counts
                        self.paid.end((task, attempt), now)
                    self._losses.succeeded()
                    self._loss = ""
                    streams = call.spec.wire.stream_output
                    self.commands.append(DeliverResult(call.executor, (task, attempt), streams, data))
            case CallFailed(task, attempt, outcome, text):
                call = self._find(task, attempt)
                if call is not None:
                    if outcome is Outcome.NOT_STARTED:
                        self._losses.failed(_LOSSES, now, _jitter(task), tried_at=call.dispatched_at)
                        self._loss = text
                    else:
                        self.paid.begin((task, attempt), now)
                    self.paid.end((task, attempt), now)
                    del self._in_flight[task]
                    self.free_lane(call.lane)
                    self.killed(call, outcome, text)
            case CallCompleted(number, (task, _)):
                self.paid.end(item.key, now, item.duration_us * 1e-6)
                call = self.queue.attempts.get(task)
                if call is not None and call.executor == number:
                    self._in_flight.pop(task, None)
                    if not call.started_at:
                        self._begun(max(0.0, now - item.duration_us * 1e-6 - call.dispatched_at))
                    began_us = min(micros(_began_at(call)), micros(now) - item.duration_us)
                    self.free_lane(call.lane)
                    self.ended(call, *item[2:], (began_us, call.lane, 0, 0, 0, 0))
            case ExecutorDegraded(text):
                self._executor_reason = text
            case _:
                assert_never(item)

    def end(self, items: Iterable[Attempt], reason: KillReason) -> None:
        """Cancel calls in flight, and ignore later reports about them. Recalled, preempted, and arriving calls run to
        completion."""
        in_flight = [item for item in items if item.id in self._in_flight]
        if reason in (RECALLED, PREEMPTED):
            self.returned(in_flight, started=True)
            return
        for item in in_flight:
            self._cancel(item)
            self.killed(item, *reason)

    def forget_all(self) -> str:
        """Drop all attempts, and cancel calls in flight: the scheduler resends the same task ids to a new agent."""
        calls = list(self._in_flight.values())
        for call in calls:
            self._cancel(call)
        super().forget_all()
        return "which still held tasks, so a new unit must replace it" if calls else ""

    def storage_moved(self) -> None:
        self.commands.append(UseStorage(self.storage_address))

    # -- once per step ---------------------------------------------------------------------------------------------

    def settle(self, now: float, may_start: bool) -> None:
        self.paid.settle(now)
        queue = self.queue
        if may_start and queue.waiting:
            wait = self.wait_seconds(now)
            if wait > 0:
                self.wake_by(now + wait)
            while wait <= 0 and len(self._in_flight) < self.config.slots and (item := queue.take()) is not None:
                self._start(item, now)
        refusal = f"tasks cannot be submitted to the service: {self._refusal}; trying again" if self._refusal else ""
        loss = f"tasks are lost repeatedly: {self._loss}" if self._loss and self._losses.failing else ""
        self.show_degraded("; ".join(filter(None, (self._executor_reason, refusal, loss))))

    def wait_seconds(self, now: float) -> float:
        refusal = self._refusals.wait_seconds(now)
        if self.queue.added > self._added_at_refusal:
            refusal = min(refusal, max(0.0, self._refused_at + NEW_TASKS_SECONDS - now))
        return max(refusal, self._losses.wait_seconds(now))

    def tick(self, _snapshots: Mapping[int, Snapshot], now: float, _may_start: bool) -> None:
        started: list[Attempt] = []
        overdue: list[Attempt] = []
        while self._due and self._due[0][0] <= now:
            _, number, is_limit, call = heapq.heappop(self._due)
            if self._in_flight.get(call.id) is not call or call.executor != number:
                continue
            if is_limit:
                overdue.append(call)
            else:
                started.append(call)
        if started:
            began_us = [micros(_began_at(call)) for call in started]
            self.send(Started([call.id for call in started], began_us, [call.lane for call in started]))
        for call in overdue:
            self.time_out(call)
        if self._due:
            self.wake_by(self._due[0][0])

    def statuses(self, _snapshots: Mapping[int, Snapshot], now: float) -> dict[int, Status]:
        if self._dispatched is not None:
            # Also detects a service queue that has not started any call yet.
            oldest = (now - call.dispatched_at for call in self._in_flight.values() if not call.started_at)
            self.dispatch_seconds = max(self._dispatched, next(oldest, 0.0))
        self.paid_seconds, self.paid_tasks = self.paid.seconds(now), len(self.paid)
        return {
            call.executor: (call.started_at > 0, False, call.id, now - _began_at(call), call.lane, "")
            for call in islice(self._in_flight.values(), MAX_STATUSES)
        }

    # -- calls -----------------------------------------------------------------------------------------------------

    def _start(self, item: Attempt, now: float) -> None:
        spec = item.spec
        payloads = {identifier: self.functions.get(identifier, b"") for identifier in spec.wire.registered}
        if not all(payloads.values()):
            self.killed(item, Outcome.OBJECT_LOST, "the worker does not know the task's function")
            return
        self._count += 1
        item.executor = self._count
        item.dispatched_at = now
        item.started_at = 0.0
        item.lane = self.take_lane()
        self._in_flight[item.id] = item
        wire = spec.wire
        call = Call(
            task=item.id,
            attempt=item.attempt,
            function=payloads[wire.function],
            arguments=item.payload,
            inputs=item.inputs,
            serializer=payloads.get(wire.serializer, b""),
            code=payloads.get(wire.code, b""),
            retry_on=wire.retry_on,
            name=wire.name,
            profiling=wire.profiling,
            stream_output=wire.stream_output,
            limit_seconds=spec.limit_seconds,
            once=wire.retries == 0,
            preload=self.config.preload or "",
        )
        self.commands.append(StartCall(self._count, call))

    def _find(self, task: bytes, attempt: int) -> Attempt | None:
        call = self._in_flight.get(task)
        return call if call is not None and call.attempt == attempt else None

    def _refused(self, keys: Sequence[CallKey], text: str, now: float) -> None:
        back = [call for key in keys if (call := self._find(*key)) is not None]
        self._refusals.failed(text, now, _jitter(back[0].id if back else b""))
        self._refusal = text
        self._refused_at = now
        self._added_at_refusal = self.queue.added
        for call in back:
            del self._in_flight[call.id]
            self.free_lane(call.lane)
        self.queue.put_back(back)

    def _started(self, call: Attempt, now: float) -> None:
        call.started_at = now
        self.paid.begin((call.id, call.attempt), now)
        self._begun(now - call.dispatched_at)
        heapq.heappush(self._due, (now + STARTED_AFTER_SECONDS, call.executor, False, call))
        if call.spec.limit_seconds:
            heapq.heappush(self._due, (now + call.spec.limit_seconds, call.executor, True, call))
        self.wake_by(self._due[0][0])

    def _begun(self, seconds: float) -> None:
        before = self._dispatched
        self._dispatched = seconds if before is None else before + DISPATCH_WEIGHT * (seconds - before)

    def _cancel(self, call: Attempt) -> None:
        del self._in_flight[call.id]
        self.paid.cancel((call.id, call.attempt))
        self.free_lane(call.lane)
        self.commands.append(CancelCall(call.executor, (call.id, call.attempt)))


def _began_at(call: Attempt) -> float:
    return call.started_at or call.dispatched_at


def _jitter(task: bytes) -> float:
    """Return a number in [0, 1) that depends on the task. Spreads out the retries of many agents."""
    return zlib.crc32(task) / 2**32
