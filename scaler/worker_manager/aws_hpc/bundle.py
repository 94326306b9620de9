"""The calls of one array job in one block of bytes, from which each child reads its own. Pure. Calls of a map share
their function, so the first call serves as compression dictionary. Layout, little endian: magic (8 bytes), number of
calls and size of the dictionary (u32 each), end of each call (u64 each, counted from the end of the dictionary), the
dictionary, the calls. The dictionary and each call begin with a byte for the compression method."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence

from scaler.errors import ProtocolError

MAGIC = b"scalbndl"
_HEAD = struct.Struct("<8sII")
_PLAIN, _ZLIB, _BY_DICTIONARY = 0, 1, 2
_LEVEL = 1  # fast for compressible payloads, and cheap to try on the rest
_SAMPLE_BYTES = 64 * 1024
_WORTH = 0.9  # data that does not shrink below this share is stored uncompressed
WINDOW_BYTES = 32 * 1024  # reach of zlib; a longer dictionary has no effect
MAX_DATA_BYTES = 5 * 1024**3  # Of a call or result: the limit of PutObject. Source: S3 user guide.

Read = Callable[[int, int], bytes]  # returns the existing bytes between two offsets


def pack_bundle(calls: Sequence[bytes]) -> bytes:
    dictionary = calls[0][:WINDOW_BYTES] if len(calls) > 1 else b""
    packed_dictionary = compress(dictionary) if dictionary else b""
    blocks = [_compress_by(dictionary, call) if dictionary else compress(call) for call in calls]
    ends = []
    at = 0
    for block in blocks:
        at += len(block)
        ends.append(at)
    head = _HEAD.pack(MAGIC, len(calls), len(packed_dictionary))
    return b"".join([head, struct.pack(f"<{len(ends)}Q", *ends), packed_dictionary, *blocks])


def call_of(read: Read, index: int, first_bytes: int) -> bytes:
    """Return one packed call, with a single read if the first bytes contain it. Raises ProtocolError."""
    first = read(0, first_bytes)
    if len(first) < _HEAD.size or first[:8] != MAGIC:
        raise ProtocolError(f"what should be calls does not begin with {MAGIC.decode()} (size {len(first)})")
    _, count, dictionary_size = _HEAD.unpack_from(first)
    if index >= count:
        raise ProtocolError(f"no call has the index {index}: the number of calls is {count}")
    base = _HEAD.size + 8 * count + dictionary_size

    def part(begin: int, end: int) -> bytes:
        found = first[begin:end] if end <= len(first) else read(begin, end)
        if len(found) != end - begin:
            raise ProtocolError(f"the calls end at {begin + len(found)}, before {end}")
        return found

    if index:
        begin, end = struct.unpack("<QQ", part(_HEAD.size + 8 * (index - 1), _HEAD.size + 8 * (index + 1)))
    else:
        begin, (end,) = 0, struct.unpack("<Q", part(_HEAD.size, _HEAD.size + 8))
    block = part(base + begin, base + end)
    if block[:1] != bytes([_BY_DICTIONARY]):
        return decompress(block)
    dictionary = decompress(part(base - dictionary_size, base))
    return _inflate(zlib.decompressobj(zdict=dictionary), block)


def compress(data: bytes | bytearray | memoryview) -> bytes:
    view = memoryview(data)
    if len(zlib.compress(view[:_SAMPLE_BYTES], _LEVEL)) < _WORTH * min(len(view), _SAMPLE_BYTES):
        packed = zlib.compress(view, _LEVEL)
        if len(packed) < _WORTH * len(view):
            return bytes([_ZLIB]) + packed
    return b"".join((bytes([_PLAIN]), view))


def decompress(data: bytes | memoryview) -> bytes:
    if data[:1] == bytes([_PLAIN]):
        return bytes(data[1:])
    if data[:1] == bytes([_ZLIB]):
        return _inflate(zlib.decompressobj(), data)
    raise ProtocolError(f"data of size {len(data)} is compressed in a way that is not known here")


def _compress_by(dictionary: bytes, call: bytes) -> bytes:
    if len(call) > 2 * WINDOW_BYTES:
        return compress(call)
    deflate = zlib.compressobj(_LEVEL, zdict=dictionary)
    return bytes([_BY_DICTIONARY]) + deflate.compress(call) + deflate.flush()


def _inflate(inflate: zlib._Decompress, data: bytes | memoryview) -> bytes:
    try:
        found = inflate.decompress(data[1:], MAX_DATA_BYTES + 1)
    except zlib.error as error:
        raise ProtocolError(f"data of size {len(data)} cannot be decompressed: {error}") from error
    if len(found) > MAX_DATA_BYTES:
        raise ProtocolError(f"data of size {len(data)} has more than {MAX_DATA_BYTES} bytes decompressed")
    if not inflate.eof:
        raise ProtocolError(f"data of size {len(data)} ends too early to be decompressed")
    return found
