"""One child process of a supervisor: its start, its streams, its readiness line, and its end."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence

from scaler.processes import PARENT_PID_VARIABLE, READY_FD_VARIABLE

MAX_LAST_LINES = 20
"""Lines of a component that are shown when it ends unexpectedly."""
MAX_LINE_BYTES = 2000
"""What is kept of each of them."""
MAX_READY_BYTES = 64 * 1024
"""Longest readiness line of a component."""
OUTPUT_PIPE_BYTES = 1024 * 1024
"""What a component may write ahead of the supervisor, who passes it on; then it waits."""

_READ_BYTES = 64 * 1024
_MAX_DRAINED_READS = OUTPUT_PIPE_BYTES // _READ_BYTES + 1


class Output:
    """A child's stdout or stderr: passed on to the same stream of this process, the last lines kept."""

    def __init__(self, fd: int, target_fd: int, lines: deque[str]) -> None:
        self.fd = fd
        self._target_fd: int | None = target_fd
        self._lines = lines
        self._partial = b""

    def pass_on(self) -> bool:
        """Read what there is, once. Return False at the end of the stream."""
        try:
            data = os.read(self.fd, _READ_BYTES)
        except BlockingIOError:
            return True
        if not data:
            return False
        self._keep(data)
        self._write(data)
        return True

    def drain(self) -> None:
        """Pass on what the ended child has left in the pipe, even while others still hold its writing end."""
        if self.fd < 0:
            return
        for _ in range(_MAX_DRAINED_READS):
            try:
                data = os.read(self.fd, _READ_BYTES)
            except BlockingIOError:
                break
            if not data:
                break
            self._keep(data)
            self._write(data)
        if self._partial:
            self._lines.append(_readable(self._partial))
            self._partial = b""

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _keep(self, data: bytes) -> None:
        *whole, partial = (self._partial + data).split(b"\n")
        self._lines.extend(_readable(line) for line in whole[-MAX_LAST_LINES:])
        self._partial = partial[:MAX_LINE_BYTES]

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view and self._target_fd is not None:
            try:
                view = view[os.write(self._target_fd, view) :]
            except OSError:
                # Nobody reads our output any more (a closed pipe or terminal): the components go on without it.
                self._target_fd = None


class Child:
    """A running component. Made by `start_child`."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], ready_fd: int) -> None:
        self.name = name
        self._process = process
        self.pid = process.pid
        self.pid_fd = os.pidfd_open(process.pid)
        self.ready_fd = ready_fd
        self._ready_line = b""
        self._ready_ended = False
        self._lines: deque[str] = deque(maxlen=MAX_LAST_LINES)
        assert process.stdout is not None
        assert process.stderr is not None
        self.outputs = (
            Output(os.dup(process.stdout.fileno()), 1, self._lines),
            Output(os.dup(process.stderr.fileno()), 2, self._lines),
        )
        process.stdout.close()
        process.stderr.close()
        for output in self.outputs:
            os.set_blocking(output.fd, False)
            with contextlib.suppress(OSError):  # beyond the user's allowance for pipes; the usual 64 KiB do as well
                fcntl.fcntl(output.fd, fcntl.F_SETPIPE_SZ, OUTPUT_PIPE_BYTES)
        os.set_blocking(ready_fd, False)

    @property
    def ready_closed(self) -> bool:
        """True when nothing more will come from the readiness pipe."""
        return self._ready_ended

    def read_ready(self) -> Mapping[str, str] | None:
        """Read from the readiness pipe; return the addresses by what they are for when the line is whole."""
        with contextlib.suppress(BlockingIOError):
            data = os.read(self.ready_fd, _READ_BYTES)
            self._ready_line += data
            self._ready_ended = not data or b"\n" in data or len(self._ready_line) > MAX_READY_BYTES
        if not self._ready_line.endswith(b"\n"):
            return None
        addresses = json.loads(self._ready_line)["addresses"]
        return {str(kind): str(address) for kind, address in addresses.items()}

    def close_ready(self) -> None:
        if self.ready_fd >= 0:
            os.close(self.ready_fd)
            self.ready_fd = -1

    def last_lines(self) -> tuple[str, ...]:
        """Return what it wrote last, oldest line first."""
        return tuple(self._lines)

    def terminate(self) -> None:
        """Send SIGTERM to the process (not to its group: what it has started is its own to end)."""
        signal.pidfd_send_signal(self.pid_fd, signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to the process and all of its group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def reap(self) -> int | None:
        """Wait for the end, end what is left of its group, and return the return code as in `subprocess`.

        None when it cannot be known: a program that ignores SIGCHLD or waits for any child has taken it.
        """
        try:
            os.waitid(os.P_PIDFD, self.pid_fd, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:
            self._process.wait()
            return None
        else:
            self.kill()  # before the process is reaped: until then no other group can have its number
            return self._process.wait()
        finally:
            os.close(self.pid_fd)
            self.pid_fd = -1

    def close(self) -> None:
        """Pass on the last output, and close everything."""
        self.close_ready()
        for output in self.outputs:
            output.drain()
            output.close()


def start_child(name: str, argv: Sequence[str], environment: Mapping[str, str]) -> Child:
    """Start a process in a session of its own. Raises OSError when the system cannot."""
    ready_read, ready_write = os.pipe2(os.O_CLOEXEC)
    try:
        process = subprocess.Popen(
            argv,
            env={
                **os.environ,
                **environment,
                READY_FD_VARIABLE: str(ready_write),
                PARENT_PID_VARIABLE: str(os.getpid()),
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            pass_fds=(ready_write,),
        )
    except OSError:
        os.close(ready_read)
        raise
    finally:
        os.close(ready_write)
    return Child(name, process, ready_read)


def _readable(line: bytes) -> str:
    text = line[:MAX_LINE_BYTES].decode(errors="replace").rstrip()
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def python_command(module: str, *arguments: str) -> tuple[str, ...]:
    """Return the command that runs a module of this installation with this interpreter.

    -P keeps the working directory off the path: a file of the user's there must not stand in for one of ours.
    """
    return (sys.executable, "-P", "-m", module, *arguments)
