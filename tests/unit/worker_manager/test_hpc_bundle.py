"""Calls as one block of bytes: each job reads only its own call."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.errors import ProtocolError
from scaler.worker_manager.aws_hpc.objects import call_of, pack_bundle


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


@pytest.mark.parametrize(
    ("damaged", "text"),
    [
        (b"", "do not begin with scalbndl"),
        (b"something else, and long enough", "do not begin with scalbndl"),
        (pack_bundle([b"a" * 50, b"b" * 50])[:20], "the calls end at 20"),
        (pack_bundle([b"a" * 50, b"b" * 50])[:-3], "the calls end at"),
    ],
)
def test_damaged_calls_raise_a_protocol_error(damaged: bytes, text: str) -> None:
    with pytest.raises(ProtocolError, match=text):
        call_of(Store(damaged).read, 1, 1000)
