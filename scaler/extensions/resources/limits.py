"""Memory limits: decides which processors to kill and when to measure next. Pure. Counts private memory: anonymous
pages (resident or swapped out) of a processor and all its descendants. Shared memory is not counted, because stored
objects outlive the processors that map them. A cgroup limit would charge shared memory to its first writer and kill a
processor for the results of earlier tasks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from scaler.config.worker import WorkerConfig
from scaler.protocol.messages import Outcome

GROWTH_BYTES_PER_SECOND = 4 * 1024**3
"""Assumed maximum growth rate, which determines the interval between measurements near a limit."""
MIN_PAUSE_SECONDS = 0.01
MAX_PAUSE_SECONDS = 0.25
CONTAINER_RESERVE_SHARE = 8
MAX_CONTAINER_RESERVE_BYTES = 256 * 1024**2
"""Maximum reserve of a container if memory_limit_bytes is not set. Prevents kills by the kernel."""


class ContainerMemory(NamedTuple):
    """A cgroup's limit, and the memory of all its processes other than processors."""

    limit_bytes: int
    others_bytes: int

    @property
    def reserve_bytes(self) -> int:
        return min(self.limit_bytes // CONTAINER_RESERVE_SHARE, MAX_CONTAINER_RESERVE_BYTES)

    @property
    def usable_bytes(self) -> int:
        return self.limit_bytes - self.reserve_bytes

    def is_exceeded(self, processors_bytes: int) -> bool:
        return self.others_bytes + processors_bytes > self.usable_bytes


class Excess(NamedTuple):
    """Reason to kill a processor, and the resulting outcome of its task. peak_bytes: the processor's peak memory."""

    outcome: Outcome
    text: str
    peak_bytes: int


class MemoryLimits(NamedTuple):
    """Limits in bytes; 0: no limit. usage: bytes by processor number."""

    processor_bytes: int
    worker_bytes: int

    @classmethod
    def of(cls, config: WorkerConfig) -> MemoryLimits:
        return cls(config.processor_memory_limit_bytes, config.memory_limit_bytes)

    def excesses(self, usage: Mapping[int, int], container: ContainerMemory | None = None) -> dict[int, Excess]:
        """Return the processors to kill: all above their own limit, then the largest until the worker and the container
        are within their limits."""
        found: dict[int, Excess] = {}
        total = sum(usage.values())
        for number in sorted(usage, key=usage.__getitem__, reverse=True):
            used = usage[number]
            its_own = f"its processor had {used} bytes, more than"
            if 0 < self.processor_bytes < used:
                outcome = Outcome.MEMORY_LIMIT
                text = f"{its_own} processor_memory_limit_bytes = {self.processor_bytes}"
            elif 0 < self.worker_bytes < used:
                outcome = Outcome.MEMORY_LIMIT
                text = f"{its_own} memory_limit_bytes = {self.worker_bytes} of the worker"
            elif 0 < self.worker_bytes < total:
                outcome = Outcome.OUT_OF_MEMORY
                text = (
                    f"the worker's processors had {total} bytes, more than memory_limit_bytes = {self.worker_bytes}, "
                    f"and its processor was the largest, with {used} bytes"
                )
            elif container is not None and container.is_exceeded(total) and used >= container.reserve_bytes:
                outcome = Outcome.MEMORY_LIMIT if used > container.usable_bytes else Outcome.OUT_OF_MEMORY
                text = (
                    f"the processes of its container had {total + container.others_bytes} bytes, more than the limit "
                    f"of {container.limit_bytes} less a reserve of {container.reserve_bytes} (memory_limit_bytes is "
                    f"not set), and its processor was the largest, with {used} bytes"
                )
            else:
                continue
            found[number] = Excess(outcome, text, used)
            total -= used
        return found

    def pause_seconds(self, usage: Mapping[int, int], container_left: float = math.inf) -> float:
        """Return the seconds within which no limit can be exceeded. container_left: bytes left in the container."""
        used = (self.worker_bytes, sum(usage.values())), (self.processor_bytes, max(usage.values(), default=0))
        left = min([container_left, *(limit - each for limit, each in used if limit)])
        return max(MIN_PAUSE_SECONDS, min(MAX_PAUSE_SECONDS, left / GROWTH_BYTES_PER_SECOND))
