"""Which parts of calls are sent separately, how long they are kept, and which results are genuine."""

from __future__ import annotations

import functools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.errors import ProtocolError
from scaler.offload.call import Call, unpack_call
from scaler.serialization import Buffer
from scaler.worker_manager.aws_hpc.objects import (
    MIN_SHARED_BYTES,
    PackedCall,
    SharedObjects,
    restored,
    signed,
    verified,
)

KEY = b"k" * 32


@functools.cache
def noise(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def call(number: int, *inputs: Buffer, arguments: bytes = b"a") -> Call:
    return Call(number.to_bytes(16, "big"), 1, b"f", arguments, inputs)


def read_back(packed: PackedCall) -> Call:
    return restored(unpack_call(packed.data), lambda name: bytes(packed.blocks[name]))


@given(st.lists(st.sampled_from([10, MIN_SHARED_BYTES, 100_000]), max_size=4), st.integers(1, 3))
def test_every_call_returns_complete(sizes: list[int], count: int) -> None:
    calls = [call(number, *map(noise, sizes), arguments=noise(50_000, number)) for number in range(count)]
    for made, packed in zip(calls, SharedObjects().pack(calls), strict=True):
        found = read_back(packed)
        assert (found.arguments, list(found.inputs)) == (made.arguments, list(made.inputs))


@pytest.mark.parametrize(
    ("size", "times", "is_shared"),
    [(MIN_SHARED_BYTES - 1, 2, False), (MIN_SHARED_BYTES, 1, False), (MIN_SHARED_BYTES, 2, True)],
)
def test_repeated_blocks_are_moved_out_of_their_call(size: int, times: int, is_shared: bool) -> None:
    packed = SharedObjects().pack([call(number, bytearray(noise(size))) for number in range(times)])
    assert [len(each.blocks) for each in packed] == [int(is_shared)] * times
    assert (len(packed[0].data) < size) is is_shared


def test_block_of_an_earlier_call_is_moved_out_of_the_next_one() -> None:
    objects = SharedObjects()
    assert [len(objects.pack([call(number, noise(MIN_SHARED_BYTES))])[0].blocks) for number in range(2)] == [0, 1]


def test_client_bytes_cannot_pass_for_a_reference() -> None:
    block = b"\xfe" + bytes(32)
    [packed] = SharedObjects().pack([call(1, block)])
    assert list(read_back(packed).inputs) == [block]


def test_rejects_a_block_that_does_not_match_its_name() -> None:
    packed, _ = SharedObjects().pack([call(number, noise(MIN_SHARED_BYTES)) for number in range(2)])
    with pytest.raises(ProtocolError, match="does not match its name"):
        restored(unpack_call(packed.data), lambda _: noise(MIN_SHARED_BYTES, 1))


def test_result_is_accepted_only_with_its_signed_key_and_place() -> None:
    data = signed(KEY, 12, 3, b"result")
    assert bytes(verified(KEY, 12, 3, data)) == b"result"
    for key, number, index, found in (
        (b"x" * 32, 12, 3, data),
        (KEY, 12, 4, data),
        (KEY, 1, 23, data),
        (KEY, 12, 3, data[:-1] + b"x"),
        (KEY, 12, 3, b"result"),
        (KEY, 12, 3, b""),
    ):
        with pytest.raises(ProtocolError, match="not signed with the key of this session"):
            verified(key, number, index, found)
