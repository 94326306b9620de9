"""Format of objects in a backend: content, a digest of each chunk, then the layout. Pure.

Digests are keyed and cover the ids of object and chunk, so write access to the bucket does not allow forging objects.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from hmac import compare_digest
from typing import TYPE_CHECKING, NamedTuple

from scaler.errors import ObjectLostError
from scaler.protocol.chunks import chunk_bytes, chunk_count

if TYPE_CHECKING:
    from hashlib import blake2b as Digest  # noqa: N812 (it is the type of digests)

KEY_BYTES = 32
DIGEST_BYTES = 16
_LAYOUT = (1 << 64) - 1
"""Replaces the chunk number in the digest of the layout."""


class Seal(NamedTuple):
    """Trailer of an object. parts: sizes of the object's parts."""

    parts: list[int]
    digests: list[bytes]


def sealed(key: bytes, object_id: bytes, parts: Sequence[int], frames: Iterable[memoryview]) -> Iterator[memoryview]:
    """Yield the content of an object, then its seal."""
    size = sum(parts)
    step = left = chunk_bytes(size)
    digest = _digest(key, object_id, size, 0)
    digests: list[bytes] = []
    for frame in frames:
        rest = frame
        while rest.nbytes:
            part, rest = rest[:left], rest[left:]
            digest.update(part)
            yield part
            left -= part.nbytes
            if not left:
                digests.append(digest.digest())
                digest, left = _digest(key, object_id, size, len(digests)), step
    if left < step or not digests:
        digests.append(digest.digest())
    layout = struct.pack(f"<{len(parts)}Q", *parts)
    yield memoryview(b"".join((*digests, layout, _of(key, object_id, size, _LAYOUT, layout))))


def seal_of(key: bytes, object_id: bytes, size_bytes: int, end: bytes) -> Seal:
    """Parse and verify the trailer of an object. Raises ObjectLostError on a mismatch."""
    count = chunk_count(size_bytes)
    layout = end[count * DIGEST_BYTES : -DIGEST_BYTES]
    found = _of(key, object_id, size_bytes, _LAYOUT, layout)
    if len(layout) % 8 or not compare_digest(found, end[-DIGEST_BYTES:]):
        raise ObjectLostError("the backend's object with this name is a different object or is damaged")
    digests = [end[at : at + DIGEST_BYTES] for at in range(0, count * DIGEST_BYTES, DIGEST_BYTES)]
    return Seal(list(struct.unpack(f"<{len(layout) // 8}Q", layout)), digests)


def verify(key: bytes, object_id: bytes, size_bytes: int, number: int, seal: Seal, chunk: bytes) -> None:
    if not compare_digest(_of(key, object_id, size_bytes, number, chunk), seal.digests[number]):
        raise ObjectLostError(f"chunk {number} in the backend is damaged")


def _of(key: bytes, object_id: bytes, size_bytes: int, number: int, content: bytes) -> bytes:
    digest = _digest(key, object_id, size_bytes, number)
    digest.update(content)
    return digest.digest()


def _digest(key: bytes, object_id: bytes, size_bytes: int, number: int) -> Digest:
    return blake2b(key=key, digest_size=DIGEST_BYTES, salt=object_id, person=struct.pack("<QQ", size_bytes, number))
