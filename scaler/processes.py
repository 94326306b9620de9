"""Processes as the system sees them: their end with their parent, their exit status, and their load."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
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
"""Names a file descriptor from which the component's parent reads one JSON line, once the component is ready."""
PARENT_PID_VARIABLE = "SCALER_PARENT_PID"
"""Names the process with which the component ends."""
LISTENING_FD_VARIABLE = "SCALER_LISTENING_FD"
"""Names the listening socket of a component, if its parent has bound it: then the address is known before it runs."""
COMPONENT_VARIABLE = "SCALER_COMPONENT"
"""Holds the configuration of a component as a JSON document."""
MAX_ROUNDS = 20
"""Rounds over all processes to kill the matching ones; each kills those that were born during the round before."""
ROUND_SECONDS = 1.0
"""Time limit of a round for the end of the processes that it has killed."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def end_with_parent(signal_number: int, parent_pid: int) -> None:
    """Request a signal for this process when the thread that started it ends, which includes the parent's death.

    For processes that the parent starts in its main thread. When the parent, parent_pid, has ended already, the signal
    is raised at once. Raises OSError when the system refuses.
    """
    if _libc().prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    # If the parent died before this request, the kernel never sends the signal.
    if os.getppid() != parent_pid:
        signal.raise_signal(signal_number)


def adopt_orphans() -> None:
    """Have descendants of this process whose parents have ended become its children, instead of those of init."""
    _libc().prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def after_fork(reset: Callable[[], object]) -> None:
    """Have each child that this process forks call a function. Does nothing where processes cannot fork."""
    if sys.platform != "win32":
        os.register_at_fork(after_in_child=reset)


def give_memory_back() -> None:
    """Return freed memory to the system, where the C library can. Takes milliseconds per hundred megabytes.

    glibc keeps the free end of the memory of every thread but the main one: up to twice the largest freed block.
    """
    if sys.platform == "linux" and hasattr(_libc(), "malloc_trim"):
        _libc().malloc_trim(0)


@cache
def _libc() -> ctypes.CDLL:
    """Return the C library. Looking a function up is slow, so a forked process inherits it from its parent."""
    return ctypes.CDLL(None, use_errno=True)


_stop_sign = -1


def stop_sign() -> int:
    """Return a descriptor that becomes readable, also in forked children, once a signal asks this process to end.

    That is when `handling_signals` handles one.
    """
    global _stop_sign  # noqa: PLW0603 (signals are for the whole process)
    if _stop_sign < 0:
        _stop_sign = os.eventfd(0)
    return _stop_sign


@contextlib.contextmanager
def handling_signals(numbers: Collection[int], handler: Callable[[int, int], None]) -> Iterator[None]:
    """Call handler(signal, count) at each of these signals; count: how many have come. For the main thread.

    SIGHUP stays ignored where `nohup` has asked for it.
    """
    count = itertools.count(1)

    def handle(number: int, _: object) -> None:
        if _stop_sign >= 0:
            os.eventfd_write(_stop_sign, 1)
        handler(number, next(count))

    before = {
        each: signal.signal(each, handle)
        for each in numbers
        if not (each == getattr(signal, "SIGHUP", None) and signal.getsignal(each) is signal.SIG_IGN)
    }
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def absolute(path: str | Path) -> Path:
    """Return the absolute path. Below / if the working directory was removed, where it names no file."""
    try:
        return Path(path).absolute()
    except FileNotFoundError:
        return Path("/", path)


def describe_exit(returncode: int | None) -> str:
    """Return how a process ended in words, from a return code as in `subprocess` (negative: minus the signal)."""
    if returncode is None:
        return "unknown exit code"
    if returncode >= 0:
        return f"exit code {returncode}"
    try:
        name = f" ({signal.Signals(-returncode).name})"
    except ValueError:
        name = ""
    return f"killed by signal {-returncode}{name}"


def exit_field(returncode: int | None) -> str:
    """Return how a process ended as a field of a log line: `signal=SIGKILL` or `exit_code=1`."""
    if returncode is None or returncode >= 0:
        return f"exit_code={'unknown' if returncode is None else returncode}"
    try:
        return f"signal={signal.Signals(-returncode).name}"
    except ValueError:
        return f"signal={-returncode}"


def end_processes_with(entries: Collection[str]) -> None:
    """Kill every other process of this user that was started with one of these environment entries (`NAME=value`).

    Every descendant inherits a mark in the environment, even one that has left its parent and its process group.
    """
    marks = {entry.encode() for entry in entries}
    if marks:
        _end_processes(lambda: _processes(lambda environment: not marks.isdisjoint(environment)))


def end_others_born_with(*names: str) -> None:
    """Kill every other process of this user that was started with this process's values of these variables.

    Variables that this process does not have are ignored; without any, this does nothing.
    """
    marks = {f"{name}={os.environ[name]}".encode() for name in names if name in os.environ}
    if marks:
        _end_processes(lambda: _processes(marks.issubset))


def end_descendants(spared: Collection[int] = ()) -> None:
    """Kill all descendants of this process, which has called `adopt_orphans`. spared: pids of those that live on."""
    _end_processes(lambda: _children(spared), are_own=True)


def _end_processes(find: Callable[[], Iterator[int]], *, are_own: bool = False) -> None:
    """Kill the processes whose pidfds are found, until none is. are_own: they are children that nothing else awaits."""
    for _ in range(MAX_ROUNDS):
        with contextlib.ExitStack() as after:
            waiting = select.poll()
            count = 0
            for pidfd in find():
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
                    if are_own:
                        with contextlib.suppress(ChildProcessError):  # the kernel has, because SIGCHLD is ignored
                            os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
                    count -= 1


def _children(spared: Collection[int] = ()) -> Iterator[int]:
    """Yield a pidfd of each child of this process. The caller closes it. None where the kernel does not list them."""
    with contextlib.suppress(OSError):
        for thread in Path("/proc/self/task").iterdir():
            for pid in (thread / "children").read_bytes().split():
                if int(pid) not in spared:
                    yield os.pidfd_open(int(pid))


def _processes(is_chosen: Callable[[Collection[bytes]], bool]) -> Iterator[int]:
    """Yield a pidfd of each other chosen process. The caller closes it."""
    for name in [path.name for path in Path("/proc").iterdir()]:
        if not name.isdigit() or int(name) == os.getpid():
            continue
        environ = Path("/proc", name, "environ")
        with contextlib.suppress(OSError):  # it has ended, or belongs to another user
            if not is_chosen(environ.read_bytes().split(b"\0")):
                continue
            pidfd = os.pidfd_open(int(name))
            # Again, now that the pidfd pins the number: before, it may have been reused.
            if is_chosen(environ.read_bytes().split(b"\0")):
                yield pidfd
            else:
                os.close(pidfd)


LOAD_SECONDS = 1.0
"""Shortest interval over which CPU use is measured."""


class Load(NamedTuple):
    """The load of a process. cpu_percent: of one core, so a process with threads may use more than 100."""

    cpu_percent: float = 0.0
    rss_bytes: int = 0


class LoadMeter:
    """Measures processes over intervals of at least a second, however often it is asked.

    The kernel counts CPU time in hundredths of a second: over a short interval, one of them is several CPUs. Not
    psutil: importing it costs every agent and scheduler 1.5 MB and 10 ms.
    """

    def __init__(self, least_seconds: float = LOAD_SECONDS) -> None:
        self._least_seconds = least_seconds
        self._ticks_per_second = os.sysconf("SC_CLK_TCK")
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._last: dict[int, _Measured] = {}

    def measure(self, pids: Collection[int] = ()) -> dict[int, Load]:
        """Return the load of this process and of these, by pid, without those that have ended or are not visible.

        The CPU use is that of the last interval, and of the first one the average since the process began.
        """
        last, self._last = self._last, {}
        found: dict[int, Load] = {}
        for pid in {os.getpid(), *pids}:
            try:
                line = Path("/proc", str(pid), "stat").read_bytes()
            except OSError:
                continue
            # See `man proc_pid_stat`; counted from the third field on, because a name may have blanks and brackets.
            fields = line.rpartition(b")")[2].split()
            now, born = time.clock_gettime(time.CLOCK_BOOTTIME), int(fields[19]) / self._ticks_per_second
            used = (int(fields[11]) + int(fields[12])) / self._ticks_per_second
            before = last.get(pid)
            if before is None or before.born != born:
                before = _Measured(born, born, 0.0, 0.0)
            if now - before.at >= max(self._least_seconds, 1 / self._ticks_per_second):
                before = _Measured(born, now, used, 100 * (used - before.used) / (now - before.at))
            self._last[pid] = before
            found[pid] = Load(before.percent, int(fields[21]) * self._page_bytes)
        return found


class _Measured(NamedTuple):
    """CPU seconds that a process had used by a time, and its use in the interval before. Times are since the boot."""

    born: float
    at: float
    used: float
    percent: float
