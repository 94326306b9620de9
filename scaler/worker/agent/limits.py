"""Limits of memory: which processors to end, by what was measured, and when to measure again. Pure.

What counts is memory that processes have for themselves: anonymous pages, in memory or swapped out, of a processor and
of all that its task has started. Objects in shared memory do not count: they belong to the object storage, and outlive
the processors that made or mapped them. That is why the limits are not those of a cgroup: it charges shared memory to
the process that wrote it first, and would end a processor for the results of its earlier tasks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from scaler.config.worker import WorkerConfig
from scaler.protocol.messages import Outcome

GROWTH_BYTES_PER_SECOND = 4 * 1024**3
"""About as fast as processes take memory: what is left below a limit is measured again before it can be used up."""
MIN_PAUSE_SECONDS = 0.01
MAX_PAUSE_SECONDS = 0.25


class Excess(NamedTuple):
    """Why a processor is to be ended, and what becomes of its task. peak_bytes: of this processor."""

    outcome: Outcome
    text: str
    peak_bytes: int


class MemoryLimits(NamedTuple):
    """0: no limit. Each takes `usage`: the memory of processors by their numbers, in bytes."""

    processor_bytes: int
    worker_bytes: int

    @classmethod
    def of(cls, config: WorkerConfig) -> MemoryLimits:
        return cls(config.processor_memory_limit_bytes, config.memory_limit_bytes)

    def excesses(self, usage: Mapping[int, int]) -> dict[int, Excess]:
        """Return the processors to end: each one above its limit, then the largest until the others fit the worker."""
        found: dict[int, Excess] = {}
        total = sum(usage.values())
        for number in sorted(usage, key=usage.__getitem__, reverse=True):
            used = usage[number]
            if 0 < self.processor_bytes < used:
                text = (
                    f"its processor had {used} bytes, more than processor_memory_limit_bytes = {self.processor_bytes}"
                )
                found[number] = Excess(Outcome.MEMORY_LIMIT, text, used)
            elif 0 < self.worker_bytes < used:
                text = (
                    f"its processor had {used} bytes, more than memory_limit_bytes = {self.worker_bytes} of the worker"
                )
                found[number] = Excess(Outcome.MEMORY_LIMIT, text, used)
            elif 0 < self.worker_bytes < total:
                text = (
                    f"the worker's processors had {total} bytes, more than memory_limit_bytes = {self.worker_bytes}, "
                    f"and its processor was the largest, with {used} bytes"
                )
                found[number] = Excess(Outcome.OUT_OF_MEMORY, text, used)
            else:
                continue
            total -= used
        return found

    def pause_seconds(self, usage: Mapping[int, int]) -> float:
        """Return how long no limit can be passed."""
        left = [limit - used for limit, used in self._limited(usage) if limit]
        return max(MIN_PAUSE_SECONDS, min(MAX_PAUSE_SECONDS, min(left, default=0) / GROWTH_BYTES_PER_SECOND))

    def _limited(self, usage: Mapping[int, int]) -> list[tuple[int, int]]:
        """Return each limit with what is used of it."""
        return [
            (self.worker_bytes, sum(usage.values())),
            (self.processor_bytes, max(usage.values(), default=0)),
        ]
