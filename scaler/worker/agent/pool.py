"""Processors as the executor of an agent: which of them hold slots, and which attempt each works on. Pure.

An attempt is in the queue, or dispatched to one processor, which works through its attempts in order. What it has not
read can be reclaimed at any time, without its co-operation. So only the attempt that was running is charged for a
death, and nothing that has not started is ever lost or started twice. A recall, a time limit or a lost scheduler marks
the attempts concerned, and what becomes of them is decided when `TasksReclaimed` has come with the latest results.

A processor whose task waits for tasks of its own is *suspended* and lends its slot; when its wait is over it *waits*
for a slot, ahead of all new tasks. *Spare* processors hold none and are kept a while: nested tasks come in bursts.

Invariants: at most `slots` processors are active; only active ones are dispatched to.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain, islice
from operator import attrgetter
from typing import Any

from scaler.config.worker import WorkerConfig
from scaler.grammar import counted
from scaler.protocol.messages import STARTED_AFTER_SECONDS, Outcome, Started, Suspended
from scaler.worker.agent import events as e
from scaler.worker.agent.limits import ContainerMemory, MemoryLimits
from scaler.worker.agent.state import CANCELLED, RECALLED, Attempt, ExecutorBase, KillReason, KnownSpec, Status, micros
from scaler.worker.frames import Results, Snapshot, ToProcessor, pack, skip_rows

LONG_PRELOAD_SECONDS = 30.0
"""A preload that takes longer is shown as what keeps tasks from running."""
MAX_FAILED_STARTS = 3
"""Processors that fail one after the other before they are ready; then the agent ends."""
DISPATCH_AHEAD_US = 10_000.0
"""Work that a processor has behind its running task, at most; but always one task."""
MAX_DISPATCHED = 256
BUSY_TICK_SECONDS = 0.01
LATE_RESULT_SECONDS = 0.005
"""Results that wait in a page behind a task that has run for this long are fetched."""
SHARE_AFTER_SECONDS = 0.01
"""When a processor idles, it gets the tasks behind one that has run for this long."""
SPARE_SECONDS = 10.0
UNREAD_SECONDS = 5.0
"""A processor that reads no task for this long, though it has some and runs none, is replaced."""
PAUSE_AFTER_SECONDS = 0.1
PAUSE_SECONDS = 1.0
"""How long a suspended processor is paused at a time: its own threads may have something to send."""
_MAX_OUTCOME = Outcome.OBJECT_LOST
_INPUT_MISSING = Outcome.INPUT_MISSING
_IDLE = Snapshot(0, 0.0, 0)
_WORK_OF = attrgetter("work_us")


class ProcessorState(Enum):
    ACTIVE = "active"
    SPARE = "spare"
    SUSPENDED = "suspended"
    WAITING = "waiting"
    ENDING = "ending"
    """Asked to end, or killed; its exit has not been seen."""


_WITHOUT_TASK = (ProcessorState.ACTIVE, ProcessorState.SPARE)
"""States in which a processor may have none."""


@dataclass(slots=True, eq=False)
class PooledProcessor:
    """One processor as its agent knows it."""

    number: int
    since: float
    lane: int
    """Its place in the worker's timeline: no other living processor has the same."""
    state: ProcessorState = ProcessorState.ACTIVE
    is_ready: bool = False
    made_at: float = 0.0
    dispatched: deque[Attempt] = field(default_factory=deque)
    """Attempts without a result yet, in order: it works through them one by one."""
    work_us: float = 0.0
    results: int = 0
    snapshot: Snapshot = _IDLE
    specs: set[int] = field(default_factory=set)
    functions: set[bytes] = field(default_factory=set)
    ended: set[KnownSpec] = field(default_factory=set)
    """Specs of tasks that have ended since the last sample of its memory."""
    kill_reason: KillReason | None = None
    is_worn: bool = False
    """It gets no more tasks, and is replaced when it has ended those that it has."""
    is_yielding: bool = False
    """It gives its slot to a waiting one after the task that it runs."""
    is_paused: bool = False
    waits_for: str = ""
    """What its running task waits for besides tasks of its own; empty: nothing."""
    is_reclaiming: bool = False
    rests_until: float = 0.0
    """Until then its task waits, and there is nothing to watch."""
    progress_at: float = 0.0
    """When it was last seen to have nothing to read, or to have read a task."""
    batch: int = -1
    """The batch of results that was read last, and how many of its rows."""
    rows_taken: int = 0

    @property
    def runs(self) -> Iterator[Attempt]:
        """Yield what it has without a result yet, in the order in which it does it."""
        return chain.from_iterable(item.run() for item in self.dispatched)

    def running_seconds(self, now: float) -> float:
        """Return how long the task that it runs has run; 0 when it runs none whose result is not here."""
        return now - self.snapshot.begun_at if self.snapshot.begun > self.results else 0.0

    def has_capacity(self) -> bool:
        dispatched = self.dispatched
        count = len(dispatched)
        if self.is_worn:
            return False
        if count < 2:
            return True
        return count < MAX_DISPATCHED and self.work_us - dispatched[0].cost_us < DISPATCH_AHEAD_US

    def new_rows(self, results: Results, sent: bool) -> Results:
        """Return the new rows of a batch, whose first rows may be known from the page. sent: it is complete."""
        taken = self.rows_taken if results.batch == self.batch else 0
        self.batch = results.batch
        self.rows_taken = 2**32 if sent else max(taken, len(results.rows))
        return skip_rows(results, taken) if taken else results


class ProcessorPool(ExecutorBase):
    """All processors of an agent, and its slots."""

    def __init__(self, config: WorkerConfig, now: float) -> None:
        super().__init__(config, now)
        self._slots = config.slots
        self._count = 0
        self._failed_starts = 0
        self._slots_are_settled = False
        """All slots are taken and no processor waits for one, and no state has changed since."""
        self.processors: dict[int, PooledProcessor] = {}
        self._memory_limits = MemoryLimits.of(config)
        self._max_tasks = config.max_tasks_per_processor or sys.maxsize

    # -- what happened ---------------------------------------------------------------------------------------------

    def take(self, item: e.ProcessorInput, now: float) -> None:
        """Take in what a processor did. Reports about processors that are gone are dropped."""
        if isinstance(item, e.MemoryMeasured):
            self._limit_memory(*item)
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
                processor.is_ready = True
                self._failed_starts = 0
                self.show_degraded("")
            case e.ProcessorEvent.FAILED:
                self._enter(processor, ProcessorState.ENDING, processor.since)
                self._count_failed_start(text)
            case e.ProcessorEvent.BLOCKED:
                if state is ProcessorState.ACTIVE:
                    self._suspend(processor, now)
            case e.ProcessorEvent.UNBLOCKED:
                if state is ProcessorState.SUSPENDED:
                    self._enter(processor, ProcessorState.WAITING, now)
                elif state is ProcessorState.ACTIVE:
                    self._act(processor, e.ProcessorVerb.GRANT)
            case e.ProcessorEvent.NESTED_TRAFFIC:
                if state is ProcessorState.SUSPENDED:
                    processor.since = now
                    self._pause(processor, False)
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

    def end(self, items: Iterable[Attempt], reason: KillReason) -> None:
        """Give dispatched attempts back, or end them, as the reason says."""
        for item in items:
            item.request = reason
            self._reclaim(self.processors[item.executor])

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

    def suspended(self) -> set[bytes]:
        lent = (ProcessorState.SUSPENDED, ProcessorState.WAITING)
        return {each.dispatched[0].id for each in self.processors.values() if each.state in lent and each.dispatched}

    def _forgotten(self, specs: list[KnownSpec], functions: set[bytes]) -> None:
        numbers = {spec.number for spec in specs}
        for processor in self.processors.values():
            # What is dispatched may be run after this is read, so it stays known; the few bytes are not worth more.
            stale = numbers & processor.specs - {item.spec.number for item in processor.runs}
            self._forget(processor, stale, processor.functions & functions)

    def storage_moved(self) -> None:
        """Announce to all processors where the store of this host and the object storage are."""
        for processor in self.processors.values():
            self._announce(processor, ToProcessor.STORAGE, self.storage_address, self.object_storage_address)

    # -- once per step ---------------------------------------------------------------------------------------------

    def settle(self, now: float, may_start: bool) -> None:
        """Bring slots, processors and attempts together: once after the inputs of a step."""
        if not self._slots_are_settled:
            self._assign_slots(now)
        if may_start:
            if self.queue.waiting:
                self._dispatch(now)
                self.wake_by(now + BUSY_TICK_SECONDS)
            elif self._slots > 1 and self._stuck():
                self.wake_by(now + BUSY_TICK_SECONDS)

    def tick(self, snapshots: Mapping[int, Snapshot], now: float, may_start: bool) -> None:
        for processor in list(self.processors.values()):
            if now < processor.rests_until:
                self.wake_by(processor.rests_until)
                continue
            processor.snapshot = snapshots.get(processor.number, processor.snapshot)
            if processor.dispatched:
                self._watch(processor, now)
            else:
                processor.progress_at = now
            if not processor.is_ready and self.config.preload is not None:
                self._watch_preload(processor, self.config.preload, now)
            if processor.state is ProcessorState.SPARE and now - processor.since > SPARE_SECONDS:
                if len(self._in_state(ProcessorState.SPARE)) > self._successors:
                    self._retire(processor, now)
            elif processor.state is ProcessorState.SUSPENDED and self.config.hard_processor_suspend:
                if now - processor.since > (PAUSE_SECONDS if processor.is_paused else PAUSE_AFTER_SECONDS):
                    processor.since = now
                    self._pause(processor, not processor.is_paused)
                self.wake_by(now + PAUSE_AFTER_SECONDS)
        if may_start and self._slots > 1 and not self.queue.waiting:
            stuck = [each for each in self._stuck() if each.running_seconds(now) > SHARE_AFTER_SECONDS]
            if stuck:
                self._reclaim(max(stuck, key=_WORK_OF))

    @property
    def extra_capacity(self) -> int:
        """Attempts that may be here beyond slots and queue: suspended ones take no slot."""
        return len(self._in_state(ProcessorState.SUSPENDED))

    @property
    def unstarted(self) -> int:
        """Dispatched attempts that have not started, as far as is known without asking."""
        return sum(max(0, len(each.dispatched) - 1) for each in self.processors.values())

    def statuses(self, snapshots: Mapping[int, Snapshot], now: float) -> dict[int, Status]:
        """Return what each processor that has a page does, by its number."""
        found: dict[int, Status] = {}
        for number, snapshot in snapshots.items():
            processor = self.processors[number]
            is_suspended = processor.state in (ProcessorState.SUSPENDED, ProcessorState.WAITING)
            reported = max(0, snapshot.finished - processor.results)
            item = next(islice(processor.runs, reported, None), None)
            if snapshot.begun > snapshot.finished and item is not None:
                running, seconds = item.id, max(0.0, now - snapshot.begun_at)
            else:
                running, seconds = b"", 0.0
            found[number] = processor.is_ready, is_suspended, running, seconds, processor.lane, processor.waits_for
        return found

    def is_suspended(self, number: int) -> bool:
        """Return True while the task of a processor waits for tasks of its own."""
        processor = self.processors.get(number)
        return processor is not None and processor.state is ProcessorState.SUSPENDED

    def resting(self, now: float) -> set[int]:
        return {each.number for each in self.processors.values() if now < each.rests_until}

    def take_functions(self, number: int, snapshot: Snapshot) -> tuple[str, set[str]]:
        """Return the function that a processor runs, or "", and the functions that ended there since the last call."""
        processor = self.processors.get(number)
        if processor is None:
            return "", set()
        reported = max(0, snapshot.finished - processor.results)
        dispatched = list(islice(processor.runs, reported + 1))
        processor.ended.update(item.spec for item in dispatched[:reported])
        ended, processor.ended = {spec.wire.name for spec in processor.ended}, set()
        is_running = snapshot.begun > snapshot.finished and len(dispatched) > reported
        return dispatched[reported].spec.wire.name if is_running else "", ended

    def check(self) -> None:
        queue = self.queue
        dispatched = [(item, each) for each in self.processors.values() for item in each.dispatched]
        assert len(queue.attempts) == queue.waiting + len(dispatched)
        assert all(queue.attempts[item.id] is item and item.executor == each.number for item, each in dispatched)
        assert len(self._in_state(ProcessorState.ACTIVE)) <= self._slots

    # -- slots -----------------------------------------------------------------------------------------------------

    def _assign_slots(self, now: float) -> None:
        """Hand out free slots: to processors that wait for one, to spare ones, to new ones."""
        for processor in list(self.processors.values()):
            if processor.is_worn and not processor.dispatched and processor.state in _WITHOUT_TASK:
                self._retire(processor, now)
                self.processors_replaced += 1
        active = self._in_state(ProcessorState.ACTIVE)
        waiting = self._in_state(ProcessorState.WAITING)
        waiting.sort(key=lambda each: each.since)
        for processor in sorted(active, key=lambda each: each.is_ready):
            if waiting and not processor.dispatched and len(active) + len(waiting) > self._slots:
                self._enter(processor, ProcessorState.SPARE, now)
                active.remove(processor)
        while len(active) < self._slots:
            if waiting:
                processor = waiting.pop(0)
                self._act(processor, e.ProcessorVerb.GRANT)
                self._report_suspended(processor, False)
            elif spares := self._in_state(ProcessorState.SPARE):
                processor = max(spares, key=lambda each: each.since)
            elif not self.broken and (self.queue.waiting or not self._in_state(ProcessorState.SUSPENDED)):
                processor = self._spawn(now)
            else:
                break
            self._enter(processor, ProcessorState.ACTIVE, now)
            active.append(processor)
        yielding = sorted(active, key=lambda each: len(each.dispatched))[: len(waiting)]
        for processor in active:  # a waiting one that another made room for may have died
            should_yield = processor in yielding
            if should_yield and not processor.is_yielding:
                self._reclaim(processor)
            processor.is_yielding = should_yield
        self._slots_are_settled = len(active) == self._slots and not waiting

    @property
    def _successors(self) -> int:
        """How many spare processors take the place of worn ones: they get ready while those end their tasks."""
        return sum(each.is_worn for each in self._in_state(ProcessorState.ACTIVE))

    def _wear_out(self, processor: PooledProcessor, now: float) -> None:
        """Replace a processor when it has ended its tasks, and fork the next one meanwhile."""
        if not processor.is_worn:
            processor.is_worn = True
            self._slots_are_settled = False
            if len(self._in_state(ProcessorState.SPARE)) < self._successors:
                self._enter(self._spawn(now), ProcessorState.SPARE, now)

    def _retire(self, processor: PooledProcessor, now: float) -> None:
        self._enter(processor, ProcessorState.ENDING, now)
        self._act(processor, e.ProcessorVerb.END)

    def _in_state(self, state: ProcessorState) -> list[PooledProcessor]:
        return [each for each in self.processors.values() if each.state is state]

    def _spawn(self, now: float) -> PooledProcessor:
        self._count += 1
        processor = self.processors[self._count] = PooledProcessor(
            self._count, now, self.take_lane(), made_at=now, progress_at=now
        )
        self._act(processor, e.ProcessorVerb.SPAWN)
        if self.storage_address:
            self._announce(processor, ToProcessor.STORAGE, self.storage_address, self.object_storage_address)
        return processor

    def _suspend(self, processor: PooledProcessor, now: float) -> None:
        """The running task of a processor waits for tasks of its own: lend its slot."""
        if len(self._in_state(ProcessorState.SUSPENDED)) >= self.config.max_suspended_tasks:
            # Without its slot, the tasks that it waits for might never run, nor those that all others here wait for.
            limit = f"max_suspended_tasks = {self.config.max_suspended_tasks}"
            text = f"the task waits for its own tasks, and as many of its worker as it may have do already: {limit}"
            self._kill(processor, KillReason(Outcome.REJECTED, text))
            return
        self._enter(processor, ProcessorState.SUSPENDED, now)
        processor.is_yielding = False
        self._report_suspended(processor, True)
        self._reclaim(processor)
        self.wake_by(now + PAUSE_AFTER_SECONDS)

    def _report_suspended(self, processor: PooledProcessor, suspended: bool) -> None:
        if processor.dispatched:
            item = processor.dispatched[0]
            self.send(Suspended([item.id], [item.attempt], [suspended]))

    def _pause(self, processor: PooledProcessor, paused: bool) -> None:
        if processor.is_paused is not paused:
            processor.is_paused = paused
            self._act(processor, e.ProcessorVerb.PAUSE if paused else e.ProcessorVerb.CONTINUE)

    def _enter(self, processor: PooledProcessor, state: ProcessorState, now: float) -> None:
        processor.state = state
        processor.since = now
        if processor.rests_until:
            processor.rests_until = 0.0
            processor.progress_at = now
        self._slots_are_settled = False

    def _act(self, processor: PooledProcessor, verb: e.ProcessorVerb) -> None:
        self.commands.append(e.ActOnProcessor(processor.number, verb))

    def _announce(self, processor: PooledProcessor, kind: int, *values: Any) -> None:
        self.commands.append(e.DispatchTasks(processor.number, [pack(kind, *values)], []))

    def _forget(self, processor: PooledProcessor, specs: set[int], functions: set[bytes]) -> None:
        if specs or functions:
            self._announce(processor, ToProcessor.FORGET, list(functions), list(specs))
            processor.specs -= specs
            processor.functions -= functions

    # -- dispatch --------------------------------------------------------------------------------------------------

    def _dispatch(self, now: float) -> None:
        """Send queued attempts to ready processors, as far ahead as is good."""
        free = [
            each
            for each in self.processors.values()
            if each.state is ProcessorState.ACTIVE
            and each.is_ready
            and not (each.is_yielding or each.is_reclaiming)
            and each.has_capacity()
        ]
        queue = self.queue
        # Half of what may be suspended is left to tasks of tasks: their parents could not end without them.
        crowd = self.config.max_suspended_tasks // 2
        is_crowded = len(self.processors) > crowd and len(self._in_state(ProcessorState.SUSPENDED)) > crowd
        sent: dict[int, e.DispatchTasks] = {}
        while free and queue.waiting:
            processor = free[0] if len(free) == 1 else min(free, key=_WORK_OF)
            item = queue.take_nested() if is_crowded else queue.take()
            if item is None:
                return
            spec = item.spec
            number = processor.number
            command = sent.get(number)
            if command is None:
                command = sent[number] = e.DispatchTasks(number, [], [])
                self.commands.append(command)
            if spec.number not in processor.specs and not self._introduce(processor, spec, command.announcements):
                self.killed(item, Outcome.OBJECT_LOST, "the task's function is not known to its worker")
                continue
            item.cost_us = spec.mean_us or 1.0  # so that what takes no time is spread, too
            if item.follower is not None:
                task = self._pack_run(processor, item, command.announcements)
            elif not item.devices:
                task = pack(ToProcessor.TASK, item.attempt, spec.number, item.id, item.payload, item.inputs)
            else:
                gpus = ",".join(self.config.gpus[index] for index in item.devices if index < len(self.config.gpus))
                values = item.attempt, spec.number, item.id, item.payload, item.inputs, gpus
                task = pack(ToProcessor.GPU_TASK, *values)
            command.tasks.append(task)
            item.executor = number
            processor.work_us += item.cost_us
            processor.dispatched.append(item)
            if processor.results + len(processor.dispatched) >= self._max_tasks:
                self._wear_out(processor, now)
            if not processor.has_capacity():
                free.remove(processor)

    def _pack_run(self, processor: PooledProcessor, first: Attempt, announcements: list[bytes]) -> bytes:
        """Return the datagram of an attempt and its followers; one that its processor cannot have waits here."""
        run = [first]
        item = first
        while (follower := item.follower) is not None:
            is_known = follower.spec.number in processor.specs or self._introduce(
                processor, follower.spec, announcements
            )
            item.is_sent_with_follower = is_known and self._max_tasks == sys.maxsize
            if not item.is_sent_with_follower:
                break
            run.append(follower)
            item = follower
        rows = [(each.attempt, each.spec.number, each.id, each.payload, each.inputs) for each in run]
        if len(rows) == 1:
            return pack(ToProcessor.TASK, *rows[0])
        cost_us = 0.0
        for each in reversed(run):  # what begins with it
            cost_us += each.spec.mean_us or 1.0
            each.cost_us = cost_us
        return pack(ToProcessor.RUN, rows)

    def _introduce(self, processor: PooledProcessor, spec: KnownSpec, announcements: list[bytes]) -> bool:
        """Announce a spec and its functions. Returns False if a function is not known here."""
        payloads = self.functions
        if not all(identifier in payloads for identifier in spec.functions):
            return False
        for identifier in spec.functions:
            if identifier not in processor.functions:
                announcements.append(pack(ToProcessor.DEFINITION, identifier, payloads[identifier]))
                processor.functions.add(identifier)
        wire = spec.wire
        values = wire.function, wire.serializer, wire.code, wire.retry_on, wire.name, wire.profiling, wire.stream_output
        announcements.append(pack(ToProcessor.SPEC, spec.number, *values, wire.retries == 0, wire.packages))
        processor.specs.add(spec.number)
        return True

    def _stuck(self) -> list[PooledProcessor]:
        """Return the processors with tasks behind the one that they run, if another idles."""
        is_idle = False
        stuck = []
        for each in self.processors.values():
            if each.state is ProcessorState.ACTIVE and not each.is_yielding:
                is_idle = is_idle or (each.is_ready and not each.dispatched)
                if len(each.dispatched) > 1:
                    stuck.append(each)
        return stuck if is_idle else []

    # -- completion ------------------------------------------------------------------------------------------------

    def _go_on(self, ended: Attempt, follower: Attempt, value: bytes) -> None:
        if ended.is_sent_with_follower:
            processor = self.processors[ended.executor]
            follower.fill(value)
            follower.executor = processor.number
            self.queue.attempts[follower.id] = follower
            processor.dispatched.appendleft(follower)
            processor.work_us += follower.cost_us
        else:
            super()._go_on(ended, follower, value)

    def _take_results(self, processor: PooledProcessor, results: Results, sent: bool, now: float) -> None:
        """Take in results. sent: they came as a message, and were not only read from the page."""
        results = processor.new_rows(results, sent)
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
            item.spec.observe(duration_us)
            processor.ended.add(item.spec)
            ran = began_ns // 1000, lane, *counts
            self.ended(item, outcome, payload, duration_us, cpu_us, peak_bytes, ran)
        if not dispatched:
            processor.work_us = 0.0
            processor.since = now
            if processor.is_worn:
                self._slots_are_settled = False

    def _reclaim(self, processor: PooledProcessor) -> None:
        if processor.dispatched and not processor.is_reclaiming:
            processor.is_reclaiming = True
            self._act(processor, e.ProcessorVerb.RECLAIM)

    def _reclaimed(self, processor: PooledProcessor, answer: e.TasksReclaimed, now: float) -> None:
        """Put what a processor has not read to the head of the queue, and settle what was asked of the rest."""
        processor.is_reclaiming = False
        processor.snapshot = answer.snapshot
        # Before the results: one of a task that was read while those before it were taken may be among them.
        unread = set(answer.unread)
        back = [item for item in processor.dispatched if item.id in unread]
        if back:
            processor.dispatched = deque(item for item in processor.dispatched if item.id not in unread)
            processor.work_us = sum(item.cost_us for item in processor.dispatched)
        for results, sent in answer.results:
            self._take_results(processor, results, sent, now)
        recalled = [item for item in back if item.request in (RECALLED, CANCELLED)]
        self.queue.put_back(back)
        self.give_back(recalled)
        for item in processor.dispatched:
            if item.request is RECALLED:
                self.returned([item], started=True)
                item.request = None
            elif item.request is not None:
                self._kill(processor, item.request)

    def _kill(self, processor: PooledProcessor, reason: KillReason) -> None:
        if processor.state is not ProcessorState.ENDING:
            processor.kill_reason = reason
            self._enter(processor, ProcessorState.ENDING, processor.since)
            self._act(processor, e.ProcessorVerb.KILL)

    def _ban(self, processor: PooledProcessor, text: str) -> None:
        """End a processor that breaks the protocol."""
        if processor.state is not ProcessorState.ENDING:
            task = processor.dispatched[0].id if processor.dispatched else b""
            self.log(f"processor {processor.number} is ended: {text}", task, "error")
            text = f"the processor that ran the task was ended: {text}"
            self._kill(processor, KillReason(Outcome.PROCESSOR_DIED, text))

    def _exited(self, processor: PooledProcessor, outcome: Outcome, text: str, now: float) -> None:
        """A processor is gone; its results and what it had not read were taken in before. outcome: of what it ran."""
        dispatched = processor.dispatched
        has_begun = processor.snapshot.begun > processor.results
        if processor.state is not ProcessorState.ENDING and processor.is_worn and not has_begun:
            self.processors_replaced += 1  # it has ended by itself: it must run no other task
        elif processor.state is not ProcessorState.ENDING:
            if not processor.is_ready:
                self._count_failed_start(text)
            task = dispatched[0].id if has_begun and dispatched else b""
            what = f"while it ran task {task.hex()}" if task else "while it was idle"
            self.log(f"processor {processor.number} died {what}: {text}", task)
        died = KillReason(outcome, f"the processor that ran the task died: {text}")
        reason = processor.kill_reason or died
        # It may have been killed between reading a task and beginning it; what was cancelled is over nevertheless.
        if dispatched and (has_begun or reason.outcome is Outcome.CANCELLED):
            began_us = micros(processor.snapshot.begun_at)
            ran = (max(0, micros(now) - began_us), began_us, processor.lane) if has_begun else ()
            self.killed(dispatched.popleft(), *reason, *ran)
        self.queue.put_back(dispatched)
        del self.processors[processor.number]
        self.free_lane(processor.lane)
        self._slots_are_settled = False
        self._act(processor, e.ProcessorVerb.RELEASE)

    def _limit_memory(self, usage: Mapping[int, int], container: ContainerMemory | None) -> None:
        """End what takes too much memory. A processor between tasks may be at fault, too: then no task is charged."""
        alive = {
            number: used
            for number, used in usage.items()
            if number in self.processors and self.processors[number].state is not ProcessorState.ENDING
        }
        for number, excess in self._memory_limits.excesses(alive, container).items():
            processor = self.processors[number]
            self.memory_kills += 1
            self.log(f"processor {number} is ended: {excess.text}", self._task_of(processor))
            text = f"the task was ended, because {excess.text}"
            self._kill(processor, KillReason(excess.outcome, text, excess.peak_bytes))

    @staticmethod
    def _task_of(processor: PooledProcessor) -> bytes:
        return processor.dispatched[0].id if processor.dispatched else b""

    def _count_failed_start(self, text: str) -> None:
        self._failed_starts += 1
        self.log(f"a processor could not start: {text}", level="error")
        if self._failed_starts >= MAX_FAILED_STARTS:
            self.broken = f"{counted(self._failed_starts, 'processor')} in a row could not start: {text}"

    def obstacle(self) -> str:
        preload = self.config.preload
        if self.degraded_reason or preload is None or any(each.is_ready for each in self.processors.values()):
            return self.degraded_reason
        return f"the preload {preload} has not returned yet"

    def _watch_preload(self, processor: PooledProcessor, preload: str, now: float) -> None:
        """Show a preload that takes long, and end it at its limit."""
        limit = self.config.preload_timeout_seconds
        elapsed = now - processor.made_at
        if limit and elapsed >= limit and processor.state is not ProcessorState.ENDING:
            text = f"the preload {preload} took longer than preload_timeout_seconds = {limit:g}"
            self._kill(processor, KillReason(Outcome.NOT_STARTED, text))
            self._count_failed_start(text)
        elif elapsed >= LONG_PRELOAD_SECONDS and not any(each.is_ready for each in self.processors.values()):
            self.show_degraded(f"the preload {preload} has run for more than {LONG_PRELOAD_SECONDS:g} s")

    def _watch(self, processor: PooledProcessor, now: float) -> None:
        """Check a busy processor: time limits, and results that wait behind a long task."""
        snapshot = processor.snapshot
        if snapshot.begun <= processor.results or snapshot.begun <= snapshot.finished:
            if now - max(processor.progress_at, snapshot.begun_at) > UNREAD_SECONDS:
                self._ban(
                    processor, f"it read no task for {UNREAD_SECONDS:g} s; a task may have closed its descriptors"
                )
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
            text = f"the task ran longer than its time limit of {limit:g} s and was ended"
            self.end([item], KillReason(Outcome.TIMED_OUT, text))
            pause = BUSY_TICK_SECONDS
        elif elapsed >= STARTED_AFTER_SECONDS and not item.announced_started:
            item.announced_started = True
            self.send(Started([item.id], [micros(snapshot.begun_at)], [processor.lane]))
        if limit:
            pause = min(pause, max(limit - elapsed, 0.0) + 0.001)
        if elapsed < STARTED_AFTER_SECONDS:
            pause = min(pause, STARTED_AFTER_SECONDS - elapsed + 0.001)
        if processor.state is ProcessorState.SUSPENDED and not self.config.hard_processor_suspend:
            processor.rests_until = now + pause
        self.wake_by(now + pause)
