"""Runs components as child processes, using SCALER_READY_FD and SCALER_PARENT_PID. See `supervision`."""

from __future__ import annotations

import contextlib
import fcntl
import os
import selectors
import socket
import subprocess
import sys
import sysconfig
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import IO, assert_never

from scaler.child_process import ChildProcess
from scaler.cluster import supervision
from scaler.config.setting import SettingsModel
from scaler.interpreter import inherited_environment, options_for_tasks
from scaler.output import STDERR, STDOUT, OutputStreams
from scaler.processes import COMPONENT_VARIABLE, LISTENING_FD_VARIABLE, absolute, describe_exit, end_of
from scaler.registry import Registration
from scaler.texts import escaped

LOOPBACK = "127.0.0.1"
MAX_ATTEMPTS = 100
PORTS_OF_A_SCHEDULER = 3  # for the scheduler, the object storage, and the monitors


class ReservedPorts:
    """Consecutive free TCP ports on loopback, starting at `first`, reserved until servers listen on them. A reserving
    socket is bound but does not listen. A server can bind its port because both allow address reuse."""

    def __init__(self, count: int) -> None:
        """Raises OSError if there are not enough consecutive free ports."""
        for attempt in range(1, MAX_ATTEMPTS + 1):
            self.first, self._sockets = 0, list[socket.socket]()
            try:
                for offset in range(count):
                    reserving = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
                    self._sockets.append(reserving)
                    # Bind before allowing reuse, so that a port reserved elsewhere is not taken.
                    reserving.bind((LOOPBACK, self.first + offset if offset else 0))
                    reserving.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    self.first = self._sockets[0].getsockname()[1]
                return
            except (OSError, OverflowError):
                self.release()
                if attempt == MAX_ATTEMPTS:
                    raise

    def address(self, index: int = 0) -> str:
        return f"tcp://{LOOPBACK}:{self.first + index}"

    def release(self) -> None:
        for reserving in self._sockets:
            reserving.close()
        self._sockets = []


REFRESH_SECONDS = 1.0  # maximum interval for refreshing the file with the cluster's name
_TIERS = {"object-storage-server": 0, "scheduler": 1}  # by kind of component; all other kinds depend on these (tier 2)
MAX_LAST_LINES = 20
MAX_LINE_BYTES = 2000
OUTPUT_PIPE_BYTES = 1024 * 1024  # output that a component may buffer ahead of the supervisor

_READ_BYTES = 64 * 1024
_MAX_DRAINED_READS = OUTPUT_PIPE_BYTES // _READ_BYTES + 1


def component(
    kind: str,
    config: SettingsModel,
    *,
    name: str = "",
    grace_seconds: float = 0.0,
    listening: socket.socket | None = None,
    independent: bool = False,
    optional: bool = False,
) -> supervision.ComponentProcess:
    """Return how to run a kind of `cluster.__main__.COMPONENTS`, or the process of an extension, with its configuration
    in the environment. name: in messages. listening: a socket for its processes to inherit. independent, optional: see
    `ComponentProcess`."""
    environment = {COMPONENT_VARIABLE: config.to_json(), **options_for_tasks()}
    if listening is not None:
        environment[LISTENING_FD_VARIABLE] = str(listening.fileno())
    if paths := _own_import_paths(sys.path):
        inherited = inherited_environment().get("PYTHONPATH", "")
        environment["PYTHONPATH"] = os.pathsep.join([*paths, inherited] if inherited else paths)
    return supervision.ComponentProcess(
        name or kind.replace("-", " "),
        # -P keeps the working directory off the import path, so that no user file shadows a Scaler module.
        (sys.executable, "-P", "-m", "scaler.cluster", kind),
        _TIERS.get(kind, 2),
        environment,
        grace_seconds,
        optional=optional or kind == "web-ui",
        listening=listening,
        independent=independent,
    )


def _own_import_paths(paths: Sequence[str]) -> list[str]:
    """Return this program's import paths outside the installation, because its workers need the same modules."""
    installed = [Path(path) for path in {*sysconfig.get_paths().values(), sys.prefix, sys.base_prefix}]
    found = dict.fromkeys(str(absolute(path or ".")) for path in paths)
    return [path for path in found if not any(Path(path).is_relative_to(parent) for parent in installed)]


class _ChildOutput:
    def __init__(self, stream: IO[bytes], forward: Callable[[bytes], None], lines: deque[str]) -> None:
        self.stream = stream
        self._write = forward
        self._lines = lines
        self._partial = b""
        os.set_blocking(stream.fileno(), False)
        with contextlib.suppress(OSError):  # above the user's limit for pipes; the default of 64 KiB also works
            fcntl.fcntl(stream, fcntl.F_SETPIPE_SZ, OUTPUT_PIPE_BYTES)

    def forward(self, reads: int = 1) -> bool:
        """Forward available output, with at most `reads` reads. Returns False at the end of the stream."""
        for _ in range(reads):
            data = self.stream.read(_READ_BYTES)
            if not data:
                return data is None
            *whole, partial = (self._partial + data).split(b"\n")
            self._lines.extend(_readable(line) for line in whole[-MAX_LAST_LINES:])
            self._partial = partial[:MAX_LINE_BYTES]
            self._write(data)
        return True

    def finish(self) -> None:
        """Forward the remaining output of an ended child, even while other processes hold the write end."""
        if not self.stream.closed:
            self.forward(_MAX_DRAINED_READS)
        if self._partial:
            self._lines.append(_readable(self._partial))
            self._partial = b""


class _Child(ChildProcess):
    def __init__(self, component: supervision.ComponentProcess, output: OutputStreams) -> None:
        inherited = () if component.listening is None else (component.listening.fileno(),)
        super().__init__(component.argv, component.environment, output=subprocess.PIPE, pass_fds=inherited)
        self.name = component.name
        self.lines: deque[str] = deque(maxlen=MAX_LAST_LINES)
        streams = ((self.popen.stdout, STDOUT), (self.popen.stderr, STDERR))
        self.outputs = [
            _ChildOutput(stream, partial(output.write, target), self.lines)
            for stream, target in streams
            if stream is not None
        ]


def _readable(line: bytes) -> str:
    return escaped(line[:MAX_LINE_BYTES].decode(errors="replace").rstrip())


class Supervisor:
    """Starts, monitors, and stops components. `run` works in its caller's thread."""

    def __init__(
        self,
        components: Sequence[supervision.ComponentProcess],
        *,
        together: bool = False,
        report: Callable[[supervision.ReportLine], None] = lambda _line: None,
        on_ready: Callable[[], None] | None = None,
        registration: Registration | None = None,
        parent_pid: int | None = None,
        output: OutputStreams | None = None,
    ) -> None:
        """together: start all tiers at once. report: prints progress and failures. on_ready: called once by the thread
        of `run` when all required components are ready. registration: refreshed in the same thread. parent_pid: a
        process whose exit stops all components. output: closed at the end. Raises ValueError for duplicate names."""
        self.supervision = supervision.Supervision(components, together=together)  # stepped by the thread of `run`
        self._report = report
        self._on_ready = on_ready
        self._registration = registration
        self._alive: dict[str, _Child] = {}
        self._output = output or OutputStreams()
        self._outputs: list[
            _ChildOutput
        ] = []  # pipes of all children; their own child processes may write to them even later
        self._hurry = False
        self._woken = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._wake_lock = threading.RLock()
        self._parent_pid = parent_pid
        self._selector = selectors.DefaultSelector()
        self.settled = threading.Event()
        """Set once all required components are ready, or the run has ended."""

    # -- for any thread

    def stop(self, *, hurry: bool = False) -> None:
        """Request a stop. May be called repeatedly, from any thread or signal handler. hurry: kill immediately."""
        with self._wake_lock:  # reentrant, because a signal handler may run while its thread holds the lock
            self._hurry = self._hurry or hurry
            if self._woken >= 0:
                os.eventfd_write(self._woken, 1)

    # -- the thread of `run`

    def run(self) -> int:
        """Run until all components have ended; return 0, 1 after a failure, or 2 after invalid settings."""
        self._selector.register(self._woken, selectors.EVENT_READ, self._wake)
        with contextlib.ExitStack() as after:
            after.callback(self._close)
            if self._parent_pid is not None:
                parent_fd = end_of(self._parent_pid)
                after.callback(os.close, parent_fd)
                self._selector.register(parent_fd, selectors.EVENT_READ, partial(self._parent_ended, parent_fd))
            while not self.supervision.finished:
                self._iterate()
        return self.supervision.exit_code

    def _parent_ended(self, parent_fd: int) -> None:
        self._selector.unregister(parent_fd)
        self.stop()

    def _iterate(self) -> None:
        commands = self.supervision.step(time.monotonic())
        for command in commands:
            self._perform(command)
        if self.supervision.ready and not self.settled.is_set():
            if self._on_ready is not None:
                self._on_ready()
            self.settled.set()
        if commands or self.supervision.finished:
            return
        deadline = self.supervision.next_deadline()
        timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
        if self._registration is not None:
            self._registration.refresh()
            timeout = REFRESH_SECONDS if timeout is None else min(timeout, REFRESH_SECONDS)
        for key, _ in self._selector.select(timeout):
            key.data()

    def _perform(self, command: supervision.Command) -> None:
        match command:
            case supervision.StartProcess(component):
                self._start(component)
            case supervision.TerminateProcess(name):
                self._alive[name].terminate()
            case supervision.KillProcess(name):
                self._alive[name].kill()
            case supervision.CloseListening(component):
                if component.listening is not None:
                    component.listening.close()
            case supervision.ReportLine():
                self._report(command)
            case _:
                assert_never(command)

    def _start(self, component: supervision.ComponentProcess) -> None:
        try:
            child = _Child(component, self._output)
        except OSError as error:
            self.supervision.ended(component.name, None, str(error), time.monotonic())
            return
        self._alive[component.name] = child
        self.supervision.started(component.name, child.pid, time.monotonic())
        self._selector.register(child.ended, selectors.EVENT_READ, partial(self._take_end, child))
        self._selector.register(child.ready_pipe, selectors.EVENT_READ, partial(self._take_ready, child))
        self._outputs += child.outputs
        for output in child.outputs:
            self._selector.register(output.stream, selectors.EVENT_READ, partial(self._forward, output))

    def _wake(self) -> None:
        os.eventfd_read(self._woken)
        self.supervision.shut_down(time.monotonic(), hurry=self._hurry)

    def _take_ready(self, child: _Child) -> None:
        if child.ready_pipe.closed:
            return
        child.read_ready()
        if child.ready_pipe.closed:
            self._selector.unregister(child.ready_pipe)
        if child.addresses is not None:
            self.supervision.became_ready(child.name, child.addresses)

    def _forward(self, output: _ChildOutput) -> None:
        if not output.forward():
            self._selector.unregister(output.stream)
            self._outputs.remove(output)
            output.stream.close()

    def _take_end(self, child: _Child) -> None:
        # Process the child's readiness and output before its end.
        self._take_ready(child)
        for output in child.outputs:
            output.finish()
        if not child.ready_pipe.closed:
            self._selector.unregister(child.ready_pipe)
        self._selector.unregister(child.ended)
        returncode = child.reap()
        del self._alive[child.name]
        now = time.monotonic()
        self.supervision.ended(child.name, returncode, describe_exit(returncode), now, tuple(child.lines))

    def _close(self) -> None:
        for child in self._alive.values():
            # Happens only after an exception in this thread.
            child.kill()
            child.reap()
        for output in self._outputs:
            output.finish()
            output.stream.close()
        self._output.close()
        self._selector.close()
        with self._wake_lock:
            os.close(self._woken)
            self._woken = -1
        self.settled.set()
