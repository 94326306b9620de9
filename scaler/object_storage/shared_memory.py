"""Large objects in memory that the storage's host shares: written once, mapped by every reader, never copied.

An object lies in a memory file (`memfd_create`), which has no name: when the last process that has its descriptor or
a mapping of it ends, however it ends, nothing is left. It is sealed before another process gets it, so that neither its
size nor its bytes can change. A reader maps it privately: it gets pages of its own where it writes.

Descriptors travel with the messages of local connections. Elsewhere than on Linux this module can be imported only.
"""

from __future__ import annotations

import mmap
import os
import sys
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from scaler.net.local import FileDescriptor
from scaler.object_storage.body import Body
from scaler.object_storage.layout import cut, cut_out
from scaler.object_storage.mapped_files import map_file
from scaler.protocol.chunks import chunk_bytes
from scaler.protocol.session import Descriptor

if sys.platform == "linux":
    import fcntl
    import resource

    _SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE

MIN_SHARED_BYTES = 1024 * 1024
"""Smaller objects travel as frames: a descriptor and a mapping cost as much as their copies."""
MAX_MEMORIES = 30_000
"""Memory files of a storage; then it takes frames. It may have to map each of them: Linux allows 65,530 mappings."""
_ALIGNMENT = 64
_MAP_NORESERVE = 0x4000


def is_supported() -> bool:
    """Return True where memory can be shared: on a 64-bit Linux."""
    return sys.platform == "linux" and hasattr(os, "memfd_create") and sys.maxsize > 2**32


def max_memories() -> int:
    """Return how many memory files a storage keeps: half of the descriptors that it may have are for connections."""
    return min(resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2, MAX_MEMORIES) if is_supported() else 0


class SharedMemory:
    """The parts of one object in a sealed memory file, whose descriptor is closed with the last reference to it."""

    __slots__ = ("__weakref__", "_descriptor", "sizes")

    def __init__(self, descriptor: Descriptor, sizes: Sequence[int]) -> None:
        """Raises ValueError when it is not a sealed memory file of these parts."""
        self._descriptor = descriptor
        self.sizes = sizes
        number = descriptor.fileno()
        state = os.fstat(number)
        size = state.st_size
        # Readers would die of SIGBUS at pages that a full host cannot give: holes, and the scarce pages of hugetlbfs.
        is_whole = 512 * state.st_blocks >= size and os.fstatvfs(number).f_bsize == mmap.PAGESIZE
        if not size or size != _offsets(sizes)[-1] or not _is_sealed(number) or not is_whole:
            raise ValueError(f"descriptor {number} is not the sealed memory of an object of size {sum(sizes)}")

    @classmethod
    def written(cls, parts: Sequence[memoryview]) -> SharedMemory:
        """Return a copy of these parts. Raises OSError when there is no memory or no descriptor for it."""
        descriptor = _new_file()
        # Writing is nearly twice as fast as copying into a mapping, whose fresh pages would be zeroed first.
        with open(descriptor.fileno(), "wb", closefd=False) as file:
            end = 0
            for part in parts:
                end += file.write(bytes(-end % _ALIGNMENT)) + file.write(part)
        fcntl.fcntl(descriptor.fileno(), fcntl.F_ADD_SEALS, _SEALS)
        return cls(descriptor, [part.nbytes for part in parts])

    def fileno(self) -> int:
        """Return the number of the descriptor."""
        return self._descriptor.fileno()

    def parts(self) -> list[memoryview]:
        """Return the parts in a new private mapping, which lasts as long as they do. They can be written to."""
        offsets = _offsets(self.sizes)
        whole = map_file(self.fileno(), offsets[-1], mmap.MAP_PRIVATE | _MAP_NORESERVE)
        return [whole[offset : offset + size] for offset, size in zip(offsets[:-1], self.sizes, strict=True)]

    def frames(self) -> list[memoryview]:
        """Return the bytes as frames for messages, read-only."""
        return [frame for message in cut([part.toreadonly() for part in self.parts()]) for frame in message]


class GrowingMemory:
    """The parts of an object that comes in chunks, in any order: in a memory file, where there are such."""

    def __init__(self, sizes: Sequence[int]) -> None:
        """Raises OSError when there is no descriptor or no address space for it."""
        self.parts = list(sizes)
        self._offsets = _offsets(sizes)
        self._descriptor = _new_file() if is_supported() else None
        self._begins = [0, *accumulate(sizes)]
        """Where each part begins in the bytes of the object, and where the last one ends."""
        self._chunk_bytes = chunk_bytes(self._begins[-1])
        self._have = 0
        if self._descriptor is None:
            self._memory = memoryview(mmap.mmap(-1, self._offsets[-1]))
        else:
            # A private mapping shows what is written to the file later, as long as nothing is written to the mapping.
            os.ftruncate(self._descriptor.fileno(), self._offsets[-1])
            self._memory = map_file(self._descriptor.fileno(), self._offsets[-1], mmap.MAP_PRIVATE | _MAP_NORESERVE)
        ranges = zip(self._offsets[:-1], sizes, strict=True)
        parts = [self._memory[at : at + size].toreadonly() for at, size in ranges]
        self._frames = [frame for message in cut(parts) for frame in message]

    def write(self, offset: int, frames: Sequence[memoryview]) -> None:
        """Write frames at this offset of the object's bytes. Raises ValueError when they reach beyond its end."""
        begins = self._begins
        part = bisect_right(begins, offset) - 1
        for frame in frames:
            rest = frame
            while rest.nbytes:
                while part < len(self.parts) and offset >= begins[part + 1]:
                    part += 1
                if part == len(self.parts):
                    raise ValueError(f"the object of size {begins[-1]} ends before {offset}")
                at = self._offsets[part] + offset - begins[part]
                written = self._write(rest[: begins[part + 1] - offset], at)
                rest = rest[written:]
                offset += written

    def _write(self, frame: memoryview, at: int) -> int:
        if self._descriptor is not None:
            return os.pwrite(self._descriptor.fileno(), frame, at)
        self._memory[at : at + frame.nbytes] = frame
        return frame.nbytes

    def add_chunk(self, number: int) -> None:
        """Note that all of a chunk is there."""
        self._have |= 1 << number

    def frames(self, offset: int, size: int) -> list[memoryview] | None:
        """Return the bytes of this range as frames for messages; None when not all of their chunks are there."""
        first, end = offset // self._chunk_bytes, -(-(offset + size) // self._chunk_bytes)
        wanted = ((1 << (end - first)) - 1) << first
        is_here = size > 0 and offset + size <= self._begins[-1] and self._have & wanted == wanted
        return cut_out(self._frames, offset, size) if is_here else None

    def body(self) -> Body:
        """Return the whole object. Raises ValueError or OSError when it cannot be shared."""
        if self._descriptor is None:
            return Body(self.parts, self._frames, self._begins[-1])
        fcntl.fcntl(self._descriptor.fileno(), fcntl.F_ADD_SEALS, _SEALS)
        return Body(self.parts, [], self._begins[-1], SharedMemory(self._descriptor, self.parts))


def _new_file() -> FileDescriptor:
    return FileDescriptor(os.memfd_create("scaler-object", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))


def _offsets(sizes: Sequence[int]) -> list[int]:
    """Return where each part begins, and where the last one ends."""
    offsets, end = [], 0
    for size in sizes:
        offsets.append(end + -end % _ALIGNMENT)
        end = offsets[-1] + size
    return [*offsets, end]


def _is_sealed(descriptor: int) -> bool:
    try:
        return fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS == _SEALS
    except OSError:
        return False  # a file of another kind, which has no seals
