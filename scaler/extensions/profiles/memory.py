"""Memory of functions in the whole cluster, merged from worker heartbeats. Pure.

Workers report totals over their lifetime, so only the difference to the previous report is added.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from scaler.median import median
from scaler.protocol.messages import FunctionUse

MAX_FUNCTIONS = 4_096
MAX_DEPARTED = 16
"""Departed workers whose leak measurements a function keeps until another worker has some."""


class Leak(NamedTuple):
    """Bytes that each task leaks, and in how many of the judged processors."""

    bytes_per_task: int = 0
    growing: int = 0
    judged: int = 0


@dataclass(slots=True)
class FunctionMemory:
    samples: int = 0
    total_bytes: int = 0
    peak_bytes: int = 0
    present: dict[bytes, FunctionUse] = field(default_factory=dict)
    departed: list[FunctionUse] = field(default_factory=list)

    @property
    def mean_bytes(self) -> int:
        return round(self.total_bytes / self.samples) if self.samples else 0

    @property
    def leak(self) -> Leak:
        """Leak per task, if at least half of the judged processors grow."""
        known: Sequence[FunctionUse] = [use for use in self.present.values() if use.judged] or self.departed
        judged, growing = sum(use.judged for use in known), sum(use.growing for use in known)
        if not growing or 2 * growing < judged:
            return Leak(0, growing, judged)
        return Leak(round(median(use.growth_bytes for use in known if use.growing)), growing, judged)

    def take(self, worker: bytes, use: FunctionUse) -> None:
        before = self.present.get(worker)
        samples, total = (before.samples, before.samples * before.mean_bytes) if before is not None else (0, 0)
        self.samples += max(0, use.samples - samples)
        self.total_bytes += max(0, use.samples * use.mean_bytes - total)
        self.peak_bytes = max(self.peak_bytes, use.peak_bytes)
        self.present[worker] = use
        if use.judged:
            self.departed.clear()

    @property
    def columns(self) -> dict[str, int]:
        """Columns of a `FunctionRow`."""
        leak = self.leak
        return {
            "memory_peak_bytes": self.peak_bytes,
            "memory_mean_bytes": self.mean_bytes,
            "leak_bytes": leak.bytes_per_task,
            "leak_processors": leak.growing,
            "leak_judged": leak.judged,
        }

    def leave(self, worker: bytes) -> None:
        use = self.present.pop(worker, None)
        if use is not None and use.judged:
            self.departed = [*self.departed, use][-MAX_DEPARTED:]


class FunctionMemories:
    def __init__(self) -> None:
        self.functions: OrderedDict[str, FunctionMemory] = OrderedDict()

    def take(self, worker: bytes, uses: Iterable[FunctionUse]) -> None:
        for use in uses:
            memory = self.functions.setdefault(use.function, FunctionMemory())
            self.functions.move_to_end(use.function)
            memory.take(worker, use)
        while len(self.functions) > MAX_FUNCTIONS:
            self.functions.popitem(last=False)

    def leave(self, worker: bytes) -> None:
        for memory in self.functions.values():
            memory.leave(worker)
