"""The nursery: a small process that makes processors by forking itself, in milliseconds.

The agent forks it before it has any thread. The nursery imports what every processor needs, never starts a thread, and
waits for orders on a socket. Each processor leads a process group of its own, so what user code started ends with it.
When the agent is gone, the nursery ends its processors, all that their tasks have started, and itself; it is in a
session of its own so that it lives to do so. When the nursery is gone, the kernel kills its processors.

Orders (agent to nursery): the processor's number, with its `Descriptors`.
Reports (nursery to agent): `SPAWNED` with a pid and a pidfd, `EXITED` with a return code as in `subprocess`.

A task with a client of its own may wait for other tasks, and each that waits keeps its processor. So when the first one
imports its client, the nursery does so at once: the processors after it share that memory, and lose no time.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import struct
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from scaler.config.worker import OWN_VARIABLES
from scaler.processes import PARENT_PID_VARIABLE, READY_FD_VARIABLE, end_others_born_with, end_with_parent
from scaler.worker.printing import ToldStream

_ORDER = struct.Struct("<I")
_REPORT = struct.Struct("<BIi")
_SPAWNED = 1
_EXITED = 2
_SIGNS_OF_A_CLIENT = ("scaler.client.in_task", "scaler.client.nested")
"""A task imports one of these first when it has a client. By name: a worker knows nothing of clients."""
_CLIENT_MODULES = ("hashlib", "scaler.client.in_task", "scaler.client.client", "scaler.client.nested")
"""What a client inside a task needs."""
_LATER_MODULES = ("scaler.object_storage.client",)
"""What it needs for large values only: imported when there is no order to attend to."""


@dataclass(frozen=True, slots=True)
class ProcessorSettings:
    """What a processor takes from the worker's configuration."""

    garbage_collect_interval_seconds: float
    trim_memory_threshold_bytes: int
    preload: str | None


class Descriptors(NamedTuple):
    """What a processor is born with: three sockets, the shared page, and a file for the interpreter's last words."""

    tasks: int
    definitions: int
    results: int
    page: int
    words: int


@dataclass(frozen=True, slots=True)
class Spawned:
    """pidfd: a descriptor that names the process for sure; it belongs to the reader."""

    number: int
    pid: int
    pidfd: int


@dataclass(frozen=True, slots=True)
class Exited:
    """returncode: as in `subprocess`, minus the signal for a killed process."""

    number: int
    returncode: int


class Nursery:
    """The agent's end."""

    def __init__(self, pid: int, end: socket.socket) -> None:
        self.pid = pid
        self._socket = end
        end.setblocking(False)

    def fileno(self) -> int:
        return self._socket.fileno()

    def spawn(self, number: int, descriptors: Descriptors) -> None:
        """Order a processor. Raises OSError when the nursery is gone or does not keep up."""
        self.wake()
        socket.send_fds(self._socket, [_ORDER.pack(number)], list(descriptors))

    def wake(self) -> None:
        """Have it go on, should a task have stopped its parent process."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)

    def reports(self) -> list[Spawned | Exited] | None:
        """Return what has happened; None when the nursery is gone."""
        found: list[Spawned | Exited] = []
        while True:
            try:
                data, descriptors, _, _ = socket.recv_fds(self._socket, _REPORT.size, 1)
            except BlockingIOError:
                return found
            except ConnectionError:
                return None
            if not data:
                return None
            kind, number, value = _REPORT.unpack(data)
            if kind == _SPAWNED:
                found.append(Spawned(number, value, descriptors[0]))
            else:
                found.append(Exited(number, value))

    def close(self) -> None:
        """End the nursery and all its processors at once, and wait until it is gone."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        self._socket.close()


def start_nursery(settings: ProcessorSettings) -> Nursery:
    """Fork the nursery. Call it from the main thread, before there is any other thread."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    agent_pid = os.getpid()
    pid = os.fork()
    if pid:
        theirs.close()
        return Nursery(pid, ours)
    code = 1
    try:
        ours.close()
        os.setsid()
        for variable in (READY_FD_VARIABLE, PARENT_PID_VARIABLE):  # meant for the agent, not for what tasks start
            os.environ.pop(variable, None)
        end_with_parent(signal.SIGCONT, agent_pid)  # to hear of the end even if somebody has stopped this process
        # Streams of our own: the agent's may lead elsewhere, and hold what it has not written yet.
        sys.stdout = ToldStream(1, "strict")
        sys.stderr = ToldStream(2, "backslashreplace")
        code = _tend(theirs, settings)
    except BaseException:  # noqa: BLE001 (this process ends here and now, and must say why)
        sys.excepthook(*sys.exc_info())
    finally:
        # Neither the agent's exit hooks nor its stack are ours.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _tend(orders: socket.socket, settings: ProcessorSettings) -> int:
    """Run the nursery until the agent closes its socket. In a new processor: run that, and return its exit code."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    _close_all_but(orders.fileno())
    from scaler.worker.processor import run_processor  # noqa: PLC0415 (imported here, so that the agent need not)

    _share()
    sought = os.eventfd(0)
    poll = select.poll()
    poll.register(orders, select.POLLIN)
    poll.register(sought, select.POLLIN)
    children: dict[int, tuple[int, int]] = {}
    later: tuple[str, ...] = ()
    while True:
        ready = [descriptor for descriptor, _ in poll.poll(0 if later else None)]
        if not ready:
            _import(later)
            later = ()
        if sought in ready:  # before any order: whoever is born now needs it most likely
            ready.remove(sought)
            poll.unregister(sought)
            os.close(sought)
            sought = -1
            _import(_CLIENT_MODULES)
            later = _LATER_MODULES
        for descriptor in ready:
            if descriptor in children:
                poll.unregister(descriptor)
                number, pid = children.pop(descriptor)
                os.close(descriptor)
                returncode = _reap(pid)
                with contextlib.suppress(ConnectionError):  # the agent is gone: that is read next
                    orders.send(_REPORT.pack(_EXITED, number, returncode))
                continue
            try:
                data, descriptors, _, _ = socket.recv_fds(orders, _ORDER.size, len(Descriptors._fields))
            except ConnectionError:
                data = b""
            if not data:
                _end_all(pid for _, pid in children.values())
                return 0
            (number,) = _ORDER.unpack(data)
            pid = os.fork()
            if not pid:
                orders.close()
                for pidfd in children:
                    os.close(pidfd)
                if sought >= 0:
                    sys.meta_path.insert(0, _ClientSought(sought))
                return _be_born(run_processor, Descriptors(*descriptors), settings)
            for each in descriptors:
                os.close(each)
            pidfd = os.pidfd_open(pid)
            children[pidfd] = (number, pid)
            poll.register(pidfd, select.POLLIN)
            with contextlib.suppress(ConnectionError):
                socket.send_fds(orders, [_REPORT.pack(_SPAWNED, number, pid)], [pidfd])


def _import(names: Iterable[str]) -> None:
    for name in names:
        importlib.import_module(name)
    _share()


def _share() -> None:
    """Have all processors share what there is now, for as long as nobody writes to it: the collector must not."""
    gc.collect()
    gc.freeze()


class _ClientSought:
    """First in a processor's `sys.meta_path`: finds nothing, but tells the nursery when a task has a client."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> None:
        if name in _SIGNS_OF_A_CLIENT and self in sys.meta_path:
            sys.meta_path.remove(self)
            with contextlib.suppress(OSError):  # the task has closed what it did not know
                os.eventfd_write(self._descriptor, 1)
                os.close(self._descriptor)


def _end_all(pids: Iterable[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        _reap(pid)
    end_others_born_with(*OWN_VARIABLES)  # the agent's manager may be gone as well


def _be_born(
    run_processor: Callable[[Descriptors, ProcessorSettings], int],
    descriptors: Descriptors,
    settings: ProcessorSettings,
) -> int:
    end_with_parent(signal.SIGKILL, os.getppid())
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    return run_processor(descriptors, settings)


def _reap(pid: int) -> int:
    """Collect an ended processor. Its group goes first: as long as it is not collected its number is not used again."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _close_all_but(kept: int) -> None:
    """Close what the agent had open: nobody may wait for an end of file that this process holds back."""
    for name in [entry.name for entry in Path("/proc/self/fd").iterdir()]:
        descriptor = int(name)
        if descriptor > 2 and descriptor != kept:
            with contextlib.suppress(OSError):
                os.close(descriptor)
