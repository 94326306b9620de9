"""Memory use of each function's tasks in an agent's processors. Pure.

A rise of a processor's peak is charged to a function if no other function's tasks ran there at the time. Without such a
rise, the function's memory is unknown, because a processor retains memory of earlier tasks. A sample counts for the
running function, or else for the only function finished since the last sample, unless it exceeds the function's peak.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from scaler.protocol.messages import FunctionUse, WorkerHeartbeat

MAX_FUNCTIONS = 256
MAX_REPORTED = 32


class ProcessorSample(NamedTuple):
    """A sample of a processor. running: function of the running task, or "". ended: functions of tasks finished
    since the previous sample."""

    rss_bytes: int
    peak_bytes: int
    running: str
    ended: Collection[str]


@dataclass(slots=True)
class MemorySamples:
    samples: int = 0
    total_bytes: int = 0
    peak_bytes: int = 0

    @property
    def mean_bytes(self) -> int:
        return round(self.total_bytes / self.samples) if self.samples else 0

    def add(self, samples: int, mean_bytes: int, peak_bytes: int) -> None:
        self.samples += samples
        self.total_bytes += samples * mean_bytes
        self.peak_bytes = max(self.peak_bytes, peak_bytes)


class MemoryUsage:
    def __init__(self) -> None:
        self._functions: OrderedDict[str, MemorySamples] = OrderedDict()
        self._peaks: dict[int, int] = {}
        self._changed: dict[str, None] = {}
        self._all = MemorySamples()

    def complete(self, heartbeat: WorkerHeartbeat) -> None:
        heartbeat.rss_mean_bytes = self._all.mean_bytes
        heartbeat.rss_peak_bytes = self._all.peak_bytes
        heartbeat.functions = self.report()

    def take(self, processors: Mapping[int, ProcessorSample]) -> None:
        total = sum(sample.rss_bytes for sample in processors.values())
        self._all.add(1, total, total)
        for number, sample in processors.items():
            self._take(number, sample)
        self._peaks = {
            number: sample.peak_bytes if sample.running or sample.ended else self._peaks.get(number, sample.peak_bytes)
            for number, sample in processors.items()
        }

    def report(self) -> list[FunctionUse]:
        uses = []
        for name in list(self._changed)[:MAX_REPORTED]:
            del self._changed[name]
            memory = self._functions[name]
            uses.append(FunctionUse(name, memory.samples, memory.mean_bytes, memory.peak_bytes))
            memory.samples = memory.total_bytes = 0
        return uses

    def _take(self, number: int, sample: ProcessorSample) -> None:
        used = {*sample.ended, sample.running} - {""}
        is_alone = len(used) == 1
        owner = sample.running or (next(iter(used)) if is_alone else "")
        if not owner:
            return
        memory = self._memory_of(owner)
        if is_alone and sample.peak_bytes > self._peaks.get(number, 0):
            memory.peak_bytes = max(memory.peak_bytes, sample.peak_bytes)
        if sample.rss_bytes <= memory.peak_bytes:  # the excess is memory of other functions
            memory.add(1, sample.rss_bytes, 0)

    def _memory_of(self, function: str) -> MemorySamples:
        memory = self._functions.setdefault(function, MemorySamples())
        self._functions.move_to_end(function)
        self._changed[function] = None
        if len(self._functions) > MAX_FUNCTIONS:
            oldest, _ = self._functions.popitem(last=False)
            self._changed.pop(oldest, None)
        return memory
