"""Compression of the frames of one connection: decides whether compressing pays off, and does it. Pure. Format: see
`docs/design.md`. The zstd library (9 ms, 600 KiB) is imported for the first connection that may compress. Importing at
the first frame could fail for lack of file descriptors. Invariant: a frame expands to exactly the announced size or is
rejected, and announcements above the limits for plain frames are rejected before any allocation."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import NamedTuple

from scaler.grammar import counted
from scaler.net.transport import EnvelopeReceived, Input, MalformedReceived
from scaler.protocol.attachments import Buffer
from scaler.protocol.messages import MAX_ATTACHED_BYTES, MAX_BATCH_BYTES
from scaler.protocol.session import HEADER_BYTES, MAX_ATTACHMENTS, Envelope

ZSTD = "zstd"
MIN_FRAME_BYTES = 4 * 1024
SAMPLE_BYTES = 16 * 1024
PACKED_BYTES_PER_ITERATION = 1024 * 1024
"""Bytes after which packing yields to timers, other connections, and sending."""
LANES = (1, 8, 4)
"""Widths to try. Numbers of 8 or 4 bytes compress better when transposed: first bytes first, then second bytes, ..."""
GOOD_SHARE = 1 / 3
MAX_SHARE = 0.9
"""Frames that do not shrink below this share are sent uncompressed."""
GAIN = 2.0
"""Minimum ratio of saved sending time to compression time. Rises with the thread's load."""
LOAD_SECONDS = 1.0
"""Time constant of a thread's compression load."""
FIRST_COST = 3e-9
REMEMBERED_BYTES = 8 * 1024 * 1024
"""Halve the weight of older measurements after this many bytes."""

_FRAME = struct.Struct("<IB")
"""Sizes of body and attachments in a compressed envelope: expanded size, and number of lanes; 0, 0: uncompressed."""
_PLAIN = _FRAME.pack(0, 0)
_MORE = b"\1"
"""Follows the entries if more frames of the envelope follow, with the same header."""


class Packed(NamedTuple):
    data: bytes
    lanes: int


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
        """link_bytes_per_second: current throughput of the connection; 0: compress everything that shrinks. load: of
        the thread. used_seconds: CPU time of the thread."""
        from scaler.net.zstd import compress  # noqa: PLC0415 (see the module)

        self._compress = compress
        self._link_bytes_per_second = link_bytes_per_second
        self._load = load
        self._now = now
        self._used_seconds = used_seconds
        self._measured_bytes = REMEMBERED_BYTES // 8
        self._measured_seconds = self._measured_bytes * FIRST_COST
        self._left = 0
        self._packed_frames = 0
        self._rate = 0.0

    @property
    def is_used_up(self) -> bool:
        return self._left <= 0

    def begin(self) -> None:
        self._left = PACKED_BYTES_PER_ITERATION

    def pack(self, envelope: Envelope) -> tuple[Envelope, bool]:
        """Return the next part of an envelope to send, and whether it is the last. If not, call again."""
        header, body, attachments, descriptors = envelope
        frames = (body, *attachments)
        if not self._packed_frames:
            if max(map(_size_of, frames)) < MIN_FRAME_BYTES:
                return envelope, True
            self._rate = self._link_bytes_per_second()
        packed: list[Buffer] = []
        table = b""
        for frame in frames[self._packed_frames :]:
            if packed and self.is_used_up:
                break
            size = _size_of(frame)
            found = self._packed(frame, size) if size >= MIN_FRAME_BYTES and self._pays(0.0) else None
            packed.append(frame if found is None else found.data)
            table += _PLAIN if found is None else _FRAME.pack(size, found.lanes)
        self._packed_frames += len(packed)
        is_whole = self._packed_frames == len(frames)
        if is_whole:
            self._packed_frames = 0
            if len(packed) == len(frames) and not any(table):
                return envelope, True
        more = b"" if is_whole else _MORE
        return Envelope(header + table + more, bytes(packed[0]), packed[1:], descriptors), is_whole

    def _pays(self, share: float) -> bool:
        saved = (1 - share) * self._measured_bytes * self._load.idle_share(self._now())
        return saved > GAIN * self._measured_seconds * self._rate

    def _packed(self, frame: Buffer, size: int) -> Packed | None:
        compress = self._compress
        data = memoryview(frame).cast("B")
        best, share = 1, MAX_SHARE
        if size > 2 * SAMPLE_BYTES:
            start = (size - SAMPLE_BYTES) // 2 & -8
            sample = bytes(data[start : start + SAMPLE_BYTES])
            self._left -= SAMPLE_BYTES
            for lanes in LANES:
                found = len(compress(to_lanes(sample, lanes))) / SAMPLE_BYTES
                if found < share:
                    best, share = lanes, found
                if share < GOOD_SHARE:
                    break
            if share == MAX_SHARE or not self._pays(share):
                return None
        self._left -= size
        begun = self._used_seconds()
        packed = compress(to_lanes(bytes(data), best) if best > 1 else data)
        seconds = self._used_seconds() - begun
        self._load.add(seconds)
        self._measured_seconds += seconds
        self._measured_bytes += size
        if self._measured_bytes > REMEMBERED_BYTES:
            self._measured_seconds, self._measured_bytes = self._measured_seconds / 2, self._measured_bytes // 2
        return Packed(packed, best) if len(packed) < MAX_SHARE * size else None


class Expander:
    def __init__(self) -> None:
        self._begun: EnvelopeReceived | None = None

    def take(self, received: Input) -> tuple[Input | None, int]:
        """Return a plain envelope or `MalformedReceived`, and its growth in bytes; None while parts are missing."""
        if type(received) is not EnvelopeReceived or (len(received.header) <= HEADER_BYTES and self._begun is None):
            return received, 0
        begun, self._begun = self._begun, None
        try:
            is_whole, joined = _joined(begun, received)
            if is_whole:
                return _expanded(joined)
            _table_of(joined)
        except (ValueError, struct.error) as error:
            return MalformedReceived(received.link, f"a compressed envelope cannot be read: {error}"), 0
        self._begun = joined
        return None, 0


def _joined(begun: EnvelopeReceived | None, piece: EnvelopeReceived) -> tuple[bool, EnvelopeReceived]:
    """Append a part; return whether the envelope is complete, and the joined parts. Raises ValueError."""
    header = piece.header
    is_whole = (len(header) - HEADER_BYTES) % _FRAME.size == 0
    if not is_whole:
        if header[-1:] != _MORE:
            raise ValueError("its header has no frame table")
        header = header[:-1]
    if begun is None:
        return is_whole, piece._replace(header=header)
    if header[:HEADER_BYTES] != begun.header[:HEADER_BYTES] or len(header) == HEADER_BYTES:
        raise ValueError("another envelope arrived before it was complete")
    attachments = [*begun.attachments, memoryview(piece.body), *piece.attachments]
    return is_whole, begun._replace(header=begun.header + header[HEADER_BYTES:], attachments=attachments)


def _table_of(received: EnvelopeReceived) -> list[tuple[int, int]]:
    frames: list[Buffer] = [received.body, *received.attachments]
    entries = list(_FRAME.iter_unpack(received.header[HEADER_BYTES:]))
    if len(entries) != len(frames):
        raise ValueError(f"its header is about {counted(len(entries), 'frame')}, and there are {len(frames)}")
    table = []
    for (announced, lanes), frame in zip(entries, frames, strict=True):
        size = _size_of(frame)
        if announced and size > announced:
            raise ValueError(f"a frame is larger than its header announces: {announced}")
        table.append((announced or size, lanes))
    if len(table) > 1 + MAX_ATTACHMENTS:
        raise ValueError(f"it has more than {1 + MAX_ATTACHMENTS} frames")
    total = sum(size for size, _ in table)
    if table[0][0] > MAX_BATCH_BYTES or total - table[0][0] > MAX_ATTACHED_BYTES:
        raise ValueError(f"it would exceed the maximum message size: {total}")
    return table


def _expanded(received: EnvelopeReceived) -> tuple[EnvelopeReceived, int]:
    frames: list[Buffer] = [received.body, *received.attachments]
    table = _table_of(received)
    body, *attachments = (_expand(frame, size, lanes) for frame, (size, lanes) in zip(frames, table, strict=True))
    views = [memoryview(each).toreadonly() for each in attachments]
    growth = sum(size for size, _ in table) - sum(map(_size_of, frames))
    return received._replace(header=received.header[:HEADER_BYTES], body=bytes(body), attachments=views), growth


def to_lanes(data: bytes, lanes: int) -> bytes:
    """Transpose numbers of `lanes` bytes: all first bytes, then all second bytes, and so on. A remainder comes last."""
    if lanes == 1:
        return data
    whole = len(data) // lanes * lanes
    return b"".join([*(data[lane:whole:lanes] for lane in range(lanes)), data[whole:]])


def from_lanes(data: bytes, lanes: int) -> Buffer:
    if lanes == 1:
        return data
    count = len(data) // lanes
    restored = bytearray(data)
    for lane in range(lanes):
        restored[lane : count * lanes : lanes] = data[lane * count : (lane + 1) * count]
    return restored


def _expand(frame: Buffer, size: int, lanes: int) -> Buffer:
    if not lanes:
        if size != _size_of(frame):
            raise ValueError(f"an uncompressed frame does not have the size that its header announces: {size}")
        return frame
    from scaler.net.zstd import decompress  # noqa: PLC0415 (see the module)

    return from_lanes(decompress(frame, size), lanes)


def _size_of(frame: Buffer) -> int:
    return frame.nbytes if isinstance(frame, memoryview) else len(frame)
