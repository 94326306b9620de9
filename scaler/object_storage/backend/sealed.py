"""What an object looks like in a backend: its bytes, and behind them a digest of each chunk and the layout. Pure.

The digests are keyed, and name the object and the chunk. So whoever may write to the bucket and has no key can delete
objects, and cannot pass anything off as one of them. A reader needs two ranges for any chunk: the chunk and the end.
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
"""In place of a chunk's number, for the digest of the layout."""


class Seal(NamedTuple):
    """What is behind the bytes of an object. parts: the sizes of its parts."""

    parts: list[int]
    digests: list[bytes]


def sealed(key: bytes, object_id: bytes, parts: Sequence[int], frames: Iterable[memoryview]) -> Iterator[memoryview]:
    """Yield the bytes of an object, which the frames have, and the seal."""
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
    """Return the seal of an object from what is behind its bytes. Raises ObjectLostError when it is another one's."""
    count = chunk_count(size_bytes)
    layout = end[count * DIGEST_BYTES : -DIGEST_BYTES]
    found = _of(key, object_id, size_bytes, _LAYOUT, layout)
    if len(layout) % 8 or not compare_digest(found, end[-DIGEST_BYTES:]):
        raise ObjectLostError("what the backend has under its name is not this object, or is damaged")
    digests = [end[at : at + DIGEST_BYTES] for at in range(0, count * DIGEST_BYTES, DIGEST_BYTES)]
    return Seal(list(struct.unpack(f"<{len(layout) // 8}Q", layout)), digests)


def verify(key: bytes, object_id: bytes, size_bytes: int, number: int, seal: Seal, chunk: bytes) -> None:
    """Raise ObjectLostError when these are not the bytes of this chunk."""
    if not compare_digest(_of(key, object_id, size_bytes, number, chunk), seal.digests[number]):
        raise ObjectLostError(f"chunk {number} that the backend has of it is damaged")


def _of(key: bytes, object_id: bytes, size_bytes: int, number: int, content: bytes) -> bytes:
    digest = _digest(key, object_id, size_bytes, number)
    digest.update(content)
    return digest.digest()


def _digest(key: bytes, object_id: bytes, size_bytes: int, number: int) -> Digest:
    return blake2b(key=key, digest_size=DIGEST_BYTES, salt=object_id, person=struct.pack("<QQ", size_bytes, number))
