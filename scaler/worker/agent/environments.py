"""Processors of several environments, which take turns in the slots of a worker. Pure.

The scheduler gets tasks back until their environment is prepared. A slot goes to the environment of the next task: an
idle processor of another environment becomes spare, and a spare or a new one takes its place.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from scaler.config.worker import WorkerConfig
from scaler.worker.agent import events as e
from scaler.worker.agent.processor_table import MAX_FAILED_STARTS, ProcessorTable
from scaler.worker.agent.state import Attempt, PooledProcessor, ProcessorState

MAX_ENVIRONMENTS = 4
"""Environments kept with their fork servers, besides those in use."""
FAILED_SECONDS = 30.0
"""Seconds for which a failure is the answer to further tasks."""


@dataclass(slots=True)
class Environment:
    is_ready: bool = False
    failure: str = ""
    failed_at: float = 0.0
    failed_starts: int = 0


@dataclass(slots=True)
class Choice:
    """The processors of one dispatch. starting: idle ones that are not ready, by environment. held: attempts that wait
    for them."""

    free: list[PooledProcessor]
    starting: Counter[bytes]
    held: list[Attempt] = field(default_factory=list)


class EnvironmentTable(ProcessorTable):
    def __init__(self, config: WorkerConfig, now: float) -> None:
        super().__init__(config, now)
        self.environments: dict[bytes, Environment] = {}
        """The last used ones last."""

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
        self._evict()
        return []

    def _evict(self) -> None:
        if len(self.environments) <= MAX_ENVIRONMENTS:
            return
        used = {item.spec.wire.environment for item in self.queue.attempts.values()}
        for name, known in [*self.environments.items()]:
            if len(self.environments) > MAX_ENVIRONMENTS and name not in used and (known.is_ready or known.failure):
                self._drop(name)

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
        elif known.is_ready:  # its fork server died, so that its next task prepares it again
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

    def _count_failed_start(self, processor: PooledProcessor, text: str, now: float) -> None:
        """Count a processor that exited before it was ready. Only those without an environment end the worker."""
        known = self.environments.get(processor.environment)
        if not processor.environment:
            super()._count_failed_start(processor, text, now)
        elif known is not None and text != e.SERVER_EXITED:
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

    # -- dispatch --------------------------------------------------------------------------------------------------

    def _choice(self, free: list[PooledProcessor]) -> Choice:
        active = self._in_state(ProcessorState.ACTIVE)
        return Choice(free, Counter(each.environment for each in active if not (each.is_ready or each.dispatched)))

    def _choose(self, choice: Choice, item: Attempt, now: float) -> PooledProcessor | None:
        """Return the processor for an attempt, or hold the attempt, and make a slot take up its environment."""
        free, environment = choice.free, item.spec.wire.environment
        self._wanted = environment
        own = [each for each in free if each.environment == environment]
        best = min(own, key=lambda each: each.work_us, default=None)
        if best is not None and not best.dispatched:
            return best
        if choice.starting[environment]:
            choice.starting[environment] -= 1
        elif idle := [each for each in free if not each.dispatched and each.environment != environment]:
            free.remove(idle[0])
            self._enter(idle[0], ProcessorState.SPARE, now)
            spares = [each for each in self._spares(environment) if not each.is_worn]
            other = max(spares, key=lambda each: each.since, default=None) or self._spawn(now, environment)
            self._enter(other, ProcessorState.ACTIVE, now)
            if other.is_ready:
                free.append(other)
                return other
        elif best is not None:
            return best
        else:
            choice.held.append(item)
            free.clear()  # later attempts must not take the next idle processor
            return None
        choice.held.append(item)
        return None
