"""What a task writes to stdout and stderr: sent to the agent while it runs, or kept until it has ended.

In a processor `sys.stdout` and `sys.stderr` are tee streams: a `PrintForwarder` sends the agent each line that Python
code prints, beside what happens to it anyway. With `stream_output`, `captured_output` replaces descriptors 1 and 2, so
that child processes and libraries in C are captured as well. The far end of an offloaded task, whose result travels as
one text, keeps the same in memory: `PrintedOutput` what Python code prints, `RecordedOutput` all that is written.
"""

from __future__ import annotations

import array
import contextlib
import io
import os
import select
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, TextIO, cast

from scaler.head_tail import HeadTailBuffer
from scaler.worker.frames import ToAgent, pack_id, pack_printed

MAX_OUTPUT_BYTES = 1024 * 1024
"""Captured and passed on of each stream of a task; the rest is read and dropped."""
OMITTED_TEXT = b"\n... more is left out ...\n"
UNSENT_CHARACTERS = 8 * 1024
"""A longer line is sent before it ends."""
HEAD_BYTES = TAIL_BYTES = 24 * 1024
"""Of one text of text the beginning and the end: more is not kept of a task in any case. Either fits a datagram."""
PRINTED_BYTES = 12 * 1024
"""Of the beginning and of the end of each printed stream: the scheduler keeps no less, so no text is cut twice."""
_READ_BYTES = 64 * 1024


class TeeStream(io.TextIOWrapper):
    """A text stream on descriptor 1 or 2 that also passes what is written to `forward`, once that is set."""

    forward: Callable[[bool, str], None] | None = None
    """Of all such streams of this process; called with whether it is stderr, and the text."""

    def __init__(self, descriptor: int, errors: str) -> None:
        file = open(descriptor, "wb", closefd=False)  # noqa: SIM115 (for the life of the process)
        super().__init__(file, errors=errors, line_buffering=file.isatty())
        self._is_stderr = descriptor == 2

    def write(self, text: str, /) -> int:
        """Write as any text stream does."""
        count = super().write(text)
        forward = TeeStream.forward
        if forward is not None:
            forward(self._is_stderr, text)
        return count


class PrintForwarder:
    """Sends the agent what the running task of this processor prints. Safe to call from any thread of the task.

    Whole lines are sent at once, a last line without an end when the task ends.
    """

    def __init__(self, running: Callable[[], bytes], send: Callable[[bytes], object]) -> None:
        """running: returns the id of the running task, empty between tasks. send: sends the agent a datagram."""
        self.has_partial_line = False
        self.is_captured = False
        """True while `captured_output` sends the agent all that the process writes."""
        self._pid = os.getpid()
        self._running = running
        self._send = send
        self._unsent: tuple[list[str], list[str]] = ([], [])
        self._sending = threading.RLock()
        """A handler of a signal may print while its thread has it."""

    def write(self, is_stderr: bool, text: str) -> None:
        """Take in what was written."""
        if self.is_captured or not text or not self._running() or os.getpid() != self._pid:
            return
        unsent = self._unsent[is_stderr]
        unsent.append(text)
        if "\n" in text or len(text) > UNSENT_CHARACTERS or len(unsent) > UNSENT_CHARACTERS:
            self._send_unsent(is_stderr)
        else:
            self.has_partial_line = True

    def flush(self) -> None:
        """Send the lines without an end: the task is over."""
        self.has_partial_line = False
        for is_stderr in (False, True):
            if self._unsent[is_stderr]:
                self._send_unsent(is_stderr)

    def _send_unsent(self, is_stderr: bool) -> None:
        with self._sending:
            unsent = self._unsent[is_stderr]
            count = len(unsent)  # another thread may add to them meanwhile
            text = "".join(unsent[:count])
            del unsent[:count]
            task = self._running()
            if not task:
                return  # a thread that a task has left behind prints between tasks
            buffer = HeadTailBuffer(HEAD_BYTES, TAIL_BYTES)
            buffer.add(text.encode("utf-8", "backslashreplace"))
            for truncated, segment in buffer.segments():
                self._send(pack_printed(task, is_stderr, truncated, segment))


class _Pipes:
    """Two pipes that descriptors 1 and 2 lead into until `restore`; `readers` are their reading ends."""

    def __init__(self) -> None:
        flush_streams()
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(line_buffering=True)
        ends = [os.pipe2(os.O_CLOEXEC) for _ in range(2)]
        self.readers = tuple(reader for reader, _ in ends)
        self._originals: list[tuple[int, int]] = []
        for descriptor, (_, writer) in zip((1, 2), ends, strict=True):
            self._originals.append((os.dup(descriptor), descriptor))
            os.dup2(writer, descriptor)
            os.close(writer)

    def restore(self) -> None:
        flush_streams()
        for original, descriptor in self._originals:
            os.dup2(original, descriptor)
            os.close(original)


@contextlib.contextmanager
def captured_output(control: socket.socket, task_id: bytes) -> Iterator[None]:
    """While in this context, what the process writes to descriptors 1 and 2 goes to the agent, as this task's.

    The reading ends of two pipes go to the agent. It reads them until they are closed, so what a child process of the
    task writes later still arrives, and a full pipe makes the task wait: nothing is kept here.
    """
    pipes = _Pipes()
    try:
        attached = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", pipes.readers))]
        control.sendmsg([pack_id(ToAgent.OUTPUT, task_id)], attached)
        for reader in pipes.readers:
            os.close(reader)
        yield
    finally:
        pipes.restore()


class RecordedOutput:
    """While in this context, what the process writes to descriptors 1 and 2 is kept, up to MAX_OUTPUT_BYTES each.

    The rest is read and dropped, so that the task never waits. What child processes write after the task is lost.
    """

    def __init__(self) -> None:
        self._texts = (bytearray(), bytearray())
        self._is_cut = [False, False]

    @property
    def stdout(self) -> bytes:
        return bytes(self._texts[0]) + OMITTED_TEXT * self._is_cut[0]

    @property
    def stderr(self) -> bytes:
        return bytes(self._texts[1]) + OMITTED_TEXT * self._is_cut[1]

    def __enter__(self) -> RecordedOutput:
        self._pipes = _Pipes()
        self._end_reader, self._end = os.pipe2(os.O_CLOEXEC)
        for reader in self._pipes.readers:
            os.set_blocking(reader, False)
        self._thread = threading.Thread(target=self._read_all, name="recorded-output", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pipes.restore()
        os.close(self._end)
        self._thread.join()
        for descriptor in (*self._pipes.readers, self._end_reader):
            os.close(descriptor)

    def _read_all(self) -> None:
        """Read both pipes until they have ended, or the task has and they are empty."""
        poll = select.poll()
        for descriptor in (*self._pipes.readers, self._end_reader):
            poll.register(descriptor, select.POLLIN)
        is_over = False
        open_readers = set(self._pipes.readers)
        while open_readers:
            events = poll.poll(0 if is_over else None)
            ready = [descriptor for descriptor, _ in events if descriptor != self._end_reader]
            if is_over and not ready:
                return
            if not is_over and len(ready) < len(events):
                is_over = True
                poll.unregister(self._end_reader)
            for descriptor in ready:
                if not self._read(descriptor):
                    poll.unregister(descriptor)
                    open_readers.discard(descriptor)

    def _read(self, descriptor: int) -> bool:
        """Read once. Returns False at the end of the pipe."""
        try:
            text = os.read(descriptor, _READ_BYTES)
        except BlockingIOError:
            return True
        index = self._pipes.readers.index(descriptor)
        left = MAX_OUTPUT_BYTES - len(self._texts[index])
        self._texts[index].extend(text[:left])
        self._is_cut[index] |= len(text) > left
        return bool(text)


_lock = threading.Lock()
_active: dict[int, PrintedOutput] = {}
"""Tasks that run, by the thread that runs them."""
_tees: dict[str, _TaskTee] = {}
"""The last ones, by the names of their streams: `print` of Python 3.11 crashes when its stream goes while it prints."""


class PrintedOutput:
    """While in this context, what Python code prints is kept here: the beginning and the end of it.

    It goes to where it would go anyway, too. Tasks in several threads of a process are distinguished by their thread;
    what other threads print belongs to the task that runs alone, and to none of several.
    """

    def __init__(self) -> None:
        self._buffers = (HeadTailBuffer(PRINTED_BYTES, PRINTED_BYTES), HeadTailBuffer(PRINTED_BYTES, PRINTED_BYTES))

    @property
    def stdout(self) -> bytes:
        return self._buffers[0].text()

    @property
    def stderr(self) -> bytes:
        return self._buffers[1].text()

    def add(self, is_stderr: bool, text: str) -> None:
        """Keep what was printed."""
        self._buffers[is_stderr].add(text.encode("utf-8", "backslashreplace"))

    def __enter__(self) -> PrintedOutput:
        with _lock:
            _active[threading.get_ident()] = self
            for name in ("stdout", "stderr"):
                stream = getattr(sys, name)
                if stream is not None and not isinstance(stream, _TaskTee):
                    if name not in _tees or _tees[name].stream is not stream:
                        _tees[name] = _TaskTee(cast("TextIO", stream), name == "stderr")
                    setattr(sys, name, _tees[name])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _lock:
            del _active[threading.get_ident()]
            if _active:
                return
            for name in ("stdout", "stderr"):
                stream = getattr(sys, name)
                if isinstance(stream, _TaskTee):
                    setattr(sys, name, stream.stream)


class _TaskTee:
    """Stands for a text stream: passes everything on to it, and keeps what is written for the task that writes."""

    def __init__(self, stream: TextIO, is_stderr: bool) -> None:
        self.stream = stream
        self._is_stderr = is_stderr

    def write(self, text: str, /) -> int:
        count = self.stream.write(text)
        task = _active.get(threading.get_ident())
        if task is None and len(running := list(_active.values())) == 1:  # others may begin and end meanwhile
            (task,) = running
        if task is not None:
            task.add(self._is_stderr, text)
        return count

    def writelines(self, lines: Iterable[str], /) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def flush_streams() -> None:
    """Have what the interpreter holds back of its output written."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError, OSError):  # user code may have replaced or closed it
            stream.flush()
