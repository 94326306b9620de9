"""The fork server: a small process that makes processors by forking itself, in milliseconds.

The agent forks it before it has any thread. The fork server imports what every processor needs, never starts a thread,
and waits for requests on a socket. Each processor leads a process group of its own, so what user code started ends with
it. When the agent is gone, the fork server ends its processors, all that their tasks have started, and itself; it is in
a session of its own so that it lives to do so. When the fork server is gone, the kernel kills its processors.

Requests (agent to fork server): the processor's number, with its `Descriptors`. Reports (fork server to agent): the
processor's number with a pid when it was started, with a return code when it has ended. A pidfd comes with the pid
where the system has pidfds.

A task with a client of its own may wait for other tasks, and each that waits keeps its processor. So when the first one
imports its client, the fork server does so at once: the processors after it share that memory, and start without delay.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import importlib
import os
import select
import signal
import socket
import struct
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

from scaler.config.worker import WorkerConfig
from scaler.process_state import leave_removed_directory, lossy_stream
from scaler.processes import (
    PARENT_PID_VARIABLE,
    READY_FD_VARIABLE,
    adopt_orphans,
    end_descendants,
    end_of,
    end_others_born_with,
    end_with_parent,
    is_readable,
    stop_sign,
)
from scaler.worker.frames import Descriptors

if TYPE_CHECKING:  # the agent imports this module
    from scaler.worker.processor.functions import StoreConnection

_REQUEST = struct.Struct("<I")
_REPORT = struct.Struct("<I?iQ")
_MAX_SIGNS = 4096
AGENT_SECONDS = 2.0
"""How long a processor that gets a signal waits for the agent to get one, too: the order is not defined."""
_CLIENT_ENTRY_MODULE = "scaler.client.client"
"""A task that has a client imports this first. By name: a worker knows nothing of clients."""
_NESTED_MODULE = "scaler.client.nested"
_CLIENT_MODULES = ("hashlib", _CLIENT_ENTRY_MODULE, _NESTED_MODULE, "scaler.client.sockets")
"""Modules that a task with a client uses. A module missing here costs each waiting task its import."""


class ProcessReport(NamedTuple):
    """A processor was started, or it has ended."""

    number: int
    is_start: bool
    value: int
    """Its pid, or its return code as in `subprocess`: minus the signal for a killed process."""
    peak_bytes: int
    """Its largest resident memory, when it has ended."""
    ended: int
    """Readable when the started processor has ended: see `end_of`. Belongs to the reader. -1 after the end."""


class ForkServer:
    def __init__(self, pid: int, end: socket.socket) -> None:
        self.pid = pid
        self._socket = end
        end.setblocking(False)

    def fileno(self) -> int:
        return self._socket.fileno()

    def spawn(self, number: int, descriptors: Descriptors) -> None:
        """Request a processor. Raises OSError when the fork server is gone or does not keep up."""
        self.wake()
        socket.send_fds(self._socket, [_REQUEST.pack(number)], list(descriptors))

    def wake(self) -> None:
        """Continue the fork server, in case a task has stopped its parent process."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)

    def reports(self) -> list[ProcessReport] | None:
        """Return what has happened; None when the fork server is gone. Raises OSError without a free descriptor."""
        found: list[ProcessReport] = []
        while True:
            try:
                data, descriptors, flags, _ = socket.recv_fds(self._socket, _REPORT.size, 1)
            except BlockingIOError:
                return found
            except ConnectionError:
                data = b""
            if not data:
                return None
            if flags & socket.MSG_CTRUNC:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            number, is_start, value, peak_bytes = _REPORT.unpack(data)
            ended = descriptors[0] if descriptors else end_of(value) if is_start else -1
            found.append(ProcessReport(number, is_start, value, peak_bytes, ended))

    def close(self) -> None:
        """End the fork server and all its processors at once, and wait until it is gone."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        self._socket.close()


def start_fork_server(config: WorkerConfig) -> ForkServer:
    """Fork the fork server. Call it from the main thread, before there is any other thread."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    agent_pid, agent_stops = os.getpid(), stop_sign()
    pid = os.fork()
    if pid:
        theirs.close()
        return ForkServer(pid, ours)
    code = 1
    try:
        ours.close()
        os.setsid()
        for variable in (READY_FD_VARIABLE, PARENT_PID_VARIABLE):  # meant for the agent, not for what tasks start
            os.environ.pop(variable, None)
        end_with_parent(signal.SIGCONT, agent_pid)  # so that a stopped fork server sees the end of its agent, too
        # Streams of its own: the agent's may lead elsewhere, and hold what it has not written yet.
        sys.stdout, sys.stderr = lossy_stream(1), lossy_stream(2)
        code = _serve(theirs, config, agent_stops)
    except BaseException:  # noqa: BLE001 (this process ends here and now, and must say why)
        sys.excepthook(*sys.exc_info())
    finally:
        # Neither the agent's exit hooks nor its stack belong to this process.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _serve(requests: socket.socket, config: WorkerConfig, agent_stops: int) -> int:
    """Run the fork server until the agent closes its socket. In a new processor: run that; return its exit code."""
    usual = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    _close_all_but(requests.fileno(), agent_stops)
    with _shared_imports():  # here, so that the agent need not
        import encodings.ascii  # noqa: F401, PLC0415

        from scaler.worker.processor.calling import import_from_working_directory  # noqa: PLC0415
        from scaler.worker.processor.main import run_processor  # noqa: PLC0415
    import_from_working_directory()
    adopt_orphans()  # what the tasks leave behind ends with the worker, and is reaped here
    client_sign = os.eventfd(0)
    ended, ended_sign = _notice_ends()
    poll = select.poll()
    for descriptor in (requests.fileno(), client_sign, ended):
        poll.register(descriptor, select.POLLIN)
    processors: dict[int, int] = {}  # number by pid
    is_client_new = False
    while True:
        ready = [descriptor for descriptor, _ in poll.poll(0 if is_client_new else None)]
        if not ready:
            is_client_new = False
            _prepare_large_values()
        if client_sign in ready:  # before any request: the next processor needs it most likely
            ready.remove(client_sign)
            poll.unregister(client_sign)
            os.close(client_sign)
            client_sign = -1
            _prepare_clients(config)
            is_client_new = True
        for descriptor in ready:
            if descriptor == ended:
                os.read(ended, _MAX_SIGNS)
                _reap(requests, processors)
                continue
            try:
                data, descriptors, _, _ = socket.recv_fds(requests, _REQUEST.size, len(Descriptors._fields))
            except ConnectionError:
                data = b""
            if not data:
                end_descendants()
                end_others_born_with(*config.own_variables)  # the agent's manager may be gone as well
                return 0
            leave_removed_directory()
            if not (pid := _fork(descriptors[-1])):
                requests.close()
                if client_sign >= 0:
                    sys.meta_path.insert(0, _ClientImportHook(client_sign))
                _detach(ended, ended_sign)
                _share_signals(usual, agent_stops)
                return run_processor(Descriptors(*descriptors), config, _connect, _show_records)
            for each in descriptors:
                os.close(each)
            _report_start(requests, processors, _REQUEST.unpack(data)[0], pid)


def _fork(crash_text: int) -> int:
    """Fork, as `os.fork`; -1 when the system refuses, and then the reason is in the file that explains a death."""
    try:
        return os.fork()
    except OSError as error:  # a limit of processes or memory
        os.write(crash_text, f"cannot fork: {error.strerror}".encode())
        return -1


def _report_start(requests: socket.socket, processors: dict[int, int], number: int, pid: int) -> None:
    """Report a new processor, or its end when there is no process."""
    if pid < 0:
        _report(requests, _REPORT.pack(number, False, 1, 0))
        return
    processors[pid] = number
    report = _REPORT.pack(number, True, pid, 0)
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:  # the agent watches the process: this one must not have the thread of `end_of`
        _report(requests, report)
    else:
        _report(requests, report, [pidfd])
        os.close(pidfd)


def _report(requests: socket.socket, report: bytes, descriptors: Sequence[int] = ()) -> None:
    with contextlib.suppress(ConnectionError):  # the agent is gone: that is read next
        socket.send_fds(requests, [report], descriptors)


def _reap(requests: socket.socket, processors: dict[int, int]) -> None:
    """Report ended processors and collect all children. A group is killed before its number can be reused."""
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            number = processors.pop(found.si_pid, None)
            if number is not None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(found.si_pid, signal.SIGKILL)
            _, status, usage = os.wait4(found.si_pid, 0)
            if number is not None:
                returncode = os.waitstatus_to_exitcode(status)
                _report(requests, _REPORT.pack(number, False, returncode, usage.ru_maxrss * 1024))


@contextlib.contextmanager
def _shared_imports() -> Iterator[None]:
    """While in this context, import modules whose memory all processors share: the collector does not write to it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the options of the interpreter are for the modules of tasks
        yield
    gc.collect()
    gc.freeze()


def _prepare_clients(config: WorkerConfig) -> None:
    with _shared_imports():
        from scaler.serialization import by_value  # noqa: F401, PLC0415
        from scaler.worker.processor.records import set_level  # noqa: PLC0415

        for name in _CLIENT_MODULES:
            importlib.import_module(name)
    importlib.import_module(_NESTED_MODULE).prepare()
    set_level(config)
    gc.freeze()


def _prepare_large_values() -> None:
    with _shared_imports():
        from scaler.security import credential  # noqa: F401, PLC0415
        from scaler.worker.processor import storage  # noqa: F401, PLC0415


def _connect(config: WorkerConfig, address: str, is_host_store: bool) -> StoreConnection:
    """In a processor: connect to a store. Imports its client for the first large value, or shares it already."""
    from scaler.worker.processor.storage import connect  # noqa: PLC0415

    return connect(config, address, is_host_store)


def _show_records(config: WorkerConfig, running: Callable[[], bytes], report: Callable[[str, str, str], None]) -> None:
    """In a processor: show the log records of tasks, once `logging` is imported."""
    from scaler.worker.processor.records import show_records  # noqa: PLC0415

    show_records(config, running, report)


class _ClientImportHook:
    """First in a processor's `sys.meta_path`: finds nothing, but notifies the fork server when a task has a client."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> None:
        if name == _CLIENT_ENTRY_MODULE and self in sys.meta_path:
            sys.meta_path.remove(self)
            with contextlib.suppress(OSError):  # the task has closed descriptors that it did not open
                os.eventfd_write(self._descriptor, 1)
                os.close(self._descriptor)


def _notice_ends() -> tuple[int, int]:
    """Have the end of a child make the first descriptor of a pipe readable. Returns both."""
    ended, ended_sign = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(ended_sign, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return ended, ended_sign


def _detach(*descriptors: int) -> None:
    """Have a new processor lead a group of its own, with no input, and end with the fork server."""
    end_with_parent(signal.SIGKILL, os.getppid())
    os.setsid()
    signal.set_wakeup_fd(-1)
    for descriptor in descriptors:
        os.close(descriptor)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)


def _share_signals(usual: Mapping[signal.Signals, Any], agent_stops: int) -> None:
    """Let a new processor outlast the signals by which a service manager or batch system ends all processes of a unit.

    The agent gets them as well, and ends the processors when their tasks have had the time to end; a death by such a
    signal would count as their tasks' fault. A signal for this process alone has its usual effect, after AGENT_SECONDS.
    Programs and forks of tasks have the usual signals.
    """

    def take_back() -> None:
        for number, action in usual.items():
            if signal.getsignal(number) is share:
                signal.signal(number, action)

    def share(number: int, frame: FrameType | None) -> None:
        """Not SIG_IGN, which programs would inherit."""
        if is_readable(agent_stops, AGENT_SECONDS):
            return
        action = usual[signal.Signals(number)]
        if callable(action):
            action(number, frame)
        else:
            signal.signal(number, action)
            signal.raise_signal(number)

    for number, action in usual.items():
        signal.signal(number, action if action is signal.SIG_IGN else share)
        signal.siginterrupt(number, False)
    os.register_at_fork(after_in_child=take_back)


def _close_all_but(*kept: int) -> None:
    """Close what the agent had open, so that this process holds back no end of file."""
    for name in [entry.name for entry in Path("/proc/self/fd").iterdir()]:
        descriptor = int(name)
        if descriptor > 2 and descriptor not in kept:
            with contextlib.suppress(OSError):
                os.close(descriptor)
