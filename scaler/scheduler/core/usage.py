"""The memory of functions in the whole cluster, merged from the heartbeats of workers. Pure.

What a worker reports is about all of its time, so what it reported before is taken off.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from scaler.median import median
from scaler.protocol.messages import FunctionUse

MAX_FUNCTIONS = 4_096
"""Functions that are remembered: those that were used last."""
MAX_DEPARTED = 16
"""Workers that have left of which a function keeps what its tasks left behind, until another worker knows."""


class Leak(NamedTuple):
    """What each task leaves behind, in how many processors, and of how many that is known."""

    bytes_per_task: int = 0
    growing: int = 0
    judged: int = 0


@dataclass(slots=True)
class FunctionMemory:
    """The memory of the processors that run a function's tasks."""

    samples: int = 0
    total_bytes: int = 0
    peak_bytes: int = 0
    present: dict[bytes, FunctionUse] = field(default_factory=dict)
    """The last report of each worker."""
    departed: list[FunctionUse] = field(default_factory=list)
    """Those of workers that have left."""

    @property
    def mean_bytes(self) -> int:
        return round(self.total_bytes / self.samples) if self.samples else 0

    @property
    def leak(self) -> Leak:
        """What its tasks leave behind, where they do so in at least half of the processors that are judged."""
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

    def leave(self, worker: bytes) -> None:
        use = self.present.pop(worker, None)
        if use is not None and use.judged:
            self.departed = [*self.departed, use][-MAX_DEPARTED:]


class Usage:
    """The memory of all functions, by their names."""

    def __init__(self) -> None:
        self.functions: OrderedDict[str, FunctionMemory] = OrderedDict()

    def take(self, worker: bytes, uses: Iterable[FunctionUse]) -> None:
        """Take in the functions of a heartbeat."""
        for use in uses:
            memory = self.functions.setdefault(use.function, FunctionMemory())
            self.functions.move_to_end(use.function)
            memory.take(worker, use)
        while len(self.functions) > MAX_FUNCTIONS:
            self.functions.popitem(last=False)

    def leave(self, worker: bytes) -> None:
        for memory in self.functions.values():
            memory.leave(worker)
