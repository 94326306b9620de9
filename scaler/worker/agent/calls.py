"""Calls to a service as the executor of an agent: which attempts the service has, and what it was asked. Pure.

An attempt is in the queue, *in flight* at the executor, or *arriving*: its result is here, and a large value on its way
to the storage. Whether what is in flight has begun cannot be known, so it counts as begun: it goes on when it is
recalled, unless it is to be ended. What the executor did not take goes back into the queue, and no task is charged.
Invariant: at most `slots` are in flight.
"""

from __future__ import annotations

import heapq
import zlib
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import assert_never

from scaler.backoff import BackoffByCause
from scaler.protocol.messages import STARTED_AFTER_SECONDS, Outcome, ProcessorStatus, Started
from scaler.worker.agent.events import (
    CallCompleted,
    CallInput,
    CallsAccepted,
    CallsRefused,
    CancelCall,
    DeliverResult,
    ShowDegradedReason,
    StartCall,
    UseStorage,
)
from scaler.worker.agent.state import CANCELLED, AgentState, Attempt, KillReason, KnownSpec
from scaler.worker.call import Call
from scaler.worker.executor import CallFailed, CallFinished, CallKey, CallStarted, ExecutorDegraded
from scaler.worker.frames import Snapshot

MAX_STATUSES = 100
"""Calls in flight that a heartbeat shows."""
NEW_TASKS_SECONDS = 5.0
"""Tasks that have come after a refusal wait for no longer than this because of it: it may concern other tasks only."""
_LOSSES = "losses"


@dataclass(slots=True)
class CallInFlight:
    """An attempt that the executor has, or is about to get."""

    number: int
    item: Attempt
    dispatched_at: float
    started_at: float | None = None


class ServiceCalls:
    """All calls of an agent."""

    extra_capacity = unstarted = 0  # no call lends its slot, and calls in flight count as begun

    def __init__(self, state: AgentState) -> None:
        self._state = state
        self._count = 0
        self._in_flight: dict[bytes, CallInFlight] = {}
        """By task, the oldest first."""
        self._arriving: dict[int, Attempt] = {}
        self._limits: list[tuple[float, int, CallInFlight]] = []
        """When calls that have started run out of time: a heap."""
        self._started: deque[tuple[float, CallInFlight]] = deque()
        """Calls whose start is to be reported, and when."""
        self._added_at_refusal = 0
        """How many attempts had come to the queue when the executor last refused calls."""
        # A service that loses all calls must be asked less and less often, since the scheduler sends a lost task again
        # at once. So calls that were not taken and calls that were lost are counted apart.
        self._refusals = BackoffByCause()
        self._losses = BackoffByCause()
        self._refused_at = 0.0
        self._refusal = self._loss = self._executor_reason = ""
        self._reason = ""
        """What keeps calls from running, as it is shown."""
        self._storage_address = ""

    # -- what happened ---------------------------------------------------------------------------------------------

    def take(self, item: CallInput, now: float) -> None:
        """Take in a report. Reports about calls that are not waited for are dropped."""
        match item:
            case CallsAccepted():
                self._refusals.succeeded()
                self._refusal = ""
            case CallsRefused(keys, text):
                self._refused(keys, text, now)
            case CallStarted(task, attempt):
                call = self._find((task, attempt))
                if call is not None and call.started_at is None:
                    self._call_started(call, now)
            case CallFinished(task, attempt, data):
                call = self._find((task, attempt))
                if call is not None:
                    del self._in_flight[task]
                    self._arriving[call.number] = call.item
                    self._losses.succeeded()
                    self._loss = ""
                    streams = call.item.spec.wire.stream_output
                    self._state.commands.append(DeliverResult(call.number, (task, attempt), streams, data))
            case CallFailed(task, attempt, outcome, text):
                call = self._find((task, attempt))
                if call is not None:
                    if outcome is Outcome.NOT_STARTED:
                        self._losses.failed(_LOSSES, now, _jitter(task), tried_at=call.dispatched_at)
                        self._loss = text
                    del self._in_flight[task]
                    self._state.killed(call.item, outcome, text)
            case CallCompleted(number, key, outcome, payload, duration_us, cpu_us, peak_bytes):
                ended = self._arriving.pop(number, None)
                call = self._find(key)
                if ended is None and call is not None and call.number == number:
                    del self._in_flight[key[0]]
                    ended = call.item
                if ended is not None:
                    self._state.ended(ended, outcome, payload, duration_us, cpu_us, peak_bytes)
            case ExecutorDegraded(text):
                self._executor_reason = text
            case _:
                assert_never(item)

    def recall(self, items: Iterable[Attempt], kill: bool) -> None:
        """Let calls go on, or end them when `kill` is set. The Done of those that are arriving is on its way."""
        calls = [call for item in items if (call := self._in_flight.get(item.id)) is not None]
        if kill:
            for call in calls:
                self._end(call, CANCELLED)
        else:
            self._state.returned([call.item for call in calls], started=True)

    def reclaim(self) -> None:
        """Do nothing: calls in flight count as begun."""

    def end_running(self, reason: KillReason, *, once_only: bool = False) -> None:
        """End calls in flight. once_only: only those that may not run twice."""
        for call in list(self._in_flight.values()):
            if not once_only or call.item.spec.wire.retries == 0:
                self._end(call, reason)

    def forget_all(self) -> str:
        """Forget all attempts: the scheduler has. Returns why the agent cannot go on; empty when it can.

        The scheduler sends what is in flight again under the same ids, and two copies of a task would share one: so it
        is ended, and a new agent must take over.
        """
        had_calls = bool(self._in_flight)
        for call in self._in_flight.values():
            self._state.commands.append(CancelCall(call.number, (call.item.id, call.item.attempt)))
        self._in_flight.clear()
        self._arriving.clear()
        return "whose tasks were still out: another one must take its place" if had_calls else ""

    def forget_functions(self, specs: Iterable[KnownSpec], functions: Iterable[bytes]) -> None:
        """Do nothing: every call carries its function."""

    def use_storage(self, address: str) -> None:
        """Fetch and store objects at this address from now on."""
        if address != self._storage_address:
            self._storage_address = address
            self._state.commands.append(UseStorage(address))

    # -- once per step ---------------------------------------------------------------------------------------------

    def settle(self, now: float, may_start: bool) -> None:
        """Start calls for queued attempts while there are slots: once after the inputs of a step."""
        queue = self._state.queue
        if may_start and queue.waiting:
            wait = self.wait_seconds(now)
            if wait > 0:
                self._state.wake_by(now + wait)
            while wait <= 0 and len(self._in_flight) < self._state.config.slots and (item := queue.take()) is not None:
                self._start(item, now)
        refusal = f"tasks cannot be handed on: {self._refusal}; trying again" if self._refusal else ""
        loss = f"tasks are lost again and again: {self._loss}" if self._loss and self._losses.failing else ""
        reason = "; ".join(filter(None, (self._executor_reason, refusal, loss)))
        if reason != self._reason:
            self._reason = reason
            self._state.commands.append(ShowDegradedReason(reason))

    def wait_seconds(self, now: float) -> float:
        """Return how long to start no calls."""
        refusal = self._refusals.wait_seconds(now)
        if self._state.queue.added > self._added_at_refusal:
            refusal = min(refusal, max(0.0, self._refused_at + NEW_TASKS_SECONDS - now))
        return max(refusal, self._losses.wait_seconds(now))

    def tick(self, _snapshots: Mapping[int, Snapshot], now: float, _may_start: bool) -> None:
        """Report calls that have run for a while, and end those that have run out of time."""
        started: list[bytes] = []
        while self._started and self._started[0][0] <= now:
            call = self._started.popleft()[1]
            if self._in_flight.get(call.item.id) is call:
                started.append(call.item.id)
        if started:
            self._state.send(Started(started))
        while self._limits and self._limits[0][0] <= now:
            call = heapq.heappop(self._limits)[2]
            if self._in_flight.get(call.item.id) is call:
                limit = call.item.spec.limit_seconds
                text = f"the task ran longer than its time limit of {limit:g} s and was ended"
                self._end(call, KillReason(Outcome.TIMED_OUT, text))
        self._wake_for_started()

    def statuses(self, _snapshots: Mapping[int, Snapshot], now: float) -> dict[int, ProcessorStatus]:
        """Return the oldest calls as processors that run them: their use of resources is not known here."""
        return {
            call.number: ProcessorStatus(
                pid=0,
                cpu_percent=0.0,
                rss_bytes=0,
                initialized=call.started_at is not None,
                suspended=False,
                running=call.item.id,
                running_seconds=now - (call.dispatched_at if call.started_at is None else call.started_at),
            )
            for call in islice(self._in_flight.values(), MAX_STATUSES)
        }

    def check(self) -> None:
        """Assert the invariants that this module's head states."""
        queue = self._state.queue
        assert len(queue.attempts) == queue.waiting + len(self._in_flight) + len(self._arriving)
        assert all(queue.holds(call.item) for call in self._in_flight.values())
        assert all(queue.holds(item) for item in self._arriving.values())
        assert len(self._in_flight) <= self._state.config.slots

    # -- calls -----------------------------------------------------------------------------------------------------

    def _start(self, item: Attempt, now: float) -> None:
        spec = item.spec
        payloads = [self._state.specs.functions.get(identifier, b"") for identifier in spec.functions]
        if not all(payloads):
            self._state.killed(item, Outcome.OBJECT_LOST, "the task's function is not known to the worker")
            return
        self._count += 1
        item.executor = self._count
        self._in_flight[item.id] = CallInFlight(self._count, item, now)
        wire = spec.wire
        call = Call(
            task=item.id,
            attempt=item.attempt,
            function=payloads[0],
            arguments=item.payload,
            inputs=item.inputs,
            serializer=payloads[1] if len(payloads) > 1 else b"",
            retry_on=wire.retry_on,
            name=wire.name,
            profiling=wire.profiling,
            stream_output=wire.stream_output,
            limit_seconds=spec.limit_seconds,
            once=wire.retries == 0,
            preload=self._state.config.preload or "",
        )
        self._state.commands.append(StartCall(self._count, call))

    def _find(self, key: CallKey) -> CallInFlight | None:
        call = self._in_flight.get(key[0])
        return call if call is not None and call.item.attempt == key[1] else None

    def _refused(self, keys: Iterable[CallKey], text: str, now: float) -> None:
        """The executor did not take these, and may do so later."""
        back = [call.item for key in keys if (call := self._find(key)) is not None]
        self._refusals.failed(text, now, _jitter(back[0].id if back else b""))
        self._refusal = text
        self._refused_at = now
        self._added_at_refusal = self._state.queue.added
        for item in back:
            del self._in_flight[item.id]
        self._state.queue.put_back(back)

    def _call_started(self, call: CallInFlight, now: float) -> None:
        """A call runs; its time limit counts from now."""
        call.started_at = now
        self._started.append((now + STARTED_AFTER_SECONDS, call))
        limit = call.item.spec.limit_seconds
        if limit:
            heapq.heappush(self._limits, (now + limit, call.number, call))
        self._wake_for_started()

    def _wake_for_started(self) -> None:
        if self._started:
            self._state.wake_by(self._started[0][0])
        if self._limits:
            self._state.wake_by(self._limits[0][0])

    def _end(self, call: CallInFlight, reason: KillReason) -> None:
        """Have a call ended, and report that at once: what the executor still reports of it is dropped."""
        item = call.item
        del self._in_flight[item.id]
        self._state.commands.append(CancelCall(call.number, (item.id, item.attempt)))
        if reason.outcome is not None:
            self._state.killed(item, reason.outcome, reason.text)


def _jitter(task: bytes) -> float:
    """Return a number from 0 up to 1 that differs between tasks: it spreads the next tries of many agents."""
    return zlib.crc32(task) / 2**32
