"""What a task's Python code prints, on its way to the agent: beside what happens to it anyway, and only if it prints.

The processor's `sys.stdout` and `sys.stderr` are streams that tell what is written to them. Whole lines go to the agent
at once, and what has no end yet at the end of the task. What child processes and libraries in C write goes past these
streams: `stream_output` captures that as well.
"""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable

from scaler.head_tail import HeadTailBuffer
from scaler.worker.frames import pack_printed

HELD_CHARACTERS = 8 * 1024
"""A line that is longer is told before it ends."""
HEAD_BYTES = TAIL_BYTES = 24 * 1024
"""Of one piece of text the beginning and the end: more is not kept of a task in any case. Either fits a datagram."""

Tell = Callable[[bool, str], None]
"""Called with whether it is stderr, and the text."""


class ToldStream(io.TextIOWrapper):
    """A text stream on descriptor 1 or 2 that also tells what is written to it, once somebody listens."""

    tell_text: Tell | None = None
    """Of all such streams of this process."""

    def __init__(self, descriptor: int, errors: str) -> None:
        file = open(descriptor, "wb", closefd=False)  # noqa: SIM115 (for the life of the process)
        super().__init__(file, errors=errors, line_buffering=file.isatty())
        self._is_stderr = descriptor == 2

    def write(self, text: str, /) -> int:
        """Write as any text stream does."""
        count = super().write(text)
        tell = ToldStream.tell_text
        if tell is not None:
            tell(self._is_stderr, text)
        return count


class Printing:
    """What the running task of this processor prints. Safe to call from any thread of the task."""

    def __init__(self, running: Callable[[], bytes], send: Callable[[bytes], object]) -> None:
        """running: returns the id of the running task, empty between tasks. send: sends the agent a datagram."""
        self.holds = False
        """True while there is text without an end."""
        self.is_captured = False
        """True while all that the process writes goes to the agent by another way."""
        self._pid = os.getpid()
        self._running = running
        self._send = send
        self._held: tuple[list[str], list[str]] = ([], [])
        self._passing_on = threading.RLock()
        """A handler of a signal may print while its thread has it."""

    def tell(self, is_stderr: bool, text: str) -> None:
        """Take in what was written."""
        if self.is_captured or not text or not self._running() or os.getpid() != self._pid:
            return
        held = self._held[is_stderr]
        held.append(text)
        if "\n" in text or len(text) > HELD_CHARACTERS or len(held) > HELD_CHARACTERS:
            self._pass_on(is_stderr)
        else:
            self.holds = True

    def flush(self) -> None:
        """Pass on what has no end yet: the task is over."""
        self.holds = False
        for is_stderr in (False, True):
            if self._held[is_stderr]:
                self._pass_on(is_stderr)

    def _pass_on(self, is_stderr: bool) -> None:
        with self._passing_on:
            held = self._held[is_stderr]
            count = len(held)  # another thread may add to them meanwhile
            text = "".join(held[:count])
            del held[:count]
            task = self._running()
            if not task:
                return  # a thread that a task has left behind prints between tasks
            buffer = HeadTailBuffer(HEAD_BYTES, TAIL_BYTES)
            buffer.add(text.encode("utf-8", "backslashreplace"))
            for lost, piece in buffer.segments():
                self._send(pack_printed(task, is_stderr, lost, piece))
