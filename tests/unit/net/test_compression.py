"""What the packer of a connection makes of frames, when it lets them be, and what is refused on the other side."""

from __future__ import annotations

import json
import math
import random
import struct
from collections.abc import Callable, Sequence
from itertools import count

import pytest

from scaler.net.compression import (
    MIN_FRAME_BYTES,
    PACKED_BYTES_PER_ITERATION,
    Expander,
    Packer,
    PackingLoad,
    from_lanes,
    to_lanes,
)
from scaler.net.transport import EnvelopeReceived, Input, MalformedReceived
from scaler.net.zmq_transport import checked, with_checksum
from scaler.net.zstd import compress
from scaler.protocol.attachments import Buffer
from scaler.protocol.messages import MAX_ATTACHED_BYTES, MAX_BATCH_BYTES
from scaler.protocol.session import HEADER_BYTES, MAX_ATTACHMENTS, Envelope, Header
from tests.contracts.memory_network import WireEnd

LINK = WireEnd.__new__(WireEnd)
HEADER = Header(3, 0, bytes(16), 1, 0).pack()
MB = 1_000_000
_random = random.Random(1)
TEXT = json.dumps([{"id": n, "price": _random.randrange(10_000) / 100} for n in range(20_000)]).encode()[:500_000]
FLOATS = struct.pack("<60000d", *(n / 60_000 for n in range(60_000)))
NOISE = _random.randbytes(500_000)


def packer(
    link_bytes_per_second: float, seconds: float = 0.001, load: PackingLoad | None = None, rest_seconds: float = 60.0
) -> Packer:
    """seconds: that compressing a frame takes. rest_seconds: that the thread does something else in between."""
    looks, now = count(), count()
    made = Packer(
        lambda: link_bytes_per_second,
        load or PackingLoad(),
        lambda: next(now) * rest_seconds / 2,  # two looks for each frame
        lambda: next(looks) * seconds,  # one before and one after it is compressed
    )
    made.begin()
    return made


def sent(envelope: Envelope, by: Packer) -> list[Envelope]:
    """Pack an envelope; return its pieces, each of one iteration."""
    pieces, is_whole = [], False
    while not is_whole:
        by.begin()
        piece, is_whole = by.pack(envelope)
        pieces.append(piece)
    return pieces


def came(pieces: Sequence[Envelope], by: Expander | None = None) -> tuple[Input, int]:
    """Return what becomes of the last piece on the other side, and all growth; the others become nothing."""
    by = by or Expander()
    *others, last = (by.take(checked(received(piece))) for piece in pieces)
    assert others == [(None, 0)] * len(others)
    found, growth = last
    assert found is not None
    return found, growth


def size(*pieces: Envelope) -> int:
    return sum(len(frame) for piece in pieces for frame in (piece.body, *piece.attachments))


def ratio(by: Packer, frames: int = 20) -> float:
    """Return how much smaller the last one of frames of text becomes."""
    for _ in range(frames):
        last = sent(Envelope(HEADER, b"", [TEXT]), by)
    return len(TEXT) / size(*last)


def received(envelope: Envelope) -> EnvelopeReceived:
    views = [memoryview(bytes(attachment)) for attachment in envelope.attachments]
    return EnvelopeReceived(LINK, envelope.header, envelope.body, views)


def table(*entries: tuple[int, int]) -> bytes:
    return HEADER + b"".join(struct.pack("<IB", *entry) for entry in entries)


def problem(envelope: Envelope) -> str:
    found, growth = came([envelope])
    assert isinstance(found, MalformedReceived)
    assert not growth
    return found.reason


@pytest.mark.parametrize("attachments", [[], [TEXT], [FLOATS, b"", NOISE, memoryview(TEXT)], [memoryview(FLOATS[:-3])]])
def test_what_was_compressed_comes_out_as_it_went_in(attachments: list[Buffer]) -> None:
    envelope = Envelope(HEADER, TEXT[:100_000], attachments)
    packed = sent(envelope, packer(0.0))
    found, growth = came([with_checksum(piece) for piece in packed])
    assert isinstance(found, EnvelopeReceived)
    assert found.header == HEADER
    assert found.body == envelope.body
    assert [bytes(each) for each in found.attachments] == [bytes(each) for each in attachments]
    assert all(each.readonly for each in found.attachments)
    assert growth == size(envelope) - size(*packed) > 0


def test_what_cannot_be_compressed_travels_as_it_is() -> None:
    noise = Envelope(HEADER, NOISE[:10_000], [NOISE, memoryview(NOISE)[:MIN_FRAME_BYTES]])
    assert sent(noise, packer(0.0)) == [noise]
    small = Envelope(HEADER, bytes(MIN_FRAME_BYTES - 1))
    assert sent(small, packer(0.0)) == [small]


def test_a_fast_link_or_a_slow_processor_gets_plain_frames() -> None:
    assert ratio(packer(25 * MB, 0.002)) > 3  # 200 Mbit/s, and 250 MB/s to compress
    assert ratio(packer(125 * MB, 0.002)) == 1
    assert ratio(packer(math.inf, 0.0)) == 1
    assert ratio(packer(25 * MB, 0.050)) == 1  # 10 MB/s to compress


def test_a_large_message_travels_in_pieces_of_an_iteration_and_asks_for_the_speed_once() -> None:
    asked = 0

    def speed() -> float:
        nonlocal asked
        asked += 1
        return 0.0

    frames = [TEXT] * 10
    pieces = sent(Envelope(HEADER, b"body", frames), Packer(speed, PackingLoad(), lambda: 0.0, lambda: 0.0))
    assert len(pieces) == math.ceil(len(frames) / math.ceil(PACKED_BYTES_PER_ITERATION / len(TEXT))) > 2
    assert asked == 1
    expander = Expander()
    for _ in range(2):  # nothing is left of the first
        found, _ = came(pieces, expander)
        assert isinstance(found, EnvelopeReceived)
        assert (found.header, found.body) == (HEADER, b"body")
        assert [bytes(each) for each in found.attachments] == frames


def test_pieces_that_do_not_fit_together_are_malformed_and_forgotten() -> None:
    first, *_, last = sent(Envelope(HEADER, b"body", [TEXT] * 10), packer(0.0))
    other = Envelope(Header(3, 0, bytes(16), 2, 0).pack(), b"other")
    bomb = compress(bytes(MAX_ATTACHED_BYTES))
    for next_one in (
        other,
        last._replace(header=other.header + last.header[HEADER_BYTES:]),
        first._replace(header=first.header[:-1] + b"\2"),
        Envelope(table((MAX_ATTACHED_BYTES, 1)) + b"\1", bomb),
        Envelope(table(*[(0, 0)] * MAX_ATTACHMENTS) + b"\1", b"", [b""] * (MAX_ATTACHMENTS - 1)),
    ):
        expander = Expander()
        assert expander.take(received(first)) == (None, 0)
        found, growth = expander.take(received(next_one))
        assert isinstance(found, MalformedReceived), next_one
        assert not growth
        assert expander.take(received(other)) == (received(other), 0)


@pytest.mark.parametrize("lanes", [1, 8, 255])
@pytest.mark.parametrize("length", [0, 7, 1001])
def test_lanes_are_undone(lanes: int, length: int) -> None:
    assert from_lanes(to_lanes(NOISE[:length], lanes), lanes) == NOISE[:length]


def test_no_frame_is_expanded_beyond_what_its_header_announces_or_a_message_may_have() -> None:
    bomb = compress(bytes(100 * MB))
    assert len(bomb) < 10_000
    assert "announces: 1000" in problem(Envelope(table((1000, 1)), bomb))
    assert "maximum message size" in problem(Envelope(table((MAX_BATCH_BYTES + 1, 1)), bomb))
    half = MAX_ATTACHED_BYTES // 2 + 1
    assert "maximum message size" in problem(Envelope(table((0, 0), (half, 1), (half, 1)), b"body", [bomb, bomb]))
    plain = bytes(half)
    assert "maximum message size" in problem(Envelope(table((0, 0), (half, 1), (0, 0)), b"body", [bomb, plain]))


@pytest.mark.parametrize(
    "envelope",
    [
        Envelope(table((len(TEXT), 1)), compress(TEXT)[:-1]),
        Envelope(table((len(TEXT) - 1, 1)), compress(TEXT)),
        Envelope(table((len(TEXT), 1)), compress(TEXT) + compress(b"more")),
        Envelope(table((len(TEXT), 1)), NOISE[:1000]),
        Envelope(table((len(TEXT), 1), (0, 0)), compress(TEXT)),
        Envelope(table((len(TEXT), 1))[:-1], compress(TEXT)),
        Envelope(table((100, 0)), b"body"),
        Envelope(HEADER + b"\0", b"body"),
    ],
)
def test_a_compressed_envelope_that_cannot_be_read_is_malformed(envelope: Envelope) -> None:
    assert problem(envelope).startswith("a compressed envelope cannot be read: ")


def test_damage_on_the_way_is_found_before_anything_is_expanded() -> None:
    (packed,) = map(with_checksum, sent(Envelope(HEADER, TEXT), packer(0.0)))
    places: list[Callable[[Envelope], Envelope]] = [
        lambda e: e._replace(header=e.header[: HEADER_BYTES + 1] + b"\xff" + e.header[HEADER_BYTES + 2 :]),
        lambda e: e._replace(body=e.body[:50] + b"\xff\x00" + e.body[52:]),
    ]
    for damage in places:
        found, _ = came([damage(packed)])
        assert isinstance(found, MalformedReceived)
        assert found.is_damaged
