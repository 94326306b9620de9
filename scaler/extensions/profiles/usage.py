"""Memory use of each function's tasks in an agent's processors. Pure.

A rise of a processor's peak counts for a function if tasks of no other function ran there at the time. Without such a
rise, the function's memory is unknown, because a processor keeps memory left by earlier tasks. A sample counts for the
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
class _Memory:
    samples: int = 0
    total_bytes: int = 0
    peak_bytes: int = 0

    def taken(self) -> tuple[int, int, int]:
        """Return samples, mean, and peak. Then starts counting again."""
        samples, total_bytes, self.samples, self.total_bytes = self.samples, self.total_bytes, 0, 0
        return samples, round(total_bytes / samples) if samples else 0, self.peak_bytes


class MemoryUsage:
    def __init__(self) -> None:
        self._functions: OrderedDict[str, _Memory] = OrderedDict()
        self._peaks: dict[int, int] = {}
        self._changed: dict[str, None] = {}
        self._samples = self._total_bytes = 0
        self._peak_bytes = 0

    def complete(self, heartbeat: WorkerHeartbeat) -> None:
        heartbeat.rss_mean_bytes = round(self._total_bytes / self._samples) if self._samples else 0
        heartbeat.rss_peak_bytes = self._peak_bytes
        heartbeat.functions = self.report()

    def take(self, processors: Mapping[int, ProcessorSample]) -> None:
        total = sum(sample.rss_bytes for sample in processors.values())
        self._samples += 1
        self._total_bytes += total
        self._peak_bytes = max(self._peak_bytes, total)
        for number, sample in processors.items():
            self._take(number, sample)
        self._peaks = {
            number: sample.peak_bytes if sample.running or sample.ended else self._peaks.get(number, sample.peak_bytes)
            for number, sample in processors.items()
        }

    def report(self) -> list[FunctionUse]:
        names = list(self._changed)[:MAX_REPORTED]
        for name in names:
            del self._changed[name]
        return [FunctionUse(name, *self._functions[name].taken()) for name in names]

    def _take(self, number: int, sample: ProcessorSample) -> None:
        used = {*sample.ended, sample.running} - {""}
        is_alone = len(used) == 1
        owner = sample.running or (next(iter(used)) if is_alone else "")
        if not owner:
            return
        memory = self._memory_of(owner)
        if is_alone and sample.peak_bytes > self._peaks.get(number, 0):
            memory.peak_bytes = max(memory.peak_bytes, sample.peak_bytes)
        if sample.rss_bytes <= memory.peak_bytes:  # anything above was left by other functions
            memory.samples += 1
            memory.total_bytes += sample.rss_bytes

    def _memory_of(self, function: str) -> _Memory:
        memory = self._functions.setdefault(function, _Memory())
        self._functions.move_to_end(function)
        self._changed[function] = None
        if len(self._functions) > MAX_FUNCTIONS:
            oldest, _ = self._functions.popitem(last=False)
            self._changed.pop(oldest, None)
        return memory
