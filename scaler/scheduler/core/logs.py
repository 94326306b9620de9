"""What tasks printed, for who asks later. Bounded per task and in all; costs nothing for tasks that print nothing.

Of each stream of a task the beginning and the end are kept. When all of it is too much, the tasks that have printed
nothing for longest are forgotten.
"""

from __future__ import annotations

from collections import OrderedDict

from scaler.protocol.messages import TaskLog

HEAD_BYTES = 16 * 1024
TAIL_BYTES = 16 * 1024
"""Of stdout and of stderr, each: 64 KiB per task."""
MAX_LOG_BYTES = 16 * 1024 * 1024
_ENTRY_BYTES = 512
"""What a task's entry takes beside its text."""


class _Stream:
    """The beginning and the end of what was written to one stream."""

    __slots__ = ("cut", "head", "tail")

    def __init__(self) -> None:
        self.head = b""
        self.tail = bytearray()
        self.cut = 0

    def add(self, text: bytes) -> int:
        """Take in more. Returns by how many bytes it has grown."""
        before = len(self.head) + len(self.tail)
        room = HEAD_BYTES - len(self.head)
        if room > 0 and not self.tail:
            self.head += text[:room]
            text = text[room:]
        self.tail += text
        excess = len(self.tail) - TAIL_BYTES
        if excess > 0:
            del self.tail[:excess]
            self.cut += excess
        return len(self.head) + len(self.tail) - before

    def text(self) -> bytes:
        if not self.cut:
            return self.head + bytes(self.tail)
        return b"%s\n... %d bytes left out ...\n%s" % (self.head, self.cut, bytes(self.tail))


class Logs:
    """What tasks printed, by their ids."""

    __slots__ = ("_size_bytes", "_tasks")

    def __init__(self) -> None:
        self._tasks: OrderedDict[bytes, tuple[_Stream, _Stream]] = OrderedDict()
        self._size_bytes = 0

    @property
    def size_bytes(self) -> int:
        """Roughly what it keeps in memory."""
        return self._size_bytes

    def add(self, task: bytes, is_stderr: bool, text: bytes) -> None:
        """Keep what a task wrote."""
        streams = self._tasks.get(task)
        if streams is None:
            streams = self._tasks[task] = (_Stream(), _Stream())
            self._size_bytes += _ENTRY_BYTES
        else:
            self._tasks.move_to_end(task)
        self._size_bytes += streams[is_stderr].add(text)
        while self._size_bytes > MAX_LOG_BYTES:
            _, oldest = self._tasks.popitem(last=False)
            self._size_bytes -= _ENTRY_BYTES + sum(len(stream.head) + len(stream.tail) for stream in oldest)

    def read(self, task: bytes) -> TaskLog:
        """Return what a task wrote; nothing when it wrote nothing, or so long ago that it was forgotten."""
        streams = self._tasks.get(task)
        if streams is None:
            return TaskLog(task, b"", b"", 0)
        stdout, stderr = streams
        return TaskLog(task, stdout.text(), stderr.text(), stdout.cut + stderr.cut)
