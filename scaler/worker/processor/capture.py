"""Captures task output, which a processor sends to the agent.

`PrintForwarder` copies lines printed by Python code. With `stream_output`, `captured_output` redirects descriptors 1
and 2, which includes child processes and C libraries.
"""

from __future__ import annotations

import contextlib
import io
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from os import dup2
from typing import Any, Self

from scaler.head_tail import HeadTailBuffer
from scaler.process_state import open_standard_descriptors
from scaler.worker.frames import Note, ToAgent, pack_note

MAX_OUTPUT_BYTES = 1024 * 1024
"""Maximum bytes per captured stream of a task. The rest is discarded."""
CHUNK_BYTES = 32 * 1024
OMITTED_TEXT = b"\n... more is left out ...\n"
UNSENT_CHARACTERS = 8 * 1024
HEAD_BYTES = TAIL_BYTES = 24 * 1024
"""Sizes of the head and tail kept from a long text. Each fits into a datagram."""


class TeedStreams(contextlib.ExitStack):
    """Context manager that also passes text written to stdout and stderr to `forward(is_stderr, text)`."""

    def __init__(self, forward: Callable[[bool, str], object]) -> None:
        super().__init__()
        self._forward = forward

    def __enter__(self) -> Self:
        for is_stderr, stream in ((False, sys.stdout), (True, sys.stderr)):
            self.add(is_stderr, stream)
        return super().__enter__()

    def add(self, is_stderr: bool, stream: Any) -> None:
        def write_and_forward(write: Callable[[str], int], text: str, /) -> int:
            count = write(text)
            self._forward(is_stderr, text)
            return count

        with contextlib.suppress(AttributeError):  # there is no stream, or its methods cannot be replaced
            write = stream.write
            stream.write = partial(write_and_forward, write)
            self.callback(setattr, stream, "write", write)


class PrintForwarder:
    """Sends lines printed by the task to the agent, and the last partial line at the end. Thread-safe."""

    def __init__(self, running: Callable[[], bytes], send: Callable[[bytes], object]) -> None:
        """running: returns the id of the running task, or "". send: sends the agent a datagram."""
        self.has_partial_line = False
        self.is_captured = False
        """True inside `captured_output`, which already sends everything."""
        self._pid = os.getpid()
        self._running = running
        self._send = send
        self._unsent: tuple[list[str], list[str]] = ([], [])
        self._sending = threading.RLock()
        """Reentrant, since a signal handler may print while its thread holds the lock."""

    def write(self, is_stderr: bool, text: str) -> None:
        if self.is_captured or not text or not self._running() or os.getpid() != self._pid:
            return
        unsent = self._unsent[is_stderr]
        unsent.append(text)
        if "\n" in text or len(text) > UNSENT_CHARACTERS or len(unsent) > UNSENT_CHARACTERS:
            self._send_unsent(is_stderr)
        else:
            self.has_partial_line = True

    def flush(self) -> None:
        self.has_partial_line = False
        for is_stderr in (False, True):
            if self._unsent[is_stderr]:
                self._send_unsent(is_stderr)

    def _send_unsent(self, is_stderr: bool) -> None:
        with self._sending:
            unsent = self._unsent[is_stderr]
            count = len(unsent)  # another thread may append
            text = "".join(unsent[:count])
            del unsent[:count]
            task = self._running()
            if not task:
                return  # a thread left by an earlier task prints between tasks
            buffer = HeadTailBuffer(HEAD_BYTES, TAIL_BYTES)
            buffer.add(text.encode("utf-8", "backslashreplace"))
            for truncated, segment in buffer.segments():
                self._send(pack_note(Note(ToAgent.PRINTED, segment, task, is_stderr, truncated)))


@contextlib.contextmanager
def redirected_output() -> Iterator[list[int]]:
    """Context manager that redirects descriptors 1 and 2 into two pipes. Yields the reading ends."""
    open_standard_descriptors()  # an earlier task may have closed them
    flush_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and not stream.closed:
            stream.reconfigure(line_buffering=True)
    originals = [os.dup(descriptor) for descriptor in (1, 2)]
    readers = []
    for descriptor in (1, 2):
        reader, writer = os.pipe()
        readers.append(reader)
        dup2(writer, descriptor)
        os.close(writer)
    try:
        yield readers
    finally:
        flush_streams()
        for descriptor, original in enumerate(originals, 1):
            dup2(original, descriptor)
            os.close(original)


@contextlib.contextmanager
def captured_output(printing: PrintForwarder, control: socket.socket, task_id: bytes) -> Iterator[None]:
    """Context manager that sends output of descriptors 1 and 2 to the agent, including that of child processes. A
    full pipe blocks the task."""
    try:
        with redirected_output() as readers:
            socket.send_fds(control, [pack_note(Note(ToAgent.OUTPUT, identifier=task_id))], readers)
            for reader in readers:
                os.close(reader)
            printing.is_captured = True
            yield
    finally:
        printing.is_captured = False


def flush_streams() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError, OSError):  # user code has replaced or closed it
            stream.flush()
