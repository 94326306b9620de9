"""Exchanges lines with a host through an ssh process, without blocking. ssh explains failures on stderr."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from functools import partial

from scaler.processes import describe_exit, end_of
from scaler.worker_manager.ssh.command import MARK

PIPE_BYTES = 1024 * 1024  # holds a whole wheel; the system may grant less
READ_BYTES = 64 * 1024
READS = 16  # maximum per call, so that endless output does not block the manager; enough to empty an exited ssh's pipe
MAX_LINE_BYTES = 16 * 1024 * 1024
KEPT_LINES = 20


class HostConnection:
    """A running ssh process. watched: an epoll that becomes readable when `receive` has work to do."""

    def __init__(self, command: Sequence[str], watched: select.epoll) -> None:
        self._watched = watched
        self._process = subprocess.Popen(
            command,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C in a terminal must reach only the manager, which then stops ssh
        )
        try:
            self._ended = end_of(self._process.pid)
        except OSError:
            with self._process:  # closes the pipes and waits for the exit
                self._process.kill()
            raise
        pipes = [pipe for pipe in (self._process.stdin, self._process.stdout, self._process.stderr) if pipe is not None]
        self._stdin, self._stdout, self._stderr = (pipe.fileno() for pipe in pipes)
        self._open = {pipe.fileno(): pipe.close for pipe in pipes} | {self._ended: partial(os.close, self._ended)}
        for descriptor in (self._stdin, self._stdout, self._stderr):
            os.set_blocking(descriptor, False)
        with contextlib.suppress(OSError):
            fcntl.fcntl(self._stdin, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        for descriptor in (self._stdout, self._stderr, self._ended):
            watched.register(descriptor, select.EPOLLIN)
        watched.register(self._stdin, 0)
        self._outgoing = bytearray()
        self._partial = {self._stdout: b"", self._stderr: b""}
        self.last_lines: deque[str] = deque(maxlen=KEPT_LINES)  # from stderr
        self.new_lines: list[str] = []  # from stderr, read by the last `receive`
        self.passes_on = False
        self.how_ended = ""  # how ssh exited; empty while it runs

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, data: bytes) -> None:
        """Send bytes now, or in the next `receive` if the pipe is full."""
        self._outgoing += data
        self._flush()

    def receive(self) -> list[str]:
        """Return new lines that begin with `MARK`, without the mark, and update `how_ended`."""
        self._flush()
        has_ended = self._ended in self._open and self._process.poll() is not None
        lines = [line.removeprefix(MARK) for line in self._lines(self._stdout) if line.startswith(MARK)]
        self.new_lines = self._lines(self._stderr)
        for line in self.new_lines:
            self._note(line)
        if has_ended:
            self.how_ended = f"ssh ended: {describe_exit(self._process.returncode)}"
            for descriptor in tuple(self._open):
                self._drop(descriptor)
        return lines

    def end_input(self) -> None:
        self._drop(self._stdin)

    def close(self, seconds: float = 0.0) -> None:
        self.end_input()
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.receive()

    def _note(self, line: str) -> None:
        self.last_lines.append(line)
        if self.passes_on:
            with contextlib.suppress(OSError):  # the reader is gone
                sys.stderr.write(f"{line}\n")
                sys.stderr.flush()

    def _lines(self, descriptor: int) -> list[str]:
        data = self._partial[descriptor]
        for _ in range(READS):
            if descriptor not in self._open:
                break
            try:
                more = os.read(descriptor, READ_BYTES)
            except BlockingIOError:
                break
            data += more
            if not more:
                data += b"" if data.endswith(b"\n") or not data else b"\n"
                self._drop(descriptor)
        *whole, rest = data.split(b"\n")
        if len(rest) > MAX_LINE_BYTES:
            whole, rest = [*whole, rest], b""
        self._partial[descriptor] = rest
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
            self._watched.unregister(descriptor)
            self._open.pop(descriptor)()
