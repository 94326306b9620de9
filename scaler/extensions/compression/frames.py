"""Compresses the frames of one connection where compression pays off. Pure. For the format, see `docs/design.md`. The
zstd library (9 ms, 600 KiB) is imported with the first connection that may compress. An import at the first frame could
fail for lack of a file descriptor. Invariant: a frame expands to exactly the announced size or is rejected, and
announcements above the limits for plain frames are rejected before any allocation."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable

from scaler.grammar import counted
from scaler.net.transport import EnvelopeReceived, Input, MalformedReceived
from scaler.protocol.messages import MAX_ATTACHED_BYTES, MAX_BATCH_BYTES, Buffer
from scaler.protocol.session import HEADER_BYTES, Envelope

MIN_FRAME_BYTES = 4 * 1024
SAMPLE_BYTES = 16 * 1024
PACKED_BYTES_PER_ITERATION = 1024 * 1024
"""Number of bytes after which packing finishes its envelope and yields to timers and other connections."""
MAX_SHARE = 0.9
"""Frames that do not shrink below this share are sent uncompressed."""
GAIN = 2.0
"""Minimum ratio of saved sending time to compression time. Rises with the thread's load."""
LOAD_SECONDS = 1.0
"""Time constant of a thread's compression load."""
FIRST_COST = 3e-9
REMEMBERED_BYTES = 8 * 1024 * 1024
"""Halve the weight of older measurements after this many bytes."""

_SIZE = struct.Struct("<I")
"""Expanded size of a frame of a compressed envelope, body and attachments; 0: uncompressed."""


class PackingLoad:
    def __init__(self) -> None:
        self._share = 0.0
        self._at = 0.0

    def idle_share(self, now: float) -> float:
        self._share *= math.exp((self._at - now) / LOAD_SECONDS)
        self._at = now
        return max(0.01, 1 - self._share)

    def add(self, seconds: float) -> None:
        self._share += seconds / LOAD_SECONDS


class Packer:
    def __init__(
        self,
        link_bytes_per_second: Callable[[], float],
        load: PackingLoad,
        now: Callable[[], float],
        used_seconds: Callable[[], float],
    ) -> None:
        """link_bytes_per_second: returns the connection's throughput; 0: compress everything that shrinks. load: the
        thread's compression load. used_seconds: returns the thread's CPU time."""
        from scaler.extensions.compression.zstd import compress  # noqa: PLC0415 (see the module)

        self._compress = compress
        self._link_bytes_per_second = link_bytes_per_second
        self._load = load
        self._now = now
        self._used_seconds = used_seconds
        self._measured_bytes = REMEMBERED_BYTES // 8
        self._measured_seconds = self._measured_bytes * FIRST_COST
        self._left = 0
        self._rate = 0.0

    @property
    def is_used_up(self) -> bool:
        return self._left <= 0

    def begin(self) -> None:
        self._left = PACKED_BYTES_PER_ITERATION

    def pack(self, envelope: Envelope) -> Envelope:
        header, body, attachments, descriptors = envelope
        frames = (body, *attachments)
        if max(map(_size_of, frames)) < MIN_FRAME_BYTES:
            return envelope
        self._rate = self._link_bytes_per_second()
        packed = [self._packed(frame) for frame in frames]
        if not any(packed):
            return envelope
        pairs = list(zip(frames, packed, strict=True))
        table = b"".join(_SIZE.pack(0 if smaller is None else _size_of(frame)) for frame, smaller in pairs)
        first, *others = [frame if smaller is None else smaller for frame, smaller in pairs]
        return Envelope(header + table, bytes(first), others, descriptors)

    def _pays(self, share: float) -> bool:
        saved = (1 - share) * self._measured_bytes * self._load.idle_share(self._now())
        return saved > GAIN * self._measured_seconds * self._rate

    def _packed(self, frame: Buffer) -> bytes | None:
        """Return the compressed frame, or None if compression does not pay off."""
        size = _size_of(frame)
        if size < MIN_FRAME_BYTES or not self._pays(0.0):
            return None
        data = memoryview(frame).cast("B")
        if size > 2 * SAMPLE_BYTES:
            start = (size - SAMPLE_BYTES) // 2
            self._left -= SAMPLE_BYTES
            share = len(self._compress(data[start : start + SAMPLE_BYTES])) / SAMPLE_BYTES
            if share >= MAX_SHARE or not self._pays(share):
                return None
        self._left -= size
        begun = self._used_seconds()
        packed = self._compress(data)
        seconds = self._used_seconds() - begun
        self._load.add(seconds)
        self._measured_seconds += seconds
        self._measured_bytes += size
        if self._measured_bytes > REMEMBERED_BYTES:
            self._measured_seconds, self._measured_bytes = self._measured_seconds / 2, self._measured_bytes // 2
        return packed if len(packed) < MAX_SHARE * size else None


def expanded(received: EnvelopeReceived) -> tuple[Input, int]:
    """See `scaler.net.packing.expanded`."""
    try:
        return _expanded(received)
    except (ValueError, struct.error) as error:
        return MalformedReceived(received.link, f"a compressed envelope cannot be read: {error}"), 0


def _expanded(received: EnvelopeReceived) -> tuple[EnvelopeReceived, int]:
    frames: list[Buffer] = [received.body, *received.attachments]
    sizes = [size for (size,) in _SIZE.iter_unpack(received.header[HEADER_BYTES:])]
    if len(sizes) != len(frames):
        raise ValueError(f"its header announces {counted(len(sizes), 'frame')}, but there are {len(frames)}")
    body_bytes, *attached_bytes = (size or _size_of(frame) for size, frame in zip(sizes, frames, strict=True))
    if body_bytes > MAX_BATCH_BYTES or sum(attached_bytes) > MAX_ATTACHED_BYTES:
        raise ValueError(f"it would exceed the maximum message size: {body_bytes + sum(attached_bytes)}")
    from scaler.extensions.compression.zstd import decompress  # noqa: PLC0415 (see the module)

    body, *attachments = (decompress(frame, size) if size else frame for frame, size in zip(frames, sizes, strict=True))
    views = [memoryview(each).toreadonly() for each in attachments]
    growth = body_bytes + sum(attached_bytes) - sum(map(_size_of, frames))
    return received._replace(header=received.header[:HEADER_BYTES], body=bytes(body), attachments=views), growth


def _size_of(frame: Buffer) -> int:
    return frame.nbytes if isinstance(frame, memoryview) else len(frame)
