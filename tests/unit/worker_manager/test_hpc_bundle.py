"""Calls as one block of bytes: each job reads only its own call."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.errors import ProtocolError
from scaler.worker_manager.aws_hpc import objects
from scaler.worker_manager.aws_hpc.objects import call_of, compress, decompress, pack_bundle


class Store:
    """Counts reads of some bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.reads: list[tuple[int, int]] = []

    def read(self, begin: int, end: int) -> bytes:
        self.reads.append((begin, end))
        return self.data[begin:end]


def noise(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=20), st.integers(16, 500))
def test_every_call_round_trips_at_any_first_read_size(calls: list[bytes], first: int) -> None:
    data = pack_bundle(calls)
    assert [call_of(Store(data).read, index, first) for index in range(len(calls))] == calls


def test_reads_a_small_bundle_whole_and_a_large_one_in_part() -> None:
    small = Store(pack_bundle([b"a" * 100, b"b" * 100]))
    call_of(small.read, 1, 1000)
    assert small.reads == [(0, 1000)]
    large = Store(pack_bundle([noise(100_000, seed) for seed in range(10)]))
    assert call_of(large.read, 9, 50_000) == noise(100_000, 9)
    assert len(large.reads) == 2
    assert sum(end - begin for begin, end in large.reads) < 200_000


def test_data_that_does_not_shrink_is_not_compressed() -> None:
    assert compress(noise(1000)) == b"\0" + noise(1000)
    assert len(compress(bytes(1_000_000))) < 10_000
    mixed = bytes(64 * 1024) + noise(1_000_000)
    assert decompress(compress(mixed)) == mixed


@pytest.mark.parametrize(
    ("damaged", "text"),
    [
        (b"", "does not begin with scalbndl"),
        (b"something else, and long enough", "does not begin with scalbndl"),
        (pack_bundle([b"a" * 50, b"b" * 50])[:20], "the calls end at 20"),
        (pack_bundle([b"a" * 50, b"b" * 50])[:-3], "the calls end at"),
    ],
)
def test_damaged_calls_are_reported_as_such(damaged: bytes, text: str) -> None:
    with pytest.raises(ProtocolError, match=text):
        call_of(Store(damaged).read, 1, 1000)


def test_rejects_data_that_would_exceed_the_object_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "MAX_DATA_BYTES", 1_000_000)
    assert decompress(compress(bytes(1_000_000))) == bytes(1_000_000)
    with pytest.raises(ProtocolError, match="has more than 1000000 bytes decompressed"):
        decompress(compress(bytes(1_000_001)))
