"""The bytes of an object: in memory, in shared memory, or on disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol
from zlib import crc32

SEGMENT_BYTES = 64 * 1024 * 1024
"""Approximate amount of bodies written to disk together."""


class Memory(Protocol):
    """A whole object in shared memory, such as `shared_memory.SharedMemory`. Freed with its last reference."""

    def fileno(self) -> int: ...

    def frames(self) -> list[memoryview]:
        """Return the bytes as message frames."""


class PartialObject(Protocol):
    @property
    def parts(self) -> list[int]:
        """Sizes of the object's parts."""

    def frames(self, offset: int, size: int) -> list[memoryview] | None:
        """Return a range as message frames; None if some of it has not arrived."""


@dataclass(slots=True, eq=False)
class Segment:
    """A file on disk with several bodies. bodies: number still in use; at 0, the space is freed."""

    size_bytes: int
    bodies: int


@dataclass(slots=True, eq=False)
class Body:
    """The bytes of one object."""

    parts: list[int]
    frames: list[memoryview]
    size_bytes: int
    memory: Memory | None = None
    is_dropped: bool = False
    segment: Segment | None = None
    is_on_disk: bool = False
    """The frames are mapped from disk and do not count as memory."""

    checksum: int | None = None
    """Checksum of a body restored from disk; None once verified."""

    def is_whole(self) -> bool:
        """Verify the checksum on first use. Returns False if the body is damaged."""
        if self.checksum is None:
            return True
        found = 0
        for frame in self.frames:
            found = crc32(frame, found)
        is_whole = found == self.checksum
        self.checksum = None if is_whole else self.checksum
        return is_whole

    def all_frames(self) -> list[memoryview]:
        if self.memory is not None and not self.frames:
            self.frames = self.memory.frames()
        return self.frames

    def free(self) -> None:
        self.frames, self.memory, self.is_dropped = [], None, True
