"""Converts the *parts* of an object (a pickle and its out-of-band buffers) to *frames* and back. Frames carry the same
bytes in order, in messages of at most `MAX_ATTACHED_BYTES`. Only parts larger than a frame are split."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence

from scaler.errors import LimitError
from scaler.protocol.attachments import Buffer
from scaler.protocol.messages import MAX_ATTACHED_BYTES

MAX_PARTS = 100_000
"""Maximum parts per object. The layout must fit into a control message."""
MAX_FRAMES_PER_MESSAGE = 256
JOIN_BELOW_BYTES = 64 * 1024
"""Smaller parts are copied into one frame, which is cheaper than a frame for each."""
FRAME_BYTES = 1024 * 1024
"""Maximum frame size. ZeroMQ encrypts and sends frame by frame; larger frames take three times as long."""
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
