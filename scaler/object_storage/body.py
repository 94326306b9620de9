"""The bytes of one object, in memory, shared memory, or on disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol
from zlib import crc32

SEGMENT_BYTES = 64 * 1024 * 1024
"""Bodies are written to disk together up to about this size."""


class Memory(Protocol):
    """All of an object in shared memory: `shared_memory.SharedMemory` is one. Freed with its last reference."""

    def fileno(self) -> int: ...

    def frames(self) -> list[memoryview]:
        """Return the bytes as frames for messages."""


class PartialObject(Protocol):
    """An object of which some chunks have come."""

    @property
    def parts(self) -> list[int]:
        """Sizes of the parts of the object."""

    def frames(self, offset: int, size: int) -> list[memoryview] | None:
        """Return a range of its bytes as frames for messages; None when not all of it has come."""


@dataclass(slots=True, eq=False)
class Segment:
    """A file on disk with several bodies. bodies: how many are left of them; at zero its space is free."""

    size_bytes: int
    bodies: int


@dataclass(slots=True, eq=False)
class Body:
    """The bytes of one object. names: ids that stand for them; at zero they are freed."""

    parts: list[int]
    frames: list[memoryview]
    size_bytes: int
    memory: Memory | None = None
    names: int = 0
    segment: Segment | None = None
    """Where it is on disk, or is being written to."""
    is_on_disk: bool = False
    """The frames are views of the disk's file, and count as no memory."""

    checksum: int | None = None
    """Of the bytes of an object that lay on disk while no storage ran; None once they were compared with it."""

    def is_whole(self) -> bool:
        """Compare what was read from disk with its checksum, the first time. Returns False when it is damaged."""
        if self.checksum is None:
            return True
        found = 0
        for frame in self.frames:
            found = crc32(frame, found)
        is_whole = found == self.checksum
        self.checksum = None if is_whole else self.checksum
        return is_whole

    def all_frames(self) -> list[memoryview]:
        """Return the bytes as frames for messages."""
        if self.memory is not None and not self.frames:
            self.frames = self.memory.frames()
        return self.frames

    def free(self) -> None:
        self.frames, self.memory = [], None
