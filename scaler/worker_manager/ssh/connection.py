"""One ssh process: lines to and from the program that it runs on a host. No call blocks.

What the host writes to stderr, such as the logs of its workers, goes to that of this process, once its program is
ready. Before, and of the very end, it is what explains why there is no connection.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import subprocess
import sys
from collections import deque
from collections.abc import Sequence

from scaler.processes import describe_exit
from scaler.worker_manager.ssh.command import MARK, forwarded_port

PIPE_BYTES = 1024 * 1024
"""A pipe of this size takes a wheel at once; the system may allow less."""
READ_BYTES = 64 * 1024
KEPT_LINES = 20


class HostConnection:
    """A running ssh process. watched: an epoll that is to become readable when there is something to receive."""

    def __init__(self, command: Sequence[str], watched: select.epoll) -> None:
        """Start it. Raises OSError when the system refuses."""
        self._process = subprocess.Popen(
            command,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C in a terminal is for the manager, which ends it in order
        )
        pipes = (self._process.stdin, self._process.stdout, self._process.stderr)
        self._stdin, self._stdout, self._stderr = (os.dup(pipe.fileno()) for pipe in pipes if pipe is not None)
        for pipe in pipes:
            assert pipe is not None
            pipe.close()
        for descriptor in (self._stdin, self._stdout, self._stderr):
            os.set_blocking(descriptor, False)
        with contextlib.suppress(OSError):
            fcntl.fcntl(self._stdin, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._watched = watched
        self._ended = os.pidfd_open(self._process.pid)
        for descriptor in (self._stdout, self._stderr, self._ended):
            watched.register(descriptor, select.EPOLLIN)
        watched.register(self._stdin, 0)
        self._open = {self._stdin, self._stdout, self._stderr, self._ended}
        self._outgoing = bytearray()
        self._partial = {self._stdout: b"", self._stderr: b""}
        self.words: deque[str] = deque(maxlen=KEPT_LINES)
        """The last lines of stderr."""
        self.ports: list[int] = []
        """On the host, in the order of the forwards."""
        self.passes_on = False
        """Lines of stderr go to that of this process."""
        self.how_ended = ""
        """How ssh has ended; empty before."""

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, data: bytes) -> None:
        """Send bytes, at the latest when `receive` is called next."""
        self._outgoing += data
        self._flush()

    def receive(self) -> list[str]:
        """Return the lines that have come for the manager, without `MARK`. Afterwards, `how_ended` is up to date."""
        self._flush()
        has_ended = self._ended in self._open and self._process.poll() is not None
        lines = [line.removeprefix(MARK) for line in self._lines(self._stdout) if line.startswith(MARK)]
        for line in self._lines(self._stderr):
            self._note(line)
        if has_ended:
            self._close()
        return lines

    def end_input(self) -> None:
        """Have the program on the host see the end of its input, at which it ends."""
        self._drop(self._stdin)

    def close(self, seconds: float = 0.0) -> None:
        """Wait for its end, and kill it after this time."""
        self.end_input()
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.receive()

    def _note(self, line: str) -> None:
        self.words.append(line)
        port = forwarded_port(line)
        if port is not None:
            self.ports.append(port)
        elif self.passes_on:
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()

    def _lines(self, descriptor: int) -> list[str]:
        data = self._partial[descriptor]
        while descriptor in self._open:
            try:
                more = os.read(descriptor, READ_BYTES)
            except BlockingIOError:
                break
            data += more
            if not more:
                data += b"" if data.endswith(b"\n") or not data else b"\n"
                self._drop(descriptor)
        *whole, self._partial[descriptor] = data.split(b"\n")
        return [line.decode("utf-8", "replace") for line in whole]

    def _flush(self) -> None:
        if self._stdin not in self._open:
            return
        try:
            while self._outgoing:
                del self._outgoing[: os.write(self._stdin, self._outgoing)]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            self._drop(self._stdin)
            return
        self._watched.modify(self._stdin, select.EPOLLOUT if self._outgoing else 0)

    def _drop(self, descriptor: int) -> None:
        if descriptor in self._open:
            self._open.remove(descriptor)
            self._watched.unregister(descriptor)
            os.close(descriptor)

    def _close(self) -> None:
        self.how_ended = f"ssh ended: {describe_exit(self._process.returncode)}"
        for descriptor in tuple(self._open):
            self._drop(descriptor)
