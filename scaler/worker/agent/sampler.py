"""Samples the memory of an agent's processors, for `MemoryUsage`: the one place that reads it periodically without a
limit being set."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from scaler.worker.agent.pool import ProcessorPool
from scaler.worker.agent.usage import MemoryUsage, ProcessorSample
from scaler.worker.frames import PageReader, TaskGrowth

SAMPLE_SECONDS = 0.5


class MemorySampler:
    """Samples twice a second while there are processors."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        pool: ProcessorPool,
        usage: MemoryUsage,
        processors: Callable[[], Mapping[int, tuple[int, PageReader]]],
    ) -> None:
        """processors: returns the pid and the page of every processor that has a process, by its number."""
        self._loop = loop
        self._pool = pool
        self._usage = usage
        self._processors = processors
        self._measured: dict[int, int] = {}
        """How many tasks of each processor had been measured at the last sample."""
        self._names: dict[int, str] = {}
        """Names of functions by the numbers of specs."""
        self._timer = loop.call_later(SAMPLE_SECONDS, self._sample)

    def close(self) -> None:
        self._timer.cancel()

    def _sample(self) -> None:
        self._timer = self._loop.call_later(SAMPLE_SECONDS, self._sample)
        found: dict[int, ProcessorSample] = {}
        for number, (pid, page) in self._processors().items():
            memory = resident_memory(pid)
            if memory is not None:
                functions = self._pool.take_functions(number, page.snapshot())
                found[number] = ProcessorSample(*memory, *functions, self._growth(number, page))
        self._measured = {number: self._measured.get(number, 0) for number in found}
        if found:
            self._usage.take(time.monotonic(), found)

    def _growth(self, number: int, page: PageReader) -> tuple[str, TaskGrowth] | None:
        """Return the last measured task of a processor with its function; None when it is that of an earlier sample."""
        growth = page.growth()
        if growth is None or growth.measured == self._measured.get(number, 0):
            return None
        self._measured[number] = growth.measured
        if growth.spec not in self._names:
            self._names = self._pool.function_names()
        name = self._names.get(growth.spec)
        return None if name is None else (name, growth)


def resident_memory(pid: int) -> tuple[int, int] | None:
    """Return the resident memory of a process and its peak in bytes; None when the process has ended."""
    try:
        status = Path("/proc", str(pid), "status").read_bytes()
    except OSError:
        return None
    _, _, rest = status.partition(b"VmHWM:")
    peak, _, rest = rest.partition(b" kB")
    _, _, rest = rest.partition(b"VmRSS:")
    resident, found, _ = rest.partition(b" kB")
    return (1024 * int(resident), 1024 * int(peak)) if found else None  # one that is ending has no memory any more
