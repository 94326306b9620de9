"""Large objects in shared memory: written once, mapped by every reader of the host, never copied.

An object is an unnamed memory file (`memfd_create`), sealed before another process receives its descriptor, so that
size and content cannot change. Readers get private, copy-on-write mappings. On systems other than Linux, only the
import works.
"""

from __future__ import annotations

import mmap
import os
import sys
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from scaler.net.local import FileDescriptor
from scaler.object_storage.body import Body, cut, cut_out, map_file
from scaler.protocol.chunks import chunk_bytes
from scaler.protocol.messages import Descriptor

if sys.platform == "linux":
    import fcntl
    import resource

    _SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE

MIN_SHARED_BYTES = 1024 * 1024
"""Smaller objects are sent as frames, because a descriptor and a mapping cost as much as copying."""
MAX_MEMORIES = 30_000
"""Maximum memory files per storage, which may map each of them. Linux allows 65,530 mappings per process."""
_ALIGNMENT = 64
_MAP_NORESERVE = 0x4000


def is_supported() -> bool:
    return sys.platform == "linux" and hasattr(os, "memfd_create") and sys.maxsize > 2**32


def max_memories() -> int:
    """Return the maximum number of memory files. Half of the file descriptors are reserved for connections."""
    return min(resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2, MAX_MEMORIES) if is_supported() else 0


class SharedMemory:
    """The parts of an object in a sealed memory file. Closes the descriptor with the last reference."""

    __slots__ = ("__weakref__", "_descriptor", "sizes")

    def __init__(self, descriptor: Descriptor, sizes: Sequence[int]) -> None:
        """Raises ValueError if this is not a sealed memory file of these parts."""
        self._descriptor = descriptor
        self.sizes = sizes
        number = descriptor.fileno()
        state = os.fstat(number)
        size = state.st_size
        # Readers would get SIGBUS at pages that the host cannot provide: holes, and scarce hugetlbfs pages.
        is_whole = 512 * state.st_blocks >= size and os.fstatvfs(number).f_bsize == mmap.PAGESIZE
        if not size or size != _offsets(sizes)[-1] or not _is_sealed(number) or not is_whole:
            raise ValueError(f"descriptor {number} is not the sealed memory of an object of size {sum(sizes)}")

    @classmethod
    def written(cls, parts: Sequence[memoryview]) -> SharedMemory:
        """Return a copy of the parts. Raises OSError if memory or file descriptors run out."""
        descriptor = _new_file()
        # Writing is nearly twice as fast as copying into a mapping, whose fresh pages the kernel zeroes first.
        with open(descriptor.fileno(), "wb", closefd=False) as file:
            end = 0
            for part in parts:
                end += file.write(bytes(-end % _ALIGNMENT)) + file.write(part)
        fcntl.fcntl(descriptor.fileno(), fcntl.F_ADD_SEALS, _SEALS)
        return cls(descriptor, [part.nbytes for part in parts])

    def fileno(self) -> int:
        return self._descriptor.fileno()

    def parts(self) -> list[memoryview]:
        """Return writable parts in a new private mapping, which is unmapped with the last part."""
        offsets = _offsets(self.sizes)
        whole = map_file(self.fileno(), offsets[-1], mmap.MAP_PRIVATE | _MAP_NORESERVE)
        return [whole[offset : offset + size] for offset, size in zip(offsets[:-1], self.sizes, strict=True)]

    def frames(self) -> list[memoryview]:
        return [frame for message in cut([part.toreadonly() for part in self.parts()]) for frame in message]


class GrowingMemory:
    """An object that arrives in chunks, in any order."""

    def __init__(self, sizes: Sequence[int]) -> None:
        """Raises OSError if file descriptors or address space run out."""
        self.parts = list(sizes)
        self._offsets = _offsets(sizes)
        self._descriptor = _new_file()
        self._begins = [0, *accumulate(sizes)]
        """Start offset of each part in the object's bytes, then the end."""
        self._chunk_bytes = chunk_bytes(self._begins[-1])
        self._have = 0
        # A private mapping shows later writes to the file as long as the mapping itself is not written to.
        os.ftruncate(self._descriptor.fileno(), self._offsets[-1])
        memory = map_file(self._descriptor.fileno(), self._offsets[-1], mmap.MAP_PRIVATE | _MAP_NORESERVE)
        ranges = zip(self._offsets[:-1], sizes, strict=True)
        parts = [memory[at : at + size].toreadonly() for at, size in ranges]
        self._frames = [frame for message in cut(parts) for frame in message]

    def write(self, offset: int, frames: Sequence[memoryview]) -> None:
        """Write whole chunks at an offset of the object's bytes. Raises ValueError beyond the end, and OSError."""
        begins, start = self._begins, offset
        part = bisect_right(begins, offset) - 1
        for frame in frames:
            rest = frame
            while rest.nbytes:
                while part < len(self.parts) and offset >= begins[part + 1]:
                    part += 1
                if part == len(self.parts):
                    raise ValueError(f"the object of size {begins[-1]} ends before {offset}")
                at = self._offsets[part] + offset - begins[part]
                written = os.pwrite(self._descriptor.fileno(), rest[: begins[part + 1] - offset], at)
                rest = rest[written:]
                offset += written
        first, end = start // self._chunk_bytes, -(-offset // self._chunk_bytes)
        self._have |= ((1 << (end - first)) - 1) << first

    def frames(self, offset: int, size: int) -> list[memoryview] | None:
        """Return a range as message frames; None if one of its chunks is incomplete."""
        first, end = offset // self._chunk_bytes, -(-(offset + size) // self._chunk_bytes)
        wanted = ((1 << (end - first)) - 1) << first
        is_here = size > 0 and offset + size <= self._begins[-1] and self._have & wanted == wanted
        return cut_out(self._frames, offset, size) if is_here else None

    def body(self) -> Body:
        """Return the complete object. Raises ValueError or OSError if it cannot be shared."""
        fcntl.fcntl(self._descriptor.fileno(), fcntl.F_ADD_SEALS, _SEALS)
        return Body(self.parts, [], self._begins[-1], SharedMemory(self._descriptor, self.parts))


def _new_file() -> FileDescriptor:
    return FileDescriptor(os.memfd_create("scaler-object", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))


def _offsets(sizes: Sequence[int]) -> list[int]:
    offsets, end = [], 0
    for size in sizes:
        offsets.append(end + -end % _ALIGNMENT)
        end = offsets[-1] + size
    return [*offsets, end]


def _is_sealed(descriptor: int) -> bool:
    try:
        return fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS == _SEALS
    except OSError:
        return False  # a file type without seals
