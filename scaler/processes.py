"""Processes as the system sees them: how they end with their parent, and how they ended."""

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

READY_FD_VARIABLE = "SCALER_READY_FD"
"""Names a file descriptor that the component's parent reads one JSON line from, once the component is ready."""
PARENT_PID_VARIABLE = "SCALER_PARENT_PID"
"""Names the process whose death the component does not outlive."""
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
