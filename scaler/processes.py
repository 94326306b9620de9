"""Processes as the system sees them: how they end with their parent, how they ended, and what they use."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

READY_FD_VARIABLE = "SCALER_READY_FD"
"""Names a file descriptor that the component's parent reads one JSON line from, once the component is ready."""
PARENT_PID_VARIABLE = "SCALER_PARENT_PID"
"""Names the process whose death the component does not outlive."""
COMPONENT_VARIABLE = "SCALER_COMPONENT"
"""Holds the configuration of a component as a JSON document."""
MAX_ROUNDS = 20
"""Looks at all processes for those to end; each round ends what the one before has missed because it was just born."""
ROUND_SECONDS = 1.0
"""How long a round waits for what it has killed."""

_PR_SET_PDEATHSIG = 1


def end_with_parent(signal_number: int, parent_pid: int) -> None:
    """Have this process get a signal when the thread that made it ends, which a parent's death includes.

    For processes whose parent makes them in its main thread. When the parent, parent_pid, is gone already, the signal
    comes at once. Outside Linux this does nothing. Raises OSError when the system refuses.
    """
    if sys.platform != "linux":
        return
    if _libc().prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    # The parent may have died before the kernel knew of our wish; then it will never send the signal.
    if os.getppid() != parent_pid:
        signal.raise_signal(signal_number)


def give_memory_back() -> None:
    """Give freed memory back to the system, where the C library can. Takes milliseconds per hundred megabytes."""
    if sys.platform == "linux":
        libc = _libc()
        if hasattr(libc, "malloc_trim"):
            libc.malloc_trim(0)


@cache
def _libc() -> ctypes.CDLL:
    """Return the C library. To look a function up takes a while, so a forked process has it from its parent."""
    return ctypes.CDLL(None, use_errno=True)


def describe_exit(returncode: int) -> str:
    """Say how a process ended, from a return code as in `subprocess` (negative: minus the signal)."""
    if returncode >= 0:
        return f"exit code {returncode}"
    try:
        name = f" ({signal.Signals(-returncode).name})"
    except ValueError:
        name = ""
    return f"killed by signal {-returncode}{name}"


def end_processes_with(entries: Collection[str]) -> None:
    """Kill every other process of this user that was born into an environment with one of these entries (`NAME=value`).

    A mark in the environment is inherited by all that a process starts, and outlives what parents and process groups
    tell: it finds those that have left both. Outside Linux this does nothing.
    """
    marks = {entry.encode() for entry in entries}
    if marks:
        _end_processes(lambda environment: not marks.isdisjoint(environment))


def end_others_born_with(*names: str) -> None:
    """Kill every other process of this user that was born with this process's values of these environment variables.

    Variables that this process does not have are not looked at; without any, nothing is done. Nor outside Linux.
    """
    marks = {f"{name}={os.environ[name]}".encode() for name in names if name in os.environ}
    if marks:
        _end_processes(marks.issubset)


_Choice = Callable[[Collection[bytes]], bool]
"""Chooses a process by the entries of its environment."""


def _end_processes(is_chosen: _Choice) -> None:
    if sys.platform != "linux":
        return
    for _ in range(MAX_ROUNDS):
        with contextlib.ExitStack() as after:
            waiting = select.poll()
            count = 0
            for pidfd in _processes(is_chosen):
                after.callback(os.close, pidfd)
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                waiting.register(pidfd, select.POLLIN)
                count += 1
            if not count:
                return
            deadline = time.monotonic() + ROUND_SECONDS
            while count and (left := deadline - time.monotonic()) > 0:
                for pidfd, _ in waiting.poll(left * 1000):
                    waiting.unregister(pidfd)
                    count -= 1


def _processes(is_chosen: _Choice) -> Iterator[int]:
    """Yield a pidfd, which belongs to the reader, of each other process that is chosen."""
    for name in [place.name for place in Path("/proc").iterdir()]:
        if not name.isdigit() or int(name) == os.getpid():
            continue
        place = Path("/proc", name, "environ")
        with contextlib.suppress(OSError):  # it has ended, or belongs to somebody else
            if not is_chosen(place.read_bytes().split(b"\0")):
                continue
            pidfd = os.pidfd_open(int(name))
            # Once more, now that the number cannot be given to another process: it may have been, before.
            if is_chosen(place.read_bytes().split(b"\0")):
                yield pidfd
            else:
                os.close(pidfd)


class Load(NamedTuple):
    """What a process uses. cpu_percent: of one core, so a process with threads may use more than 100."""

    cpu_percent: float = 0.0
    rss_bytes: int = 0


class LoadMeter:
    """Measures a few processes, each since the time before. Linux only.

    Not psutil: importing it takes every agent and scheduler 1.5 MB and a hundredth of a second.
    """

    def __init__(self) -> None:
        self._ticks_per_second = os.sysconf("SC_CLK_TCK")
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._before: dict[int, tuple[bytes, float, float]] = {}
        """When a process began, as the kernel says it; when it was measured; the CPU seconds that it had used."""

    def measure(self, pids: Collection[int] = ()) -> dict[int, Load]:
        """Return the load of this process and of these, by pid, without those that are gone or cannot be seen.

        What is measured for the first time has used no CPU yet.
        """
        before, self._before = self._before, {}
        found: dict[int, Load] = {}
        for pid in {os.getpid(), *pids}:
            try:
                line = Path("/proc", str(pid), "stat").read_bytes()
            except OSError:
                continue
            # By `man proc_pid_stat`, counted from the third field on: a name may have blanks and brackets.
            fields = line.rpartition(b")")[2].split()
            now = time.monotonic()
            used = (int(fields[11]) + int(fields[12])) / self._ticks_per_second
            born = fields[19]
            last_born, last_now, last_used = before.get(pid, (born, now, used))
            percent = 100 * (used - last_used) / (now - last_now) if last_born == born and now > last_now else 0.0
            self._before[pid] = (born, now, used)
            found[pid] = Load(percent, int(fields[21]) * self._page_bytes)
        return found
