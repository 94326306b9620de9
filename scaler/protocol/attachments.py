"""Types of the bytes and open files that accompany a message."""

from typing import Protocol

Buffer = bytes | bytearray | memoryview


class Descriptor(Protocol):
    """An open file that is closed with its owner's last reference."""

    def fileno(self) -> int: ...
