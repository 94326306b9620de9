"""The beginning and the end of a text that may be of any length."""

from __future__ import annotations


class Excerpt:
    """Keeps the first `head_bytes` and the last `tail_bytes` of what is added, with one gap between them at most."""

    __slots__ = ("_head", "_head_bytes", "_tail", "_tail_bytes", "cut")

    def __init__(self, head_bytes: int, tail_bytes: int) -> None:
        self._head_bytes = head_bytes
        self._tail_bytes = tail_bytes
        self._head = b""
        self._tail = bytearray()
        self.cut = 0
        """Bytes that were left out between them."""

    def __len__(self) -> int:
        return len(self._head) + len(self._tail)

    def add(self, text: bytes, lost: int = 0) -> None:
        """Take in what comes next. lost: bytes before it that somebody else has left out."""
        if lost:
            self.cut += lost + len(self._tail)
            self._tail.clear()
        if not self._tail and not self.cut:
            room = self._head_bytes - len(self._head)
            self._head += text[:room]
            text = text[room:]
        self._tail += text
        excess = len(self._tail) - self._tail_bytes
        if excess > 0:
            del self._tail[:excess]
            self.cut += excess

    def pieces(self) -> list[tuple[int, bytes]]:
        """Return what another excerpt can be given: for each piece how many bytes are missing before it, and itself."""
        if not self.cut:
            return [(0, self._head + bytes(self._tail))] if len(self) else []
        beginning = [(0, self._head)] if self._head else []
        return [*beginning, (self.cut, bytes(self._tail))]

    def text(self) -> bytes:
        """Return it all, with a line between beginning and end that says how much is missing there."""
        if not self.cut:
            return self._head + bytes(self._tail)
        return b"%s\n... %d bytes left out ...\n%s" % (self._head, self.cut, bytes(self._tail))
