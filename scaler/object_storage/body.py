"""The bytes of an object: in memory, in shared memory, or in a mapped file.

An object has *parts*: a pickle and its out-of-band buffers. *Frames* carry the same bytes in order, in messages of at
most `MAX_ATTACHED_BYTES`. Only parts larger than a frame are split."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol
from zlib import crc32

from scaler.errors import LimitError
from scaler.protocol.messages import MAX_ATTACHED_BYTES, Buffer

SEGMENT_BYTES = 64 * 1024 * 1024
"""Approximate size of the bodies written to disk together."""


class Memory(Protocol):
    """A whole object in shared memory, such as `shared_memory.SharedMemory`. Freed with its last reference."""

    def fileno(self) -> int: ...

    def frames(self) -> list[memoryview]:
        """Return the bytes as message frames."""


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


MAX_PARTS = 100_000
"""Maximum parts per object. The layout must fit into a control message."""
MAX_FRAMES_PER_MESSAGE = 256
JOIN_BELOW_BYTES = 64 * 1024
"""Smaller parts are copied into one frame, which is cheaper than a frame for each."""
FRAME_BYTES = 1024 * 1024
"""Maximum frame size. ZeroMQ encrypts and sends frame by frame; larger frames take three times longer."""
HUGE_PAGES_FROM_BYTES = 8 * 1024 * 1024


def as_bytes_view(buffer: Buffer) -> memoryview:
    """Return a flat view of the bytes, without a copy. Raises TypeError if the buffer is not contiguous."""
    view = memoryview(buffer)
    if view.format == "B" and view.ndim == 1 and view.c_contiguous:
        return view
    if not view.nbytes:
        return memoryview(b"")
    return view.cast("B")


def views_of(parts: Sequence[Buffer]) -> list[memoryview]:
    """Return the parts as flat views. Raises LimitError if there are too many."""
    if len(parts) > MAX_PARTS:
        raise LimitError(f"an object has at most {MAX_PARTS} parts, not {len(parts)}")
    return [as_bytes_view(part) for part in parts]


def cut(parts: Sequence[memoryview]) -> Iterator[list[memoryview]]:
    """Yield the frames of each message, in order. An empty object yields one empty message."""
    message: list[memoryview] = []
    space = MAX_ATTACHED_BYTES
    for joined in _joined(parts):
        for start in range(0, joined.nbytes, FRAME_BYTES):
            frame = joined[start : start + FRAME_BYTES]
            if frame.nbytes > space or len(message) == MAX_FRAMES_PER_MESSAGE:
                yield message
                message, space = [], MAX_ATTACHED_BYTES
            message.append(frame)
            space -= frame.nbytes
    yield message


def _joined(parts: Sequence[memoryview]) -> Iterator[memoryview]:
    small: list[memoryview] = []
    small_bytes = 0
    for part in parts:
        if part.nbytes < JOIN_BELOW_BYTES:
            if part.nbytes:
                small.append(part)
                small_bytes += part.nbytes
            if small_bytes < FRAME_BYTES:
                continue
        if small:
            yield small[0] if len(small) == 1 else memoryview(b"".join(small))
            small, small_bytes = [], 0
        if part.nbytes >= JOIN_BELOW_BYTES:
            yield part
    if small:
        yield small[0] if len(small) == 1 else memoryview(b"".join(small))


def cut_out(frames: Sequence[memoryview], offset: int, size: int) -> list[memoryview]:
    """Return frames with bytes [offset, offset + size) of these frames, or fewer at the end."""
    found: list[memoryview] = []
    for frame in frames:
        if not size:
            break
        if offset >= frame.nbytes:
            offset -= frame.nbytes
            continue
        found.append(frame[offset : offset + size])
        size -= found[-1].nbytes
        offset = 0
    return found


def assemble(sizes: Sequence[int], frames: Sequence[memoryview]) -> list[memoryview]:
    """Return the read-only parts, as views where possible. Raises ValueError if bytes are missing."""
    parts: list[memoryview] = []
    index = start = 0
    for size in sizes:
        found: list[memoryview] = []
        missing = size
        while missing:
            if index == len(frames):
                raise ValueError(f"the frames of an object of size {sum(sizes)} are too short")
            taken = frames[index][start : start + missing]
            missing -= taken.nbytes
            start += taken.nbytes
            if taken.nbytes:
                found.append(taken)
            if start == frames[index].nbytes:
                index, start = index + 1, 0
        parts.append(found[0].toreadonly() if len(found) == 1 else _join(found, size))
    return parts


def _join(frames: Sequence[memoryview], size: int) -> memoryview:
    if size < HUGE_PAGES_FROM_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return memoryview(b"".join(frames))
    # Page faults dominate large copies, and huge pages cause fewer of them.
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    whole = memoryview(memory)
    start = 0
    for frame in frames:
        whole[start : start + frame.nbytes] = frame
        start += frame.nbytes
    return whole.toreadonly()


def write_segment(directory: str, objects: Sequence[Sequence[memoryview]]) -> list[list[memoryview]]:
    """Write the parts of objects (at least one byte) and return read-only mapped views. Raises OSError."""
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        size = sum(part.nbytes for each in objects for part in each)
        # Allocate first, so that a full disk raises an error here instead of causing SIGBUS in the mapping.
        os.posix_fallocate(file.fileno(), 0, size)
        for part in (part for each in objects for part in each):
            rest = part
            while rest.nbytes:
                rest = rest[file.write(rest) :]
        whole = map_file(file.fileno(), size, mmap.MAP_SHARED).toreadonly()
    found, at = [], 0
    for each in objects:
        views = []
        for part in each:
            views.append(whole[at : at + part.nbytes])
            at += part.nbytes
        found.append(views)
    return found


def map_file(descriptor: int, size: int, flags: int) -> memoryview:
    """Map a file until its last view is gone. Unlike `mmap.mmap`, keeps no file descriptor. Raises OSError."""
    protection = mmap.PROT_READ if flags & mmap.MAP_SHARED else mmap.PROT_READ | mmap.PROT_WRITE
    address = _libc_mmap(None, size, protection, flags, descriptor, 0)
    if address == ctypes.c_void_p(-1).value:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    memory = (ctypes.c_ubyte * size).from_address(address)
    # Not at exit, when threads may still read the memory and the kernel unmaps it anyway.
    weakref.finalize(memory, _libc_munmap, address, size).atexit = False
    return memoryview(memory).cast("B")


if sys.platform != "win32":
    _libc = ctypes.CDLL(None, use_errno=True)
    _libc_mmap = _libc.mmap
    _libc_mmap.restype = ctypes.c_void_p
    _libc_mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64)
    _libc_munmap = _libc.munmap
    _libc_munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
