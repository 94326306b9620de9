"""Which parts of calls are sent separately, how long they are kept, and which results are genuine."""

from __future__ import annotations

import functools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.errors import ProtocolError
from scaler.serialization import Buffer
from scaler.worker.call import Call, unpack_call
from scaler.worker_manager.aws_hpc import objects as objects_module
from scaler.worker_manager.aws_hpc.objects import (
    ALWAYS_SHARED_BYTES,
    FRESH_SECONDS,
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


@given(st.lists(st.sampled_from([10, MIN_SHARED_BYTES, ALWAYS_SHARED_BYTES]), max_size=4), st.integers(1, 3))
def test_every_call_returns_complete(sizes: list[int], count: int) -> None:
    calls = [call(number, *map(noise, sizes), arguments=noise(50_000, number)) for number in range(count)]
    for made, packed in zip(calls, SharedObjects().pack(calls), strict=True):
        found = read_back(packed)
        assert (found.arguments, list(found.inputs)) == (made.arguments, list(made.inputs))


@pytest.mark.parametrize(
    ("size", "times", "is_shared"),
    [
        (MIN_SHARED_BYTES - 1, 2, False),
        (MIN_SHARED_BYTES, 1, False),
        (MIN_SHARED_BYTES, 2, True),
        (ALWAYS_SHARED_BYTES, 1, True),
    ],
)
def test_repeated_and_large_blocks_are_moved_out_of_their_call(size: int, times: int, is_shared: bool) -> None:
    packed = SharedObjects().pack([call(number, bytearray(noise(size))) for number in range(times)])
    assert [len(each.blocks) for each in packed] == [int(is_shared)] * times
    assert (len(packed[0].data) < size) is is_shared
    assert packed[0].new_bytes == (size if is_shared and times == 1 else 0)


def test_client_bytes_cannot_pass_for_a_reference() -> None:
    block = b"\xfe" + bytes(32)
    [packed] = SharedObjects().pack([call(1, block)])
    assert list(read_back(packed).inputs) == [block]


def test_object_is_uploaded_again_after_half_a_day_or_a_loss() -> None:
    objects = SharedObjects()
    assert objects.use(1, ["a", "b"], 0.0) == ["a", "b"]
    objects.uploaded("a", 10, 0.0)
    assert objects.use(2, ["a", "b"], 1.0) == ["b"], "the upload of b has failed"
    assert objects.use(3, ["a"], FRESH_SECONDS + 1) == ["a"]
    objects.uploaded("a", 10, FRESH_SECONDS + 1)
    assert objects.use(4, ["a"], FRESH_SECONDS + 2) == []
    objects.lost()
    assert objects.use(5, ["a"], FRESH_SECONDS + 3) == ["a"]
    objects.check()


def test_unused_objects_beyond_a_limit_are_evicted_lru_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(objects_module, "MAX_UNUSED_BYTES", 20)
    objects = SharedObjects()
    for number, name in enumerate("abcd"):
        objects.use(number, [name], 0.0)
        objects.uploaded(name, 10, 0.0)
    assert objects.evict() == []
    for number in (0, 1, 1, 2, 3):
        objects.release(number)
        objects.check()
    assert objects.use(9, ["a"], 1.0) == []
    assert objects.evict() == ["b"], "a is used, c and d are within the limit"
    assert objects.use(10, ["b"], 1.0) == ["b"]


def test_rejects_a_block_that_does_not_match_its_name() -> None:
    [packed] = SharedObjects().pack([call(1, noise(ALWAYS_SHARED_BYTES))])
    with pytest.raises(ProtocolError, match="has another content than its name says"):
        restored(unpack_call(packed.data), lambda _: noise(ALWAYS_SHARED_BYTES, 1))


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
