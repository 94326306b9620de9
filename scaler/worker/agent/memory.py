"""Measures the memory of processors and their descendants, for limits and statistics."""

from __future__ import annotations

import asyncio
import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from scaler.host import MemoryCgroup
from scaler.worker.agent.limits import ContainerMemory, MemoryLimits
from scaler.worker.agent.pool import ProcessorPool
from scaler.worker.agent.usage import MemoryUsage, ProcessorSample
from scaler.worker.frames import PageReader, TaskGrowth

LOAD_SHARE = 0.05
"""Maximum share of one CPU spent on measuring."""
MAX_READINGS = 3
READ_KILLS_SECONDS = 2.0
_STATUS_FIELDS = (b"RssAnon:", b"VmSwap:")
_ROLLUP_FIELDS = (b"Pss_Anon:", b"SwapPss:")


class MemoryWatch:
    """Measures periodically and reports processors above a limit. Idle without a limit.

    In a cgroup with a limit, reports only if the largest process is a processor of this worker, and not while usage
    falls, since an exiting process takes a while to free its memory. The kernel's cheap counters count shared pages
    twice. If they exceed a limit, the watch reads exact shares, for which the kernel visits all pages.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limits: MemoryLimits,
        cgroup: MemoryCgroup | None,
        pids: Callable[[], Mapping[int, int]],
        report: Callable[[Mapping[int, int], ContainerMemory | None], None],
    ) -> None:
        """cgroup: an additional limit. pids: returns pids by processor. report: receives bytes by processor."""
        self._loop = loop
        self._limits = limits
        self._cgroup = cgroup
        self._cgroup_bytes = 0
        self._pids = pids
        self._report = report
        self._timer: asyncio.TimerHandle | None = None
        if any(limits) or cgroup is not None:
            self._timer = loop.call_later(0, self._measure)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _measure(self) -> None:
        began = time.monotonic()
        usage: dict[int, int] = {}
        if any(self._limits):
            pids = self._pids()
            usage = {number: counted_bytes(pid) for number, pid in pids.items()}
            if self._limits.excesses(usage):
                usage = {number: exact_bytes(pid) for number, pid in pids.items()}
                if self._limits.excesses(usage):
                    self._report(usage, None)
        left = self._measure_container(self._cgroup) if self._cgroup is not None else math.inf
        took = time.monotonic() - began
        pause = max(self._limits.pause_seconds(usage, left), took / LOAD_SHARE)
        self._timer = self._loop.call_later(pause, self._measure)

    def _measure_container(self, cgroup: MemoryCgroup) -> float:
        used, before = cgroup.used_bytes(), self._cgroup_bytes
        self._cgroup_bytes = used
        whole = ContainerMemory(cgroup.limit_bytes, used)
        if whole.is_exceeded(0) and used >= before:
            pids = self._pids()
            usage = {
                number: min(used, counted_bytes(pid)) for number, pid in pids.items()
            }  # exact shares take too long here
            others = cgroup.pids().difference(*map(_with_descendants, pids.values()))
            if max(usage.values(), default=0) > max(map(_private_bytes, others), default=0):
                container = whole._replace(others_bytes=max(0, used - sum(usage.values())))
                self._report(usage, container)
        return whole.usable_bytes - used


class KernelKills:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        group = next((line[3:] for line in _lines("/proc/self/cgroup") if line.startswith("0::")), "")
        self._path = Path(f"/sys/fs/cgroup{group}/memory.events")
        if not self._path.exists():
            self._path = Path("/proc/vmstat")
        self._before = self._last = self._count()
        """OOM kill counts of the last two readings: an exit may be noticed after the reading that counts its kill."""
        self._timer = loop.call_later(READ_KILLS_SECONDS, self._read)

    def close(self) -> None:
        self._timer.cancel()

    def evidence(self) -> str:
        new = self._count() - self._before
        self._before += new > 0
        return f"the kernel ended it because memory ran out (oom_kill in {self._path} rose by {new})" if new > 0 else ""

    def _read(self) -> None:
        self._before, self._last = max(self._before, self._last), self._count()
        self._timer = self._loop.call_later(READ_KILLS_SECONDS, self._read)

    def _count(self) -> int:
        return next((int(line.split()[1]) for line in _lines(self._path) if line.startswith("oom_kill ")), 0)


def _lines(path: Path | str) -> list[str]:
    try:
        return Path(path).read_text("ascii", "replace").splitlines()
    except OSError:
        return []


def counted_bytes(pid: int) -> int:
    """Return the private bytes of a process and its descendants, counting shared pages repeatedly. 0: it has exited."""
    return sum(map(_private_bytes, _with_descendants(pid)))


def _private_bytes(pid: int) -> int:
    return bytes_of(pid, "status", _STATUS_FIELDS)


def exact_bytes(pid: int) -> int:
    """Like `counted_bytes` with exact shares of pages; takes milliseconds per gigabyte. Repeats a reading during
    which a process started or exited, and returns the smallest sum."""
    smallest, after = sys.maxsize, _living(pid)
    for _ in range(MAX_READINGS):
        before = after
        total = sum(bytes_of(each, "smaps_rollup", _ROLLUP_FIELDS) or _private_bytes(each) for each in before)
        after = _living(pid)
        if after == before:
            return total
        smallest = min(smallest, total)
    return smallest


def _living(pid: int) -> list[int]:
    """Return a process and its descendants, without zombies."""
    return [each for each in _with_descendants(pid) if _private_bytes(each)]


def _with_descendants(pid: int) -> Iterator[int]:
    pids = [pid]
    for each in pids:
        yield each
        with contextlib.suppress(OSError):  # it has exited, or the kernel does not list children
            for thread in Path("/proc", str(each), "task").iterdir():
                with contextlib.suppress(OSError):
                    pids += map(int, (thread / "children").read_bytes().split())


def bytes_of(pid: int, name: str, fields: tuple[bytes, ...]) -> int:
    """Return the sum of these fields of a /proc file in bytes; 0 if the file is not readable."""
    try:
        lines = Path("/proc", str(pid), name).read_bytes().splitlines()
    except OSError:
        return 0
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(fields))


SAMPLE_SECONDS = 0.5
SUSPENDED_SAMPLE_SECONDS = 10.0
"""Interval for a suspended processor. There may be a thousand of them, and their memory hardly changes."""


class MemorySampler:
    """Samples the memory of processors for `MemoryUsage` twice a second, with or without limits."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        pool: ProcessorPool,
        usage: MemoryUsage,
        processors: Callable[[], Mapping[int, tuple[int, PageReader]]],
    ) -> None:
        """processors: returns pid and page by number of every processor that has a process."""
        self._loop = loop
        self._pool = pool
        self._usage = usage
        self._processors = processors
        self._measured: dict[int, int] = {}
        self._suspended: dict[int, tuple[float, ProcessorSample]] = {}
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
        growth = page.growth()
        if growth is None or growth.measured == self._measured.get(number, 0):
            return None
        self._measured[number] = growth.measured
        if growth.spec not in self._names:
            self._names = self._pool.function_names()
        name = self._names.get(growth.spec)
        return None if name is None else (name, growth)


def resident_memory(pid: int) -> tuple[int, int] | None:
    """Return the resident and peak resident bytes of a process; None if it has exited."""
    try:
        with open(f"/proc/{pid}/status", "rb", buffering=0) as file:  # noqa: PTH123 (pathlib costs as much as the kernel)
            status = file.read()
    except OSError:
        return None
    _, _, rest = status.partition(b"VmHWM:")
    peak, _, rest = rest.partition(b" kB")
    _, _, rest = rest.partition(b"VmRSS:")
    resident, found, _ = rest.partition(b" kB")
    return (1024 * int(resident), 1024 * int(peak)) if found else None  # an exiting process has no memory
