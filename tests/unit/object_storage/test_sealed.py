"""Data in a backend is accepted as an object only if it is exactly that object."""

from __future__ import annotations

import os

import pytest

from scaler.errors import ObjectLostError
from scaler.object_storage.backend.sealed import KEY_BYTES, seal_of, sealed, verify
from scaler.protocol.chunks import chunk_bytes, chunk_count

KEY = os.urandom(KEY_BYTES)
OBJECT, OTHER = b"o" * 16, b"p" * 16


def stored(parts: list[bytes], key: bytes = KEY, object_id: bytes = OBJECT) -> bytes:
    frames = [memoryview(part) for part in parts]
    return b"".join(sealed(key, object_id, [len(part) for part in parts], frames))


@pytest.mark.parametrize("size", [0, 1, 262_144, 262_145, 5_000_000])
def test_each_chunk_and_the_layout_are_verified(size: int) -> None:
    parts = [os.urandom(size // 3), b"", os.urandom(size - size // 3)]
    content = stored(parts)
    seal = seal_of(KEY, OBJECT, size, content[size:])
    assert seal.parts == [len(part) for part in parts]
    assert len(seal.digests) == chunk_count(size)
    step = chunk_bytes(size)
    for number in range(chunk_count(size)):
        chunk = content[number * step : min((number + 1) * step, size)]
        verify(KEY, OBJECT, size, number, seal, chunk)
        with pytest.raises(ObjectLostError, match=f"chunk {number} "):
            verify(KEY, OBJECT, size, number, seal, chunk + b"x")


def test_seal_rejects_wrong_object_size_key_and_damage() -> None:
    content = stored([bytes(1000)])
    end = content[1000:]
    wrong = [
        (KEY, OTHER, 1000, end),
        (KEY, OBJECT, 1001, end),
        (os.urandom(KEY_BYTES), OBJECT, 1000, end),
        (KEY, OBJECT, 1000, end[:-1] + bytes([end[-1] ^ 1])),
        (KEY, OBJECT, 1000, end[:16] + b"\1" + end[17:]),
        (KEY, OBJECT, 1000, end[:10]),
        (KEY, OBJECT, 1000, b""),
    ]
    for arguments in wrong:
        with pytest.raises(ObjectLostError):
            seal_of(*arguments)


def test_chunk_at_another_position_is_rejected() -> None:
    size = 1_000_000
    content = stored([bytes(size)])
    seal = seal_of(KEY, OBJECT, size, content[size:])
    with pytest.raises(ObjectLostError, match="chunk 1 "):
        verify(KEY, OBJECT, size, 1, type(seal)(seal.parts, [seal.digests[0]] * 4), content[: chunk_bytes(size)])
