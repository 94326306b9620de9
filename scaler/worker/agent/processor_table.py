"""The processors of an agent: slots, replacement, and limits. Pure.

A processor whose task waits for its own tasks is *suspended* and lends its slot. After the wait, the processor *waits*
for a slot ahead of all new tasks. *Spare* processors hold no slot and are kept for a while, because nested tasks arrive
in bursts. Invariants: at most `slots` processors are active; only active processors receive tasks.

Processors of several environments share the slots. Tasks are returned to the scheduler until their environment is
ready. If the next task needs another environment, an idle processor becomes spare, and a spare or new processor of that
environment takes its slot.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from scaler.config.worker import WorkerConfig
from scaler.grammar import counted
from scaler.protocol.messages import Outcome, Suspended
from scaler.worker.agent import events as e
from scaler.worker.agent.base import ExecutorBase
from scaler.worker.agent.state import PREEMPTED, Attempt, KillReason, PooledProcessor, ProcessorState
from scaler.worker.frames import ToProcessor, pack

LONG_PRELOAD_SECONDS = 30.0
"""A preload that runs longer than this many seconds is shown as the degraded reason."""
MAX_FAILED_STARTS = 3
"""Number of consecutive failed processor starts after which the agent exits."""
MAX_ENVIRONMENTS = 4
"""Number of environments above which unused environments are dropped with their fork servers."""
FAILED_SECONDS = 30.0
"""Seconds after a failed preparation during which the environment's tasks fail with the same error."""
_WITHOUT_TASK = (ProcessorState.ACTIVE, ProcessorState.SPARE)


@dataclass(slots=True)
class Environment:
    is_ready: bool = False
    failure: str = ""
    failed_at: float = 0.0
    failed_starts: int = 0


class ProcessorTable(ExecutorBase):
    def __init__(self, config: WorkerConfig, now: float) -> None:
        super().__init__(config, now)
        self._slots = config.slots
        self._count = 0
        self._failed_starts = 0
        self._slots_are_settled = False
        """All slots are taken, no processor waits for a slot, and no state has changed since."""
        self.processors: dict[int, PooledProcessor] = {}
        self._wanted = b""
        """Environment of the last dispatched attempt."""
        self.environments: dict[bytes, Environment] = {}
        """Environments in order of last use."""

    def suspended(self) -> set[bytes]:
        lent = (ProcessorState.SUSPENDED, ProcessorState.WAITING)
        return {each.dispatched[0].id for each in self.processors.values() if each.state in lent and each.dispatched}

    def _assign_slots(self, now: float) -> None:
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
            elif spares := self._spares(self._wanted):
                processor = max(spares, key=lambda each: each.since)
            elif not self.broken and (self.queue.waiting or not self._in_state(ProcessorState.SUSPENDED)):
                processor = self._spawn(now, self._wanted)
            else:
                break
            self._enter(processor, ProcessorState.ACTIVE, now)
            active.append(processor)
        yielding = sorted(active, key=lambda each: len(each.dispatched))[: len(waiting)]
        for processor in active:  # the processor that waited for this slot may have died
            should_yield = processor in yielding
            if should_yield and not processor.is_yielding:
                self._reclaim(processor)
            processor.is_yielding = should_yield
        self._slots_are_settled = len(active) == self._slots and not waiting

    @property
    def _successors(self) -> int:
        """Number of spare processors that start while worn processors finish their tasks."""
        return sum(each.is_worn for each in self._in_state(ProcessorState.ACTIVE))

    def _wear_out(self, processor: PooledProcessor, now: float) -> None:
        """Mark a processor for replacement after its tasks, and fork its successor now."""
        if not processor.is_worn:
            processor.is_worn = True
            self._slots_are_settled = False
            if len(self._in_state(ProcessorState.SPARE)) < self._successors:
                self._enter(self._spawn(now, processor.environment), ProcessorState.SPARE, now)

    def _retire(self, processor: PooledProcessor, now: float) -> None:
        self._enter(processor, ProcessorState.ENDING, now)
        self._act(processor, e.ProcessorVerb.END)

    def _in_state(self, state: ProcessorState) -> list[PooledProcessor]:
        return [each for each in self.processors.values() if each.state is state]

    def _spawn(self, now: float, environment: bytes) -> PooledProcessor:
        self._count += 1
        processor = PooledProcessor(self._count, now, self.take_lane(), environment, made_at=now, progress_at=now)
        self.processors[self._count] = processor
        self.commands.append(e.ActOnProcessor(self._count, e.ProcessorVerb.SPAWN, environment))
        if self.storage_address:
            self._announce(processor, ToProcessor.STORAGE, self.storage_address, self.object_storage_address)
        return processor

    def _suspend(self, processor: PooledProcessor, now: float) -> None:
        if len(self._in_state(ProcessorState.SUSPENDED)) >= self.config.max_suspended_tasks:
            # Without a free slot, the awaited tasks might never run, and all suspended tasks here would deadlock.
            limit = f"max_suspended_tasks = {self.config.max_suspended_tasks}"
            text = f"the task waits for its own tasks, but its worker is at the limit of such tasks, {limit}"
            self._kill(processor, KillReason(Outcome.REJECTED, text))
            return
        self._enter(processor, ProcessorState.SUSPENDED, now)
        processor.is_yielding = False
        self._report_suspended(processor, True)
        self._reclaim(processor)

    def _report_suspended(self, processor: PooledProcessor, suspended: bool) -> None:
        if processor.dispatched:
            item = processor.dispatched[0]
            self.send(Suspended([item.id], [item.attempt], [suspended]))

    def _enter(self, processor: PooledProcessor, state: ProcessorState, now: float) -> None:
        processor.state = state
        processor.since = now
        if processor.rests_until:
            processor.rests_until = 0.0
            processor.progress_at = now
        self._slots_are_settled = False

    def _spares(self, environment: bytes) -> list[PooledProcessor]:
        spares = self._in_state(ProcessorState.SPARE)
        return [each for each in spares if each.environment == environment and not each.is_worn]

    def _act(self, processor: PooledProcessor, verb: e.ProcessorVerb) -> None:
        self.commands.append(e.ActOnProcessor(processor.number, verb))

    def _announce(self, processor: PooledProcessor, kind: int, *values: Any) -> None:
        self.commands.append(e.DispatchTasks(processor.number, [pack(kind, *values)], []))

    def _forget(self, processor: PooledProcessor, specs: set[int], functions: set[bytes]) -> None:
        if specs or functions:
            self._announce(processor, ToProcessor.FORGET, list(functions), list(specs))
            processor.specs -= specs
            processor.functions -= functions

    def _reclaim(self, processor: PooledProcessor) -> None:
        if processor.dispatched and not processor.is_reclaiming:
            processor.is_reclaiming = True
            self._act(processor, e.ProcessorVerb.RECLAIM)

    def _kill(self, processor: PooledProcessor, reason: KillReason) -> None:
        if processor.state is not ProcessorState.ENDING:
            processor.kill_reason = reason
            self._enter(processor, ProcessorState.ENDING, processor.since)
            self._act(processor, e.ProcessorVerb.KILL)

    def _preempt(self, processor: PooledProcessor, grace_seconds: float, now: float) -> None:
        """Send SIGTERM to the running task. Its slot stays occupied until the task ends or is killed after the grace
        period."""
        if processor.kill_at == math.inf:
            processor.kill_reason = PREEMPTED
            processor.kill_at = now + grace_seconds
            self._wear_out(processor, now)
            self._act(processor, e.ProcessorVerb.TERMINATE)
            self.wake_by(processor.kill_at)

    # -- termination -------------------------------------------------------------------------------------------------

    def end(self, items: Iterable[Attempt], reason: KillReason) -> None:
        for item in items:
            item.request = reason
            self._reclaim(self.processors[item.executor])

    def _ban(self, processor: PooledProcessor, text: str) -> None:
        if processor.state is not ProcessorState.ENDING:
            self.log(f"processor {processor.number} is terminated: {text}", processor.first_task, "error")
            text = f"the processor that ran the task was terminated: {text}"
            self._kill(processor, KillReason(Outcome.PROCESSOR_DIED, text))

    def _count_failed_start(self, processor: PooledProcessor, text: str, now: float) -> None:
        """Count a processor that exited before it was ready. Only processors without an environment end the worker."""
        if not processor.environment:
            self._failed_starts += 1
            self.log(f"a processor could not start: {text}", level="error")
            if self._failed_starts >= MAX_FAILED_STARTS:
                self.broken = f"{counted(self._failed_starts, 'processor')} in a row could not start: {text}"
        elif (known := self.environments.get(processor.environment)) and text != e.SERVER_EXITED:
            known.failed_starts += 1
            if known.failed_starts >= MAX_FAILED_STARTS:
                self._fail(processor.environment, f"no processor with the task's environment can start: {text}", now)

    def _has_started(self, processor: PooledProcessor) -> None:
        processor.is_ready = True
        if known := self.environments.get(processor.environment):
            known.failed_starts = 0
        elif not processor.environment:
            self._failed_starts = 0
            self.show_degraded("")

    def _limit_memory(self, excesses: Mapping[int, tuple[Outcome, str, int]]) -> None:
        """Kill processors above a memory limit, even between tasks. A kill between tasks charges no task."""
        for number, (outcome, why, peak_bytes) in excesses.items():
            processor = self.processors[number]
            self.memory_kills += 1
            self.log(f"processor {number} is terminated: {why}", processor.first_task)
            self._kill(processor, KillReason(outcome, f"the task was killed because {why}", peak_bytes))

    def obstacle(self) -> str:
        preload = self.config.preload
        if self.degraded_reason or preload is None or any(each.is_ready for each in self.processors.values()):
            return self.degraded_reason
        return f"the preload {preload} has not returned yet"

    def _watch_preload(self, processor: PooledProcessor, preload: str, now: float) -> None:
        limit = self.config.preload_timeout_seconds
        elapsed = now - processor.made_at
        if limit and elapsed >= limit and processor.state is not ProcessorState.ENDING:
            text = f"the preload {preload} took longer than preload_timeout_seconds = {limit:g}"
            self._kill(processor, KillReason(Outcome.NOT_STARTED, text))
            self._count_failed_start(processor, text, now)
        elif elapsed >= LONG_PRELOAD_SECONDS and not any(each.is_ready for each in self.processors.values()):
            self.show_degraded(f"the preload {preload} has run for more than {LONG_PRELOAD_SECONDS:g} s")

    # -- environments ----------------------------------------------------------------------------------------------

    def admit(self, environment: bytes, items: list[Attempt], now: float) -> list[Attempt]:
        known = self.environments.pop(environment, None)
        if known is None or (known.failure and now - known.failed_at > FAILED_SECONDS):
            known = Environment()
        self.environments[environment] = known
        if known.is_ready:
            return items
        if known.failure:
            self._refuse(items, known.failure)
            return []
        self.commands.append(e.UseEnvironment(environment, self.functions.get(environment, b"")))
        self.returned(items, started=False)
        if len(self.environments) > MAX_ENVIRONMENTS:
            used = {item.spec.wire.environment for item in self.queue.attempts.values()}
            unused = [
                name for name, each in self.environments.items() if (each.is_ready or each.failure) and name not in used
            ]
            for name in unused[: len(self.environments) - MAX_ENVIRONMENTS]:
                self._drop(name)
        return []

    def _drop(self, environment: bytes) -> None:
        self._wanted = b""
        if self.environments.pop(environment).is_ready:
            for processor in self.processors.values():
                if processor.environment == environment:
                    self._enter(processor, ProcessorState.ENDING, processor.since)
            self.commands.append(e.UseEnvironment(environment, None))

    def _changed(self, change: e.EnvironmentChanged, now: float) -> None:
        known = self.environments.get(change.environment)
        if known is None:
            return
        if change.is_ready:
            known.is_ready = True
        elif known.is_ready:  # the fork server died, so the next task prepares the environment again
            del self.environments[change.environment]
            self._wanted = b""
            self.log(f"the fork server of an environment has exited: {change.text}")
            self.give_back(self._queued(change.environment))
        else:
            self._fail(change.environment, change.text, now)

    def _fail(self, environment: bytes, text: str, now: float) -> None:
        queued = self._queued(environment)
        self.queue.remove(queued)
        self._refuse(queued, text)
        if not any(each.environment == environment and each.dispatched for each in self.processors.values()):
            self._drop(environment)
            self.environments[environment] = Environment(failure=text, failed_at=now)

    def _queued(self, environment: bytes) -> list[Attempt]:
        attempts = self.queue.attempts.values()
        return [item for item in attempts if not item.executor and item.spec.wire.environment == environment]

    def _starting(self) -> Counter[bytes]:
        """Return the number of idle processors that are not ready, by environment."""
        active = self._in_state(ProcessorState.ACTIVE)
        return Counter(each.environment for each in active if not (each.is_ready or each.dispatched))

    def _choose(
        self, item: Attempt, free: list[PooledProcessor], starting: Counter[bytes], now: float
    ) -> PooledProcessor | None:
        """Return a processor for an attempt, or None if the attempt must wait. May switch a slot to its environment."""
        self._wanted = environment = item.spec.wire.environment
        own = [each for each in free if each.environment == environment]
        best = min(own, key=lambda each: each.work_us, default=None)
        if best is not None and not best.dispatched:
            return best
        if starting[environment]:
            starting[environment] -= 1
            return None
        idle = next((each for each in free if not each.dispatched), None)
        if idle is None:
            if best is None:
                free.clear()  # later attempts must not take the next idle processor
            return best
        free.remove(idle)
        self._enter(idle, ProcessorState.SPARE, now)
        spare = max(self._spares(environment), key=lambda each: each.since, default=None)
        other = spare or self._spawn(now, environment)
        self._enter(other, ProcessorState.ACTIVE, now)
        if not other.is_ready:
            return None
        free.append(other)
        return other
