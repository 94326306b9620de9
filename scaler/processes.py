"""Operating system processes: exit with the parent, signals, exit status, and load."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Set
from functools import cache
from pathlib import Path
from typing import NamedTuple

READY_FD_VARIABLE = "SCALER_READY_FD"  # a descriptor for one JSON line, written once the component is ready
PARENT_PID_VARIABLE = "SCALER_PARENT_PID"  # the process with which the component ends
LISTENING_FD_VARIABLE = "SCALER_LISTENING_FD"  # the listening socket, if bound by the parent
COMPONENT_VARIABLE = "SCALER_COMPONENT"
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []))
"""Signals that stop a component. A closing terminal sends SIGHUP, and systemd sends it in addition to SIGTERM."""
MAX_ROUNDS = 20  # rounds of killing matching processes; each kills those created during the previous round
ROUND_SECONDS = 1.0  # time limit per round for killed processes to end

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def end_with_parent(signal_number: int, parent_pid: int) -> None:
    """Request a signal for this process when the thread that started it, or the whole parent, ends. Use only for
    processes started by a main thread. If parent_pid has already ended, raises the signal immediately. Raises OSError
    if the system refuses."""
    if _libc().prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    # If the parent died before this request, the kernel never sends the signal.
    if os.getppid() != parent_pid:
        signal.raise_signal(signal_number)


def adopt_orphans() -> None:
    """Reparent orphaned descendants to this process instead of init."""
    _libc().prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


SIGNS_OF_NO_PIDFDS = (errno.ENOSYS, errno.EPERM)  # Linux before 5.3, and old seccomp profiles
POLL_SECONDS = 0.02  # polling interval for ends of processes without pidfds; longer for more than 20 of them


def end_of(pid: int) -> int:
    """Return a descriptor (pidfd or eventfd) that is readable after a process has ended. Raises OSError."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        born = b""
    except OSError as error:
        if error.errno not in SIGNS_OF_NO_PIDFDS:
            raise
        born = _born(pid)
    ended = os.eventfd(0 if born else 1)
    if born:
        try:
            copy = os.dup(ended)  # the reader may close the original
        except OSError:
            os.close(ended)
            raise
        threading.Thread(target=_watch, args=(pid, born, copy), name="end of a process", daemon=True).start()
    return ended


def _watch(pid: int, born: bytes, ended: int) -> None:
    while _born(pid) == born:
        time.sleep(POLL_SECONDS * max(1.0, threading.active_count() / 20))
    os.eventfd_write(ended, 1)
    os.close(ended)


def send_signal(pid: int, ended: int, number: int) -> None:
    """Send a signal. ended: from `end_of`. Raises ProcessLookupError once the process has ended."""
    try:
        signal.pidfd_send_signal(ended, number)
    except OSError as error:
        if error.errno not in (*SIGNS_OF_NO_PIDFDS, errno.EBADF):
            raise
        if is_readable(ended, 0.0):
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH)) from None
        os.kill(pid, number)


def _born(pid: int) -> bytes:
    try:
        fields = _stat_fields(pid)
    except OSError:
        return b""
    return b"" if fields[0] in b"ZX" else fields[19]


def _stat_fields(pid: int) -> list[bytes]:
    """Return the fields of `man proc_pid_stat` from the third on. The second may contain spaces and parentheses."""
    with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:  # noqa: PTH123 (an agent reads hundreds per second)
        return file.read().rpartition(b")")[2].split()


def is_readable(descriptor: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return any(event & select.POLLIN for _, event in poll.poll(seconds * 1000))


def after_fork(reset: Callable[[], object]) -> None:
    if sys.platform != "win32":
        os.register_at_fork(after_in_child=reset)


def give_memory_back() -> None:
    """Return freed memory to the system, if the C library supports it. Takes milliseconds per 100 MB."""
    if sys.platform == "linux" and hasattr(_libc(), "malloc_trim"):
        _libc().malloc_trim(0)


@cache
def _libc() -> ctypes.CDLL:
    """Return the C library. Cached, because lookups are slow; forked processes inherit the cache."""
    return ctypes.CDLL(None, use_errno=True)


_stop_sign = -1


def stop_sign() -> int:
    """Return a descriptor that becomes readable, even in forked children, once `handling_signals` has handled a
    signal."""
    global _stop_sign  # noqa: PLW0603 (signals are for the whole process)
    if _stop_sign < 0:
        _stop_sign = os.eventfd(0)
    return _stop_sign


@contextlib.contextmanager
def handling_signals(numbers: Collection[int], handler: Callable[[int, int], None]) -> Iterator[None]:
    """Call handler(signal, number of signals so far) for each of these signals. Main thread only. SIGHUP stays ignored
    under `nohup`. SIGHUP does not count, because it may precede or follow SIGTERM."""
    hangup = getattr(signal, "SIGHUP", None)
    count = 0

    def handle(number: int, _: object) -> None:
        nonlocal count
        if _stop_sign >= 0:
            os.eventfd_write(_stop_sign, 1)
        count += number != hangup
        handler(number, max(1, count))

    before = {
        each: signal.signal(each, handle)
        for each in numbers
        if not (each == hangup and signal.getsignal(each) is signal.SIG_IGN)
    }
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def absolute(path: str | Path) -> Path:
    """Return the absolute path, which is below / if the working directory was removed."""
    try:
        return Path(path).absolute()
    except FileNotFoundError:
        return Path("/", path)


def describe_exit(returncode: int | None) -> str:
    """Describe how a process ended, given a return code as in `subprocess`."""
    if returncode is None:
        return "unknown exit code"
    if returncode >= 0:
        return f"exit code {returncode}"
    name = signal_name(-returncode)
    return f"killed by signal {-returncode}{f' ({name})' if name else ''}"


def exit_field(returncode: int | None) -> str:
    if returncode is None or returncode >= 0:
        return f"exit_code={'unknown' if returncode is None else returncode}"
    return f"signal={signal_name(-returncode) or -returncode}"


def signal_name(number: int) -> str:
    return next((each.name for each in signal.Signals if each == number), "")


def end_processes_with(entries: Collection[str]) -> None:
    """Kill the user's other processes with any of these environment entries, which descendants inherit."""
    marks = {entry.encode() for entry in entries}
    if marks:
        _end_processes(lambda: _processes(marks))


SPARED: list[Callable[[], Collection[int]]] = []
"""Functions that return the pids of descendants spared by `end_descendants`."""


def end_descendants() -> None:
    """Kill all descendants of this process, except those in `SPARED`. Requires `adopt_orphans`."""
    spared = {pid for pids in SPARED for pid in pids()}
    _end_processes(lambda: _children(spared), are_own=True)


def _end_processes(find: Callable[[], Iterator[tuple[int, int]]], *, are_own: bool = False) -> None:
    for _ in range(MAX_ROUNDS):
        with contextlib.ExitStack() as after:
            waiting = select.poll()
            pids: dict[int, int] = {}
            for pid, ended in find():
                after.callback(os.close, ended)
                with contextlib.suppress(ProcessLookupError):
                    send_signal(pid, ended, signal.SIGKILL)
                waiting.register(ended, select.POLLIN)
                pids[ended] = pid
            if not pids:
                return
            deadline = time.monotonic() + ROUND_SECONDS
            while pids and (left := deadline - time.monotonic()) > 0:
                for ended, _ in waiting.poll(left * 1000):
                    waiting.unregister(ended)
                    pid = pids.pop(ended)
                    if are_own:
                        with contextlib.suppress(ChildProcessError):  # the kernel reaps if SIGCHLD is ignored
                            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG)


def _children(spared: Collection[int] = ()) -> Iterator[tuple[int, int]]:
    with contextlib.suppress(OSError):
        for thread in Path("/proc/self/task").iterdir():
            for pid in (thread / "children").read_bytes().split():
                if int(pid) not in spared:
                    yield int(pid), end_of(int(pid))


def _processes(marks: Set[bytes]) -> Iterator[tuple[int, int]]:
    for name in [path.name for path in Path("/proc").iterdir()]:
        if not name.isdigit() or int(name) == os.getpid():
            continue
        environ = Path("/proc", name, "environ")
        with contextlib.suppress(OSError):  # exited, or owned by another user
            if marks.isdisjoint(environ.read_bytes().split(b"\0")):
                continue
            ended = end_of(int(name))
            # Check again, now that the descriptor pins the pid, which may have been reused before.
            if marks.isdisjoint(environ.read_bytes().split(b"\0")):
                os.close(ended)
            else:
                yield int(name), ended


LOAD_SECONDS = 1.0  # minimum interval between CPU measurements


class Load(NamedTuple):
    """A process's load. cpu_percent: relative to one core, so threads may exceed 100."""

    cpu_percent: float = 0.0
    rss_bytes: int = 0


class LoadMeter:
    """Measures processes over intervals of at least a second. The kernel counts CPU time in hundredths of a second,
    which is too coarse for short intervals. psutil would cost every agent and scheduler 1.5 MB and 10 ms."""

    def __init__(self, least_seconds: float = LOAD_SECONDS) -> None:
        self._least_seconds = least_seconds
        self._ticks_per_second = os.sysconf("SC_CLK_TCK")
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._last: dict[int, _Measured] = {}

    def measure(self, pids: Collection[int] = ()) -> dict[int, Load]:
        """Return the load of this process and these pids over the last interval. Omits ended processes."""
        last, self._last = self._last, {}
        found: dict[int, Load] = {}
        for pid in {os.getpid(), *pids}:
            try:
                fields = _stat_fields(pid)
            except OSError:
                continue
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
    """CPU seconds used up to a time, and CPU use in the preceding interval. Times are since boot."""

    born: float
    at: float
    used: float
    percent: float
