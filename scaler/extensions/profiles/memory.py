"""Memory of functions in the whole cluster, merged from worker heartbeats. Pure.

Workers report totals over their lifetime, so only the difference to the previous report is added.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from scaler.protocol.messages import FunctionUse

MAX_FUNCTIONS = 4_096


@dataclass(slots=True)
class FunctionMemory:
    samples: int = 0
    total_bytes: int = 0
    peak_bytes: int = 0
    present: dict[bytes, FunctionUse] = field(default_factory=dict)

    @property
    def mean_bytes(self) -> int:
        return round(self.total_bytes / self.samples) if self.samples else 0

    def take(self, worker: bytes, use: FunctionUse) -> None:
        before = self.present.get(worker)
        samples, total = (before.samples, before.samples * before.mean_bytes) if before is not None else (0, 0)
        self.samples += max(0, use.samples - samples)
        self.total_bytes += max(0, use.samples * use.mean_bytes - total)
        self.peak_bytes = max(self.peak_bytes, use.peak_bytes)
        self.present[worker] = use

    @property
    def columns(self) -> dict[str, int]:
        """Columns of a `FunctionRow`."""
        return {"memory_peak_bytes": self.peak_bytes, "memory_mean_bytes": self.mean_bytes}


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
            memory.present.pop(worker, None)
