"""Measures the memory of processors, and of what their tasks have started, where there are limits of it.

And tells whether the kernel has ended one of them because memory ran out."""

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

LOAD_SHARE = 0.05
"""Of one CPU, measuring takes no more than this."""
MAX_READINGS = 3
"""Of the exact shares, while processes begin and end."""
READ_KILLS_SECONDS = 2.0
_STATUS_FIELDS = (b"RssAnon:", b"VmSwap:")
_ROLLUP_FIELDS = (b"Pss_Anon:", b"SwapPss:")


class MemoryWatch:
    """Measures periodically, and reports what is above a limit. Without a limit it does nothing.

    In a cgroup with a limit, which others may share, it acts for the processors of this worker only, and only when one
    of them is the largest process there. It waits while memory is given back: a process that ends takes a while.

    The counters that the kernel keeps of each process are cheap to read, but count a page that a process shares with
    its parent for both. Only when they exceed a limit does the watch read the exact shares: then the kernel visits all
    pages.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limits: MemoryLimits,
        cgroup: MemoryCgroup | None,
        pids: Callable[[], Mapping[int, int]],
        report: Callable[[Mapping[int, int], ContainerMemory | None], None],
    ) -> None:
        """cgroup: its limit counts, too. pids: returns pids by processor. report: takes bytes by processor."""
        self._loop = loop
        self._limits = limits
        self._cgroup = cgroup
        self._cgroup_bytes = 0
        """What its processes used at the last measurement."""
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
        """Report when the container is exceeded and its largest process is a processor; return what is left there."""
        used, before = cgroup.used_bytes(), self._cgroup_bytes
        self._cgroup_bytes = used
        whole = ContainerMemory(cgroup.limit_bytes, used)
        if whole.is_exceeded(0) and used >= before:
            pids = self._pids()
            usage = {number: min(used, counted_bytes(pid)) for number, pid in pids.items()}  # exact takes too long here
            others = cgroup.pids().difference(*map(_with_descendants, pids.values()))
            if max(usage.values(), default=0) > max(map(_private_bytes, others), default=0):
                container = whole._replace(others_bytes=max(0, used - sum(usage.values())))
                self._report(usage, container)
        return whole.usable_bytes - used


class KernelKills:
    """Tells whether the kernel has lately killed a process of this cgroup (or machine) for lack of memory."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        group = next((line[3:] for line in _lines("/proc/self/cgroup") if line.startswith("0::")), "")
        self._path = Path(f"/sys/fs/cgroup{group}/memory.events")
        if not self._path.exists():
            self._path = Path("/proc/vmstat")
        self._before = self._last = self._count()
        """At the last two readings: a processor's exit may be seen after a reading that has its kill."""
        self._timer = loop.call_later(READ_KILLS_SECONDS, self._read)

    def close(self) -> None:
        self._timer.cancel()

    def evidence(self) -> str:
        """Return what the kernel has counted in the last seconds; empty when that is nothing."""
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
    """Return the private memory of a process and its descendants, too much where they share pages. 0: it is gone."""
    return sum(map(_private_bytes, _with_descendants(pid)))


def _private_bytes(pid: int) -> int:
    return bytes_of(pid, "status", _STATUS_FIELDS)


def exact_bytes(pid: int) -> int:
    """Return the same with exact shares of pages, which takes milliseconds per gigabyte.

    Read again when a process begins or ends meanwhile; the smallest of several sums counts.
    """
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
    """Return a process and its descendants, without those that have ended and still have their pids."""
    return [each for each in _with_descendants(pid) if _private_bytes(each)]


def _with_descendants(pid: int) -> Iterator[int]:
    pids = [pid]
    for each in pids:
        yield each
        with contextlib.suppress(OSError):  # it has ended; or the kernel does not list children
            for thread in Path("/proc", str(each), "task").iterdir():
                with contextlib.suppress(OSError):
                    pids += map(int, (thread / "children").read_bytes().split())


def bytes_of(pid: int, name: str, fields: tuple[bytes, ...]) -> int:
    """Return the sum of some fields of a file of a process, in bytes; 0 when it is not readable."""
    try:
        lines = Path("/proc", str(pid), name).read_bytes().splitlines()
    except OSError:
        return 0
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(fields))
