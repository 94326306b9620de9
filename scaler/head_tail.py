"""A buffer for the beginning and the end of a byte stream of any length. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(eq=False, slots=True)
class HeadTailBuffer:
    """Keeps the first `head_bytes` and the last `tail_bytes` of a stream, with at most one gap."""

    head_bytes: int
    tail_bytes: int
    truncated: int = 0  # bytes dropped between head and tail
    _head: bytes = b""
    _tail: bytearray = field(default_factory=bytearray)

    def __len__(self) -> int:
        return len(self._head) + len(self._tail)

    def add(self, text: bytes, truncated: int = 0) -> None:
        if truncated:
            self.truncated += truncated + len(self._tail)
            self._tail.clear()
        if not self._tail and not self.truncated:
            free = self.head_bytes - len(self._head)
            self._head += text[:free]
            text = text[free:]
        self._tail += text
        excess = len(self._tail) - self.tail_bytes
        if excess > 0:
            del self._tail[:excess]
            self.truncated += excess

    def segments(self) -> list[tuple[int, bytes]]:
        """Return the `add` arguments that copy this buffer into another: (bytes truncated before, text)."""
        if not self.truncated:
            return [(0, self._head + bytes(self._tail))] if len(self) else []
        beginning = [(0, self._head)] if self._head else []
        return [*beginning, (self.truncated, bytes(self._tail))]

    def text(self) -> bytes:
        """Return head and tail, with a line about missing bytes between them."""
        if not self.truncated:
            return self._head + bytes(self._tail)
        return b"%s\n... %d bytes left out ...\n%s" % (self._head, self.truncated, bytes(self._tail))
