"""Frames that a connection's packer compresses, and frames that the other side rejects."""

from __future__ import annotations

import json
import math
import random
import struct
from collections.abc import Callable
from itertools import count

import pytest

from scaler.extensions.compression.frames import MIN_FRAME_BYTES, Packer, PackingLoad
from scaler.extensions.compression.zstd import compress
from scaler.net.packing import expanded
from scaler.net.transport import EnvelopeReceived, Input, MalformedReceived
from scaler.net.zmq_transport import checked, with_checksum
from scaler.protocol.messages import MAX_ATTACHED_BYTES, MAX_BATCH_BYTES, Buffer
from scaler.protocol.session import HEADER_BYTES, Envelope, Header
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
    """seconds: time to compress a frame. rest_seconds: time that the thread spends elsewhere in between."""
    looks, now = count(), count()
    made = Packer(
        lambda: link_bytes_per_second,
        load or PackingLoad(),
        lambda: next(now) * rest_seconds / 2,  # two looks for each frame
        lambda: next(looks) * seconds,  # one look before compression, and one after
    )
    made.begin()
    return made


def came(envelope: Envelope) -> tuple[Input, int]:
    """Return an envelope as received by the other side, and its growth."""
    return expanded(checked(received(envelope)))


def size(envelope: Envelope) -> int:
    return sum(len(frame) for frame in (envelope.body, *envelope.attachments))


def ratio(by: Packer, frames: int = 20) -> float:
    """Return how much smaller the last one of frames of text becomes."""
    for _ in range(frames):
        last = by.pack(Envelope(HEADER, b"", [TEXT]))
    return len(TEXT) / size(last)


def received(envelope: Envelope) -> EnvelopeReceived:
    views = [memoryview(bytes(attachment)) for attachment in envelope.attachments]
    return EnvelopeReceived(LINK, envelope.header, envelope.body, views)


def table(*sizes: int) -> bytes:
    return HEADER + struct.pack(f"<{len(sizes)}I", *sizes)


def problem(envelope: Envelope) -> str:
    found, growth = came(envelope)
    assert isinstance(found, MalformedReceived)
    assert not growth
    return found.reason


@pytest.mark.parametrize("attachments", [[], [TEXT], [FLOATS, b"", NOISE, memoryview(TEXT)], [memoryview(FLOATS[:-3])]])
def test_compression_round_trips(attachments: list[Buffer]) -> None:
    envelope = Envelope(HEADER, TEXT[:100_000], attachments)
    packed = packer(0.0).pack(envelope)
    found, growth = came(with_checksum(packed))
    assert isinstance(found, EnvelopeReceived)
    assert found.header == HEADER
    assert found.body == envelope.body
    assert [bytes(each) for each in found.attachments] == [bytes(each) for each in attachments]
    assert all(each.readonly for each in found.attachments)
    assert growth == size(envelope) - size(packed) > 0


def test_incompressible_data_is_sent_unchanged() -> None:
    noise = Envelope(HEADER, NOISE[:10_000], [NOISE, memoryview(NOISE)[:MIN_FRAME_BYTES]])
    assert packer(0.0).pack(noise) == noise
    small = Envelope(HEADER, bytes(MIN_FRAME_BYTES - 1))
    assert packer(0.0).pack(small) == small


def test_fast_link_or_slow_cpu_gets_uncompressed_frames() -> None:
    assert ratio(packer(25 * MB, 0.002)) > 3  # 200 Mbit/s, and 250 MB/s to compress
    assert ratio(packer(125 * MB, 0.002)) == 1
    assert ratio(packer(math.inf, 0.0)) == 1
    assert ratio(packer(25 * MB, 0.050)) == 1  # 10 MB/s to compress


def test_large_message_uses_a_whole_iteration_and_one_speed_check() -> None:
    asked = count()
    by = Packer(lambda: next(asked) * 0.0, PackingLoad(), lambda: 0.0, lambda: 0.0)
    by.begin()
    by.pack(Envelope(HEADER, b"body", [TEXT]))
    assert not by.is_used_up
    by.pack(Envelope(HEADER, b"body", [TEXT] * 10))
    assert by.is_used_up
    assert next(asked) == 2


def test_frames_never_expand_beyond_their_announcement_or_message_limit() -> None:
    bomb = compress(bytes(100 * MB))
    assert len(bomb) < 10_000
    assert "its header: 1000" in problem(Envelope(table(1000), bomb))
    assert "maximum message size" in problem(Envelope(table(MAX_BATCH_BYTES + 1), bomb))
    half = MAX_ATTACHED_BYTES // 2 + 1
    assert "maximum message size" in problem(Envelope(table(0, half, half), b"body", [bomb, bomb]))
    plain = bytes(half)
    assert "maximum message size" in problem(Envelope(table(0, half, 0), b"body", [bomb, plain]))


@pytest.mark.parametrize(
    "envelope",
    [
        Envelope(table(len(TEXT)), compress(TEXT)[:-1]),
        Envelope(table(len(TEXT) - 1), compress(TEXT)),
        Envelope(table(len(TEXT)), compress(TEXT) + compress(b"more")),
        Envelope(table(len(TEXT)), NOISE[:1000]),
        Envelope(table(len(TEXT), 0), compress(TEXT)),
        Envelope(table(len(TEXT))[:-1], compress(TEXT)),
        Envelope(table(100), b"body"),
        Envelope(HEADER + b"\0", b"body"),
    ],
)
def test_unreadable_compressed_envelope_is_malformed(envelope: Envelope) -> None:
    assert problem(envelope).startswith("a compressed envelope cannot be read: ")


def test_damage_in_transit_is_detected_before_decompression() -> None:
    packed = with_checksum(packer(0.0).pack(Envelope(HEADER, TEXT)))
    places: list[Callable[[Envelope], Envelope]] = [
        lambda e: e._replace(header=e.header[: HEADER_BYTES + 1] + b"\xff" + e.header[HEADER_BYTES + 2 :]),
        lambda e: e._replace(body=e.body[:50] + b"\xff\x00" + e.body[52:]),
    ]
    for damage in places:
        found, _ = came(damage(packed))
        assert isinstance(found, MalformedReceived)
        assert found.is_damaged
