"""Measures the memory of processors and their descendants, and limits it."""

from __future__ import annotations

import asyncio
import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from scaler.extensions.resources.limits import ContainerMemory, MemoryLimits
from scaler.host import MemoryCgroup, cgroups, memory_cgroup, numbers_in
from scaler.worker.agent import events as e
from scaler.worker.agent.pool import ProcessorPool
from scaler.worker.agent.shell import Agent
from scaler.worker.agent.state import ProcessorState

LOAD_SHARE = 0.05
"""Maximum share of one CPU spent on measuring."""
MAX_READINGS = 3
READ_KILLS_SECONDS = 2.0
_STATUS_FIELDS = (b"RssAnon:", b"VmSwap:")
_ROLLUP_FIELDS = (b"Pss_Anon:", b"SwapPss:")


def limit_memory(agent: Agent) -> None:
    pool = agent.executor
    if not isinstance(pool, ProcessorPool):
        return
    limits = MemoryLimits.of(agent.config)

    def report(usage: Mapping[int, int], container: ContainerMemory | None) -> None:
        if agent.ended.done():
            return
        states = {number: processor.state for number, processor in pool.processors.items()}
        ending = ProcessorState.ENDING
        alive = {number: used for number, used in usage.items() if states.get(number, ending) is not ending}
        agent.take([e.MemoryExceeded(limits.excesses(alive, container))])

    loop = asyncio.get_running_loop()
    kills = KernelKills(loop)
    watch = MemoryWatch(loop, limits, None if agent.config.memory_limit_bytes else memory_cgroup(), agent.pids, report)
    agent.why_killed.append(kills.evidence)
    agent.on_close += [watch.close, kills.close]


class MemoryWatch:
    """Measures periodically and reports processors above a limit. Does nothing without a limit. In a cgroup with a
    limit, reports only if the largest process is a processor of this worker, and not while usage falls, since an
    exiting process takes a while to free its memory. The kernel's cheap counters count shared pages repeatedly. If
    these counters exceed a limit, exact shares are read, which makes the kernel visit all pages.
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
            # Reading exact shares would take too long here.
            usage = {number: min(used, counted_bytes(pid)) for number, pid in pids.items()}
            others = cgroup.pids().difference(*map(_with_descendants, pids.values()))
            if max(usage.values(), default=0) > max(map(_private_bytes, others), default=0):
                container = whole._replace(others_bytes=max(0, used - sum(usage.values())))
                self._report(usage, container)
        return whole.usable_bytes - used


class KernelKills:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        files = (folder / "memory.events" for folder in cgroups("memory"))
        self._path = next(filter(Path.exists, files), Path("/proc/vmstat"))
        self._before = self._last = self._count()
        """OOM kill counts at the last two readings: an exit may be noticed after the reading that includes its kill."""
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
        return numbers_in(self._path).get("oom_kill", 0)


def counted_bytes(pid: int) -> int:
    """Return the private bytes of a process and its descendants, counting shared pages repeatedly; 0 if the process has
    exited."""
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
        with contextlib.suppress(OSError):  # the process has exited, or the kernel does not list children
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
