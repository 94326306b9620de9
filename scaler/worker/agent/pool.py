"""Executor that runs attempts in a host's processors. Pure.

An attempt is queued or dispatched to one processor, which runs its attempts in order. Unread attempts can be reclaimed
at any time without the processor's cooperation. Therefore only the running attempt is charged for a processor's death,
and no unstarted attempt is lost or started twice. A recall, a time limit, or a lost scheduler only marks attempts. The
marks take effect when `TasksReclaimed` arrives with the latest results.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Mapping
from itertools import islice
from operator import attrgetter
from typing import Any

from scaler.config.worker import WorkerConfig
from scaler.protocol.messages import STARTED_AFTER_SECONDS, Outcome, Started
from scaler.worker.agent import events as e
from scaler.worker.agent.base import Status
from scaler.worker.agent.processor_table import ProcessorTable
from scaler.worker.agent.state import (
    CANCELLED,
    DISPATCH_AHEAD_US,
    MAX_DISPATCHED,
    PREEMPTED,
    RECALLED,
    WEIGHT,
    Attempt,
    KillReason,
    KnownSpec,
    PooledProcessor,
    ProcessorState,
    micros,
)
from scaler.worker.frames import Results, Snapshot, ToProcessor, pack, skip_rows

BUSY_TICK_SECONDS = 0.01
LATE_RESULT_SECONDS = 0.005
"""Read a processor's unsent results from its page once the next task has run for this many seconds."""
SHARE_AFTER_SECONDS = 0.01
"""Move tasks queued behind a running task to an idle processor after this many seconds."""
SPARE_SECONDS = 10.0
UNREAD_SECONDS = 5.0
"""Replace a processor that has tasks but neither runs nor reads one for this many seconds."""
MAX_NAMES = 256
_MAX_OUTCOME = Outcome.OBJECT_LOST
_INPUT_MISSING = Outcome.INPUT_MISSING
_RAISED = Outcome.EXCEPTION_TO_RETRY
_WORK_OF = attrgetter("work_us")


class ProcessorPool(ProcessorTable):
    def __init__(self, config: WorkerConfig, now: float) -> None:
        super().__init__(config, now)
        self._ticked_at, self._max_tasks = now, config.max_tasks_per_processor or sys.maxsize
        self._times_us: dict[str, list[float]] = {}
        """Mean durations of a processor's first and later tasks with a name, by name."""

    # -- inputs -------------------------------------------------------------------------------------------------------

    def take(self, item: e.ProcessorInput, now: float) -> None:
        """Handle an input. Reports about released processors are dropped."""
        if isinstance(item, e.MemoryExceeded):
            self._limit_memory(*item)
            return
        if isinstance(item, e.EnvironmentChanged):
            self._changed(item, now)
            return
        processor = self.processors.get(item.number)
        if processor is None:
            return
        match item:
            case e.ResultsReceived(_, results):
                self._take_results(processor, results, True, now)
            case e.TasksReclaimed():
                self._reclaimed(processor, item, now)
            case e.ProcessorReported(_, event, text):
                self._reported(processor, event, text, now)

    def _reported(self, processor: PooledProcessor, event: e.ProcessorEvent, text: str, now: float) -> None:
        state = processor.state
        match event:
            case e.ProcessorEvent.READY:
                self._has_started(processor)
            case e.ProcessorEvent.BLOCKED:
                if state is ProcessorState.ACTIVE:
                    self._suspend(processor, now)
            case e.ProcessorEvent.UNBLOCKED:
                if state is ProcessorState.SUSPENDED:
                    self._enter(processor, ProcessorState.WAITING, now)
                elif state is ProcessorState.ACTIVE:
                    self._act(processor, e.ProcessorVerb.GRANT)
            case e.ProcessorEvent.WORN:
                self.log(f"processor {processor.number} is replaced: {text}", level="info")
                self._wear_out(processor, now)
            case e.ProcessorEvent.WAITS:
                processor.waits_for = text
            case e.ProcessorEvent.INVALID_DATAGRAM:
                self._ban(processor, text)
            case e.ProcessorEvent.EXITED:
                self._exited(processor, Outcome.PROCESSOR_DIED, text, now)
            case e.ProcessorEvent.OUT_OF_MEMORY:
                self.memory_kills += 1
                self._exited(processor, Outcome.OUT_OF_MEMORY, text, now)

    def reclaim(self) -> None:
        for processor in self.processors.values():
            self._reclaim(processor)

    def close(self) -> None:
        for processor in self.processors.values():
            dispatched = processor.dispatched
            begun = [dispatched.popleft()] if dispatched and processor.snapshot.begun > processor.results else []
            self.queue.put_back(dispatched)
            processor.dispatched = deque(begun)
        super().close()

    def forget_all(self) -> str:
        for processor in self.processors.values():
            if processor.dispatched:
                processor.dispatched.clear()
                self._kill(processor, CANCELLED)
            elif processor.state is not ProcessorState.ENDING:
                self._forget(processor, processor.specs, processor.functions)
        return super().forget_all()

    def _forgotten(self, specs: list[KnownSpec], functions: set[bytes]) -> None:
        numbers = {spec.number for spec in specs}
        for processor in self.processors.values():
            # The processor may run earlier tasks before it reads this message, so the specs of those tasks remain
            # announced.
            stale = numbers & processor.specs - {item.spec.number for item in processor.dispatched}
            self._forget(processor, stale, processor.functions & functions)

    def storage_moved(self) -> None:
        for processor in self.processors.values():
            self._announce(processor, ToProcessor.STORAGE, self.storage_address, self.object_storage_address)

    # -- once per step ---------------------------------------------------------------------------------------------

    def settle(self, now: float, may_start: bool) -> None:
        if not self._slots_are_settled:
            self._assign_slots(now)
        if may_start:
            if self.queue.waiting:
                self._dispatch(now)
                self.wake_at = min(self.wake_at, now + BUSY_TICK_SECONDS)
            elif self._slots > 1 and self._stuck():
                self.wake_by(now + BUSY_TICK_SECONDS)

    def tick(self, snapshots: Mapping[int, Snapshot], now: float, may_start: bool) -> None:
        has_stalled, self._ticked_at = now - self._ticked_at > UNREAD_SECONDS / 2, now
        for processor in list(self.processors.values()):
            if processor.kill_at <= now:
                self._kill(processor, PREEMPTED)
            elif processor.state is not ProcessorState.ENDING:
                self.wake_by(processor.kill_at)
            if now < processor.rests_until:
                self.wake_by(processor.rests_until)
                continue
            processor.snapshot = snapshots.get(processor.number, processor.snapshot)
            if processor.dispatched and not has_stalled:  # after a stall of the agent, results may be unread
                self._watch(processor, now)
            else:
                processor.progress_at = now
            if not processor.is_ready and self.config.preload is not None:
                self._watch_preload(processor, self.config.preload, now)
            is_spare = processor.state is ProcessorState.SPARE and now - processor.since > SPARE_SECONDS
            if is_spare and len(self._in_state(ProcessorState.SPARE)) > self._successors:
                self._retire(processor, now)
        if may_start and self._slots > 1 and not self.queue.waiting:
            stuck = [each for each in self._stuck() if self._may_share(each, now)]
            if stuck:
                self._reclaim(max(stuck, key=_WORK_OF))

    @property
    def queued(self) -> int:
        return self.queue.waiting + sum(max(0, len(each.dispatched) - 1) for each in self.processors.values())

    def statuses(self, snapshots: Mapping[int, Snapshot], now: float) -> dict[int, Status]:
        found: dict[int, Status] = {}
        for number, snapshot in snapshots.items():
            processor = self.processors[number]
            is_suspended = processor.state in (ProcessorState.SUSPENDED, ProcessorState.WAITING)
            reported = max(0, snapshot.finished - processor.results)
            item = next(islice(processor.dispatched, reported, None), None)
            if snapshot.begun > snapshot.finished and item is not None:
                running, seconds = item.id, max(0.0, now - snapshot.begun_at)
            else:
                running, seconds = b"", 0.0
            found[number] = processor.is_ready, is_suspended, running, seconds, processor.lane, processor.waits_for
        return found

    def resting(self, now: float) -> set[int]:
        return {each.number for each in self.processors.values() if now < each.rests_until}

    # -- dispatch --------------------------------------------------------------------------------------------------

    def _dispatch(self, now: float) -> None:
        free = [
            each
            for each in self.processors.values()
            if each.state is ProcessorState.ACTIVE
            and each.is_ready
            and not (each.is_yielding or each.is_reclaiming)
            and _has_capacity(each)
        ]
        queue = self.queue
        # Reserve half of max_suspended_tasks for nested tasks, because their parents cannot finish without them.
        crowd = self.config.max_suspended_tasks // 2
        is_crowded = len(self.processors) > crowd and len(self._in_state(ProcessorState.SUSPENDED)) > crowd
        starting = self._starting() if self.environments else None
        held: list[Attempt] = []
        sent: dict[int, e.DispatchTasks] = {}
        while free and queue.waiting:
            item = queue.take_nested() if is_crowded else queue.take()
            if item is None:
                break
            if starting is None:
                processor = free[0] if len(free) == 1 else min(free, key=_WORK_OF)
            elif chosen := self._choose(item, free, starting, now):
                processor = chosen
            else:
                held.append(item)
                continue
            spec = item.spec
            if spec.near:
                processor = self._nearest(spec.near, processor, free, now)
            number = processor.number
            command = sent.get(number)
            if command is None:
                command = sent[number] = e.DispatchTasks(number, [], [])
                self.commands.append(command)
            if spec.number not in processor.specs and not self._introduce(processor, spec, command.announcements):
                self.killed(item, Outcome.OBJECT_LOST, "the task's function is unknown to its worker")
                continue
            item.cost_us = spec.mean_us or 1.0  # at least 1, so that tasks without a duration are also spread
            values: tuple[Any, ...]
            values = ToProcessor.TASK, item.attempt, spec.number, item.id, item.payload, item.inputs
            if item.devices:
                gpus = (self.config.gpus[index] for index in item.devices if index < len(self.config.gpus))
                values = ToProcessor.GPU_TASK, *values[1:], ",".join(gpus)
            command.tasks.append(pack(*values))
            item.executor = number
            processor.work_us += item.cost_us
            processor.dispatched.append(item)
            if processor.results + len(processor.dispatched) >= self._max_tasks:
                self._wear_out(processor, now)
            if not _has_capacity(processor) and processor in free:
                free.remove(processor)
        if held:
            queue.put_back(held)

    def _nearest(
        self, near: str, processor: PooledProcessor, free: list[PooledProcessor], now: float
    ) -> PooledProcessor:
        """Return the processor expected to finish a task with this name soonest, and record the name."""
        here = [each for each in free if each.environment == processor.environment]
        usual = min(here, key=lambda each: (each.work_us, len(each.names)))
        known = (each for each in self.processors.values() if near in each.names and each.may_take())
        own = (each for each in known if each.environment == processor.environment)
        chosen = min(own, key=lambda each: each.left_us(now), default=usual)
        if chosen.left_us(now) > usual.left_us(now) + self._gain_us(near):
            chosen = usual
        chosen.names[near] = chosen.names.pop(near, False)
        if len(chosen.names) > MAX_NAMES:
            del chosen.names[next(iter(chosen.names))]
        return chosen

    def _gain_us(self, near: str) -> float:
        first, later = self._times_us.get(near, (0.0, 0.0))
        return max(0.0, first - later) if later else 0.0

    def _was_first(self, processor: PooledProcessor, near: str, duration_us: float) -> bool:
        """Record the duration of a task. Returns whether it was the processor's first task with this name."""
        has_run = processor.names.get(near, True)
        times = self._times_us[near] = self._times_us.pop(near, [0.0, 0.0])
        times[has_run] += (duration_us - times[has_run]) * (WEIGHT if times[has_run] else 1)
        if len(self._times_us) > MAX_NAMES * self._slots:
            del self._times_us[next(iter(self._times_us))]
        if not has_run:
            processor.names[near] = True
        return not has_run

    def _may_share(self, processor: PooledProcessor, now: float) -> bool:
        """Return whether tasks behind a running task may go to an idle processor."""
        gain_seconds = self._gain_us(processor.dispatched[1].spec.near) / 1e6
        return processor.running_seconds(now) > max(SHARE_AFTER_SECONDS, gain_seconds)

    def _introduce(self, processor: PooledProcessor, spec: KnownSpec, announcements: list[bytes]) -> bool:
        payloads = self.functions
        if not all(identifier in payloads for identifier in spec.wire.registered):
            return False
        for identifier in spec.wire.registered:
            if identifier not in processor.functions:
                announcements.append(pack(ToProcessor.DEFINITION, identifier, payloads[identifier]))
                processor.functions.add(identifier)
        wire = spec.wire
        values = wire.function, wire.serializer, wire.code, wire.retry_on, wire.name, wire.profiling, wire.stream_output
        announcements.append(
            pack(ToProcessor.SPEC, spec.number, *values, wire.retries == 0, wire.packages, wire.context)
        )
        processor.specs.add(spec.number)
        return True

    def _stuck(self) -> list[PooledProcessor]:
        """Return processors with tasks behind their running task, if another processor is idle."""
        is_idle = False
        stuck = []
        for each in self.processors.values():
            if each.state is ProcessorState.ACTIVE and not each.is_yielding:
                is_idle = is_idle or (each.is_ready and not each.dispatched)
                if len(each.dispatched) > 1:
                    stuck.append(each)
        return stuck if is_idle else []

    # -- completion ------------------------------------------------------------------------------------------------

    def _take_results(self, processor: PooledProcessor, results: Results, sent: bool, now: float) -> None:
        """Handle results. sent: received as a message, not just read from the page."""
        # The head of a batch may have been read from the page.
        taken = processor.rows_taken if results.batch == processor.batch else 0
        processor.batch, processor.rows_taken = results.batch, 2**32 if sent else max(taken, len(results.rows))
        if taken:
            results = skip_rows(results, taken)
        dispatched = processor.dispatched
        payloads = results.payloads
        lane = processor.lane
        at = 0
        for row in results.rows:
            identifier, attempt, outcome, _, duration_us, cpu_us, peak_bytes, began_ns, *counts, size = row
            if (
                not dispatched
                or dispatched[0].id != identifier
                or dispatched[0].attempt != attempt
                or (outcome > _MAX_OUTCOME and outcome != _INPUT_MISSING)
            ):
                self._ban(processor, "it reported a task that it does not have")
                return
            item = dispatched.popleft()
            processor.work_us -= item.cost_us
            processor.results += 1
            payload = bytes(payloads[at : at + size])
            at += size
            spec = item.spec
            if not (spec.near and not outcome and self._was_first(processor, spec.near, duration_us)):
                spec.mean_us += (WEIGHT if spec.is_measured else 1.0) * (duration_us - spec.mean_us)
                spec.is_measured = True
            processor.ended.add(spec)
            ran = began_ns // 1000, lane, *counts
            if outcome and processor.kill_reason is PREEMPTED and outcome <= _RAISED:
                # SIGTERM has most likely caused the exception.
                self.killed(item, *PREEMPTED, duration_us, began_ns // 1000, lane)
                continue
            self.ended(item, outcome, payload, duration_us, cpu_us, peak_bytes, ran)
        if not dispatched:
            processor.work_us = 0.0
            processor.since = now
            if processor.is_worn:
                self._slots_are_settled = False

    def _reclaimed(self, processor: PooledProcessor, answer: e.TasksReclaimed, now: float) -> None:
        """Put unread attempts back at the head of the queue, and apply pending requests to all other attempts."""
        processor.is_reclaiming = False
        processor.snapshot = answer.snapshot
        # Before taking the results, which may include a task that was read during the reclaim.
        unread = set(answer.unread)
        back = [item for item in processor.dispatched if item.id in unread]
        if back:
            processor.dispatched = deque(item for item in processor.dispatched if item.id not in unread)
            processor.work_us = sum(item.cost_us for item in processor.dispatched)
        for results, sent in answer.results:
            self._take_results(processor, results, sent, now)
        recalled = [item for item in back if item.request in (RECALLED, CANCELLED, PREEMPTED)]
        self.queue.put_back(back)
        self.give_back(recalled)
        for item in processor.dispatched:
            if item.request is RECALLED:
                self.returned([item], started=True)
                item.request = None
            elif item.request is PREEMPTED:
                self._preempt(processor, item.spec.wire.preemptible, now)
            elif item.request is not None:
                self._kill(processor, item.request)

    def _exited(self, processor: PooledProcessor, outcome: Outcome, text: str, now: float) -> None:
        """Handle a processor's exit, after its last results and unread attempts. outcome: for the running attempt."""
        dispatched = processor.dispatched
        has_begun = processor.snapshot.begun > processor.results
        is_expected = processor.state is ProcessorState.ENDING or processor.kill_reason is PREEMPTED
        if not is_expected and processor.is_worn and not has_begun:
            self.processors_replaced += 1  # the processor exited because it must not run another task
        elif not is_expected and not processor.is_ready:
            self._count_failed_start(processor, text, now)
        elif not is_expected:
            task = processor.first_task if has_begun else b""
            what = f"while it ran task {task.hex()}" if task else "while it was idle"
            self.log(f"processor {processor.number} died {what}: {text}", task)
        died = KillReason(outcome, f"the processor that ran the task died: {text}")
        reason = processor.kill_reason or died
        # The processor may have been killed between reading and starting a task. A cancelled or preempted task always
        # ends.
        if dispatched and (has_begun or reason.outcome is Outcome.CANCELLED or reason is PREEMPTED):
            began_us = micros(processor.snapshot.begun_at)
            ran = (max(0, micros(now) - began_us), began_us, processor.lane) if has_begun else ()
            self.killed(dispatched.popleft(), *reason, *ran)
        self.queue.put_back(dispatched)
        del self.processors[processor.number]
        self.free_lane(processor.lane)
        self._slots_are_settled = False

    def _watch(self, processor: PooledProcessor, now: float) -> None:
        snapshot = processor.snapshot
        if snapshot.begun <= processor.results or snapshot.begun <= snapshot.finished:
            if now - max(processor.progress_at, snapshot.begun_at) > UNREAD_SECONDS:
                text = f"it read no task for {UNREAD_SECONDS:g} s; a task may have closed its descriptors"
                self._ban(processor, text)
            self.wake_by(now + BUSY_TICK_SECONDS)
            return
        processor.progress_at = now
        elapsed = now - snapshot.begun_at
        item = processor.dispatched[0]
        limit = item.spec.limit_seconds
        pause = max(BUSY_TICK_SECONDS, elapsed * 0.1) if len(processor.dispatched) > 1 else float("inf")
        if snapshot.finished > processor.results:
            if elapsed > LATE_RESULT_SECONDS:
                self._reclaim(processor)
            pause = BUSY_TICK_SECONDS
        elif limit and elapsed >= limit:
            self.time_out(item)
            pause = BUSY_TICK_SECONDS
        elif elapsed >= STARTED_AFTER_SECONDS and not item.announced_started:
            item.announced_started = True
            self.send(Started([item.id], [micros(snapshot.begun_at)], [processor.lane]))
        if limit:
            pause = min(pause, max(limit - elapsed, 0.0) + 0.001)
        if elapsed < STARTED_AFTER_SECONDS:
            pause = min(pause, STARTED_AFTER_SECONDS - elapsed + 0.001)
        if processor.state is ProcessorState.SUSPENDED:
            processor.rests_until = now + pause
        self.wake_by(now + pause)


def _has_capacity(processor: PooledProcessor) -> bool:
    dispatched = processor.dispatched
    if len(dispatched) < 2 or processor.is_worn:
        return not processor.is_worn
    return len(dispatched) < MAX_DISPATCHED and processor.work_us - dispatched[0].cost_us < DISPATCH_AHEAD_US
