"""Fork server: a small process that creates processors by forking itself, in milliseconds.

The agent forks it before starting any thread. The fork server imports what every processor needs and never starts a
thread. Each processor leads its own process group, so child processes of user code die with it. If the agent dies, the
fork server kills its processors and everything that tasks started, then exits. It outlives the agent because it has its
own session. If the fork server dies, the kernel kills its processors.

Requests (agent to fork server): a processor's number, with its `Descriptors`; or 0, once a task has a client. Reports
(fork server to agent): a processor's number with its pid after the start, and with a return code after the exit.

A task with its own client may wait for other tasks, and keeps its processor. Therefore, once a task has a client, the
fork server imports the client module. Later processors share that memory and start without delay.

Tasks with an environment have their own fork server: a program that an extension starts with `exec_fork_server`,
prepares, and replaces with `main`.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pickle
import select
import signal
import socket
import struct
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from scaler.config.worker import WorkerConfig
from scaler.interpreter import import_from_working_directory, worker_command
from scaler.process_state import begin_afresh, leave_removed_directory, lossy_stream
from scaler.processes import (
    PARENT_PID_VARIABLE,
    READY_FD_VARIABLE,
    adopt_orphans,
    end_descendants,
    end_of,
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
"""Seconds that a signalled processor waits for the agent, which may receive the same signal later."""
_CLIENT_MODULES = "hashlib", "scaler.client.client", "scaler.client.clusters"
"""Modules used by tasks with a client. A module missing here would be imported by each waiting task. Named as text,
because workers do not depend on clients."""
_CLIENTS = 0
"""In a request: import the modules of clients. In a report: the program accepts requests."""
MAX_REASON_BYTES = 16 * 1024


class ProcessReport(NamedTuple):
    number: int
    """Number of the processor; 0: a program has become a fork server."""
    is_start: bool
    value: int
    """Pid, or return code as in `subprocess`: the negative signal number of a killed process."""
    peak_bytes: int
    """Peak resident memory after the exit."""
    ended: int
    """Descriptor owned by the receiver, readable when the processor has exited; see `end_of`. -1 after the exit."""


class ForkServer:
    def __init__(self, pid: int, end: socket.socket, reason: int = -1) -> None:
        """reason: descriptor from which to read why a program ended."""
        self.pid = pid
        self._reason = reason
        self._socket = end
        self._has_clients = False
        end.setblocking(False)

    def fileno(self) -> int:
        return self._socket.fileno()

    def spawn(self, number: int, descriptors: Descriptors) -> None:
        """Request a processor. Raises OSError if the fork server is dead or too slow."""
        self.wake()
        socket.send_fds(self._socket, [_REQUEST.pack(number)], list(descriptors))

    def prepare_clients(self) -> None:
        """Import the modules of clients before forking any processor that is requested later."""
        if not self._has_clients:
            self._has_clients = True
            with contextlib.suppress(OSError):  # the fork server has exited, so the agent ends soon
                self._socket.send(_REQUEST.pack(_CLIENTS))

    def wake(self) -> None:
        """Resume the fork server, in case a task has stopped its parent process."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)

    def reports(self) -> list[ProcessReport] | None:
        """Return new reports; None if the fork server is dead. Raises OSError if file descriptors run out."""
        found: list[ProcessReport] = []
        while True:
            try:
                data = self._socket.recv(_REPORT.size)
            except BlockingIOError:
                return found
            except ConnectionError:
                data = b""
            if not data:
                return None
            number, is_start, value, peak_bytes = _REPORT.unpack(data)
            ended = end_of(value) if is_start and number else -1
            found.append(ProcessReport(number, is_start, value, peak_bytes, ended))

    def reason(self, position: int = 0) -> str:
        """Return why the fork server exited. position: MAX_REASON_BYTES for what the preparation of its environment
        does."""
        return os.pread(self._reason, MAX_REASON_BYTES, position).decode("utf-8", "replace").strip("\0 \n")

    def end(self) -> None:
        """Make the fork server end its processors and exit."""
        self.wake()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Kill the fork server, which ends all its processors, and wait for its exit."""
        for kill in os.kill, os.killpg:  # a program may have started an installer
            with contextlib.suppress(ProcessLookupError):
                kill(self.pid, signal.SIGKILL)
        if self._reason >= 0:
            os.close(self._reason)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        self._socket.close()


def start_fork_server(config: WorkerConfig) -> ForkServer:
    """Fork the fork server. Call from the main thread before any other thread exists."""
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
        for variable in (READY_FD_VARIABLE, PARENT_PID_VARIABLE):  # must not reach child processes of tasks
            os.environ.pop(variable, None)
        end_with_parent(signal.SIGCONT, agent_pid)  # even a stopped fork server notices the agent's death
        # Use new streams: the agent's may be redirected, and contain unflushed data.
        sys.stdout, sys.stderr = lossy_stream(1), lossy_stream(2)
        code = _serve(theirs, config, agent_stops)
    except BaseException:  # noqa: BLE001 (this process ends here and now, and must say why)
        sys.excepthook(*sys.exc_info())
    finally:
        # Skip the agent's exit hooks and stack.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def exec_fork_server(module: str, config: WorkerConfig, definition: bytes) -> ForkServer:
    """Start the program of a module, which prepares an environment and then runs `main` with its own arguments.

    definition: the environment's definition, for `definition_of`. Raises OSError."""
    from scaler.worker.credential import credential_text  # noqa: PLC0415 (the fork server of workers needs none)

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    document = os.memfd_create("scaler-environment")
    reason = os.memfd_create("scaler-reason")
    try:
        with os.fdopen(os.dup(document), "wb") as file:
            pickle.dump((definition, config, credential_text()), file)
        inherited = theirs.fileno(), stop_sign(), document, reason
        for descriptor in inherited:
            os.set_inheritable(descriptor, True)
        command = [*worker_command(module), *map(str, (*inherited, os.getpid()))]
        pid = os.posix_spawn(sys.executable, command, os.environ, setsid=True)
    except BaseException:
        ours.close()
        os.close(reason)
        raise
    finally:
        theirs.close()
        os.close(document)
        os.set_inheritable(stop_sign(), False)
    os.set_inheritable(reason, False)
    return ForkServer(pid, ours, reason)


def definition_of(document: int) -> bytes:
    return cast("bytes", _read(document)[0])


def _read(document: int) -> tuple[Any, ...]:
    with os.fdopen(os.dup(document), "rb") as file:
        file.seek(0)
        return cast("tuple[Any, ...]", pickle.load(file))  # noqa: S301 (written by the agent)


def main() -> None:
    """Run as the fork server of an environment. Does not return. Arguments: descriptors, and the agent's pid; see
    `exec_fork_server`."""
    requests, agent_stops, document, reason, agent_pid = map(int, sys.argv[1:])
    del sys.argv[1:]
    code = 1
    try:
        end_with_parent(signal.SIGCONT, agent_pid)
        begin_afresh()
        from scaler.worker.credential import keep_credential  # noqa: PLC0415

        _, config, credential = _read(document)
        os.close(document)
        for name in [entry.name for entry in Path("/proc/self/fd").iterdir() if int(entry.name) > 2]:
            with contextlib.suppress(OSError):
                os.set_inheritable(int(name), False)
        keep_credential(credential)
        code = _serve(socket.socket(fileno=requests), config, agent_stops, is_program=True)
    except BaseException:  # noqa: BLE001 (this process ends here and now, and must say why)
        with contextlib.suppress(OSError):
            os.pwrite(reason, traceback.format_exc(limit=-5).encode("utf-8", "replace"), 0)
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _serve(requests: socket.socket, config: WorkerConfig, agent_stops: int, *, is_program: bool = False) -> int:
    """Run until the agent closes its socket. In a forked processor: run it and return its exit code."""
    usual = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    if not is_program:
        _close_all_but(requests.fileno(), agent_stops)
    with _shared_imports():  # imported here, not in the agent
        import encodings.ascii  # noqa: F401, PLC0415

        from scaler.plugins import extensions, load  # noqa: PLC0415
        from scaler.worker.processor.main import StartPart, run_processor  # noqa: PLC0415
        from scaler.worker.processor.records import set_level, show_records  # noqa: PLC0415

        set_level(config)
        parts = [cast("StartPart", load(each.processor)) for each in extensions() if each.processor]
    import_from_working_directory()
    adopt_orphans()  # orphans of tasks are reaped here and die with the worker
    ended, ended_sign = _notice_ends()
    poll = select.poll()
    for descriptor in (requests.fileno(), ended):
        poll.register(descriptor, select.POLLIN)
    processors: dict[int, int] = {}  # number by pid
    if is_program:
        _report(requests, _CLIENTS, True, os.getpid())
    while True:
        for descriptor, _ in poll.poll():
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
                return 0
            (number,) = _REQUEST.unpack(data)
            if number == _CLIENTS:
                _prepare_clients()
                continue
            leave_removed_directory()
            if not (pid := _fork(descriptors[-1])):
                requests.close()
                _detach(ended, ended_sign)
                _share_signals(usual, agent_stops, descriptors[0])
                return run_processor(Descriptors(*descriptors), config, _connect, show_records, parts)
            for each in descriptors:
                os.close(each)
            _report_start(requests, processors, number, pid)


def _fork(crash_text: int) -> int:
    """Like `os.fork`. Returns -1 on failure, with the reason in the crash text."""
    try:
        return os.fork()
    except OSError as error:  # a limit on processes or memory was reached
        os.write(crash_text, f"cannot fork: {error.strerror}".encode())
        return -1


def _report_start(requests: socket.socket, processors: dict[int, int], number: int, pid: int) -> None:
    if pid < 0:
        _report(requests, number, False, 1)
    else:
        processors[pid] = number
        _report(requests, number, True, pid)


def _report(requests: socket.socket, number: int, is_start: bool, value: int, peak_bytes: int = 0) -> None:
    with contextlib.suppress(ConnectionError):  # the agent is dead, as the next read will show
        requests.send(_REPORT.pack(number, is_start, value, peak_bytes))


def _reap(requests: socket.socket, processors: dict[int, int]) -> None:
    """Report exited processors and reap all children. Kills a process group before its number can be reused."""
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            number = processors.pop(found.si_pid, None)
            if number is not None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(found.si_pid, signal.SIGKILL)
            _, status, usage = os.wait4(found.si_pid, 0)
            if number is not None:
                _report(requests, number, False, os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024)


@contextlib.contextmanager
def _shared_imports() -> Iterator[None]:
    """Exempt modules imported in this context from garbage collection, so that all processors share their memory."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # -W is meant for the modules of tasks
        yield
    gc.collect()
    gc.freeze()


def _prepare_clients() -> None:
    with _shared_imports():
        from scaler.plugins import extensions, load  # noqa: PLC0415
        from scaler.security import credential  # noqa: F401, PLC0415
        from scaler.serialization import by_value  # noqa: F401, PLC0415
        from scaler.worker.processor import storage  # noqa: F401, PLC0415

        for name in _CLIENT_MODULES:
            importlib.import_module(name)
        for extension in extensions():
            if extension.client:
                load(extension.client)
            if extension.prepare:
                cast("Callable[[], object]", load(extension.prepare))()


def _connect(config: WorkerConfig, address: str, is_host_store: bool) -> StoreConnection:
    from scaler.worker.processor.storage import connect  # noqa: PLC0415

    return connect(config, address, is_host_store)


def _notice_ends() -> tuple[int, int]:
    ended, ended_sign = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(ended_sign, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return ended, ended_sign


def _detach(*descriptors: int) -> None:
    """Make a new processor lead its own session, without input, and die with the fork server."""
    end_with_parent(signal.SIGKILL, os.getppid())
    os.setsid()
    signal.set_wakeup_fd(-1)
    for descriptor in descriptors:
        os.close(descriptor)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)


def _share_signals(usual: Mapping[signal.Signals, Any], agent_stops: int, tasks: int) -> None:
    """Make a new processor survive signals that a service manager or batch system sends to all processes of a unit.

    The agent also receives them and ends the processors after a grace period. A signal sent only to this process has
    its usual effect after AGENT_SECONDS, or immediately if the agent has closed the task socket to stop the task.
    Programs and forks started by tasks have the usual handlers.
    """

    def take_back() -> None:
        for number, action in usual.items():
            if signal.getsignal(number) is share:
                signal.signal(number, action)

    def share(number: int, frame: FrameType | None) -> None:
        """A handler, because programs would inherit SIG_IGN."""
        if not _is_ended(tasks) and is_readable(agent_stops, AGENT_SECONDS):
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


def _is_ended(tasks: int) -> bool:
    poll = select.poll()
    poll.register(tasks, select.POLLRDHUP)
    return any(event & select.POLLRDHUP for _, event in poll.poll(0))


def _close_all_but(*kept: int) -> None:
    """Close all other inherited descriptors, so that this process does not delay an end of file."""
    for name in [entry.name for entry in Path("/proc/self/fd").iterdir()]:
        descriptor = int(name)
        if descriptor > 2 and descriptor not in kept:
            with contextlib.suppress(OSError):
                os.close(descriptor)
