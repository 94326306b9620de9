"""Samples the memory of an agent's processors, for `MemoryUsage`: the one place that reads it periodically without a
limit being set."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

from scaler.worker.agent.pool import ProcessorPool
from scaler.worker.agent.usage import MemoryUsage, ProcessorSample
from scaler.worker.frames import PageReader, TaskGrowth

SAMPLE_SECONDS = 0.5
SUSPENDED_SAMPLE_SECONDS = 10.0
"""Interval for a processor whose task waits: there may be a thousand of them, and their memory hardly changes."""


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
        self._suspended: dict[int, tuple[float, ProcessorSample]] = {}
        """Samples of suspended processors, and when each expires."""
        self._names: dict[int, str] = {}
        self._timer = loop.call_later(SAMPLE_SECONDS, self._sample)

    def close(self) -> None:
        self._timer.cancel()

    def _sample(self) -> None:
        self._timer = self._loop.call_later(SAMPLE_SECONDS, self._sample)
        now = time.monotonic()
        found: dict[int, ProcessorSample] = {}
        suspended: dict[int, tuple[float, ProcessorSample]] = {}
        for number, (pid, page) in self._processors().items():
            is_suspended = self._pool.is_suspended(number)
            expires_at, sample = self._suspended.get(number, (0.0, None))
            if is_suspended and sample is not None and now < expires_at:
                suspended[number] = expires_at, sample
                found[number] = sample
                continue
            memory = resident_memory(pid)
            if memory is not None:
                functions = self._pool.take_functions(number, page.snapshot())
                sample = found[number] = ProcessorSample(*memory, *functions, self._growth(number, page))
                if is_suspended:
                    suspended[number] = now + SUSPENDED_SAMPLE_SECONDS, sample._replace(ended=(), growth=None)
        self._suspended = suspended
        self._measured = {number: self._measured.get(number, 0) for number in found}
        if found:
            self._usage.take(now, found)

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
        with open(f"/proc/{pid}/status", "rb", buffering=0) as file:  # noqa: PTH123 (pathlib costs as much as the kernel)
            status = file.read()
    except OSError:
        return None
    _, _, rest = status.partition(b"VmHWM:")
    peak, _, rest = rest.partition(b" kB")
    _, _, rest = rest.partition(b"VmRSS:")
    resident, found, _ = rest.partition(b" kB")
    return (1024 * int(resident), 1024 * int(peak)) if found else None  # one that is ending has no memory any more
