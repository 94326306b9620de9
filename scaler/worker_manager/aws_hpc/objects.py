"""The objects that jobs read and write in S3. Pure.

The calls of one array job are one object, from which each child reads its own. Calls of a map share their function, so
the first call serves as the compression dictionary. Layout, little endian: magic (8 bytes), number of calls and size of
the dictionary (u32 each), end of each call (u64 each, counted from the end of the dictionary), the dictionary, the
calls. The dictionary and each call begin with a byte for the compression method.

A *block* is one payload of a call: function, serializer, code, arguments, or an input. A repeated or large block is
replaced in its call by a reference with the block's SHA-256, and becomes an object of the session. Jobs verify the
digest, so the object cannot be replaced. Other blocks remain in their call. Invariant, checked by `check`: an object in
use by an open submission is not evicted.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
import zlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from scaler.errors import ProtocolError
from scaler.serialization import Buffer
from scaler.worker.call import Call, pack_call

MAGIC = b"scalbndl"
_HEAD = struct.Struct("<8sII")
_PLAIN, _ZLIB, _BY_DICTIONARY = b"\0", b"\1", b"\2"  # methods of compression
_LEVEL = 1  # fast for compressible payloads, and cheap to try on the rest
_SAMPLE_BYTES = 64 * 1024
_WORTH = 0.9  # data that does not shrink below this share is stored uncompressed
WINDOW_BYTES = 32 * 1024  # reach of zlib; a longer dictionary has no effect
MAX_DATA_BYTES = 5 * 1024**3  # Maximum size of a call or result: the limit of PutObject. Source: S3 user guide.

MIN_SHARED_BYTES = 32 * 1024  # smaller blocks remain in their calls, which compress well together
ALWAYS_SHARED_BYTES = 1024**2  # blocks of this size are always extracted, to be uploaded only once
MAX_SEEN = 10_000  # blocks remembered, to detect repetitions
MAX_UNUSED_BYTES = 10 * 1024**3  # unused objects are kept in S3 up to this total, for later calls
FRESH_SECONDS = 12 * 3600.0  # older objects are uploaded again for a new job, long before the bucket's rule applies
KEY_NAME = "key"  # the object with the session's key, which jobs use to sign results
KEY_BYTES = 32

_REFERENCE = b"\xfe"
_REFERENCE_BYTES = 1 + hashlib.sha256().digest_size
Read = Callable[[int, int], bytes]  # returns the existing bytes between two offsets


def pack_bundle(calls: Sequence[bytes]) -> bytes:
    dictionary = calls[0][:WINDOW_BYTES] if len(calls) > 1 else b""
    packed_dictionary = compress(dictionary) if dictionary else b""
    blocks = [compress(call, dictionary) for call in calls]
    ends = list(accumulate(map(len, blocks)))
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
    dictionary = decompress(part(base - dictionary_size, base)) if block[:1] == _BY_DICTIONARY else b""
    return decompress(block, dictionary)


def compress(data: Buffer, dictionary: bytes = b"") -> bytes:
    view = memoryview(data)
    if dictionary and len(view) <= 2 * WINDOW_BYTES:
        deflate = zlib.compressobj(_LEVEL, zdict=dictionary)
        return _BY_DICTIONARY + deflate.compress(view) + deflate.flush()
    if len(zlib.compress(view[:_SAMPLE_BYTES], _LEVEL)) < _WORTH * min(len(view), _SAMPLE_BYTES):
        packed = zlib.compress(view, _LEVEL)
        if len(packed) < _WORTH * len(view):
            return _ZLIB + packed
    return b"".join((_PLAIN, view))


def decompress(data: Buffer, dictionary: bytes = b"") -> bytes:
    if data[:1] == _PLAIN:
        return bytes(data[1:])
    if data[:1] != (_BY_DICTIONARY if dictionary else _ZLIB):
        raise ProtocolError(f"data of size {len(data)} is compressed in a way that is not known here")
    inflate = zlib.decompressobj(zdict=dictionary) if dictionary else zlib.decompressobj()
    try:
        found = inflate.decompress(data[1:], MAX_DATA_BYTES + 1)
    except zlib.error as error:
        raise ProtocolError(f"data of size {len(data)} cannot be decompressed: {error}") from error
    if len(found) > MAX_DATA_BYTES:
        raise ProtocolError(f"data of size {len(data)} has more than {MAX_DATA_BYTES} bytes decompressed")
    if not inflate.eof:
        raise ProtocolError(f"data of size {len(data)} ends too early to be decompressed")
    return found


@dataclass(frozen=True, slots=True)
class PackedCall:
    """A call as bytes, without its shared blocks. new_bytes: bytes of blocks that only this call uses and S3 lacks."""

    call: Call
    data: bytes
    blocks: Mapping[str, Buffer] = field(default_factory=dict)
    new_bytes: int = 0


@dataclass(slots=True)
class _StoredObject:
    size_bytes: int
    uploaded_at: float


class SharedObjects:
    """The shared objects of a session by name, and the submissions that use them. For one thread."""

    def __init__(self) -> None:
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._stored: OrderedDict[str, _StoredObject] = OrderedDict()  # least recently used first
        self._uses: dict[int, Iterable[str]] = {}
        self._users: Counter[str] = Counter()

    def pack(self, calls: Sequence[Call]) -> list[PackedCall]:
        blocks_of_all = [block for call in calls for block in call.payloads]
        names = _names_of(blocks_of_all)
        counts = Counter(names[id(block)] for block in blocks_of_all if id(block) in names)

        def shared_name(block: Buffer) -> str:
            name = names.get(id(block), "")
            is_shared = len(block) >= ALWAYS_SHARED_BYTES or counts[name] > 1 or name in self._seen
            # A client's own bytes must not be mistaken for a reference.
            return name if name and (is_shared or _is_reference(block)) else ""

        packed = []
        for call in calls:
            blocks = {name: block for block in call.payloads if (name := shared_name(block))}
            new_bytes = sum(
                len(block) for name, block in blocks.items() if counts[name] == 1 and name not in self._stored
            )
            detached = call
            if blocks:
                detached = call.with_payloads(_reference(shared_name(block)) or block for block in call.payloads)
            packed.append(PackedCall(call, pack_call(detached), blocks, new_bytes))
        self._note_seen(counts)
        return packed

    def _note_seen(self, names: Iterable[str]) -> None:
        for name in names:
            self._seen[name] = None
            self._seen.move_to_end(name)
        while len(self._seen) > MAX_SEEN:
            self._seen.popitem(last=False)

    def use(self, number: int, names: Iterable[str], now: float) -> list[str]:
        self._uses[number] = tuple(names)
        self._users.update(self._uses[number])
        missing = []
        for name in self._uses[number]:
            found = self._stored.get(name)
            if found is None or now - found.uploaded_at > FRESH_SECONDS:
                missing.append(name)
            else:
                self._stored.move_to_end(name)
        return missing

    def uploaded(self, name: str, size_bytes: int, now: float) -> None:
        self._stored[name] = _StoredObject(size_bytes, now)
        self._stored.move_to_end(name)

    def lost(self) -> None:
        """Upload all objects again on their next use, because some may be missing in S3."""
        self._stored.clear()

    def release(self, number: int) -> None:
        self._users.subtract(self._uses.pop(number, ()))
        self._users = +self._users

    def evict(self) -> list[str]:
        """Return the least recently used objects beyond MAX_UNUSED_BYTES, for removal."""
        unused = [name for name in self._stored if name not in self._users]
        excess = sum(self._stored[name].size_bytes for name in unused) - MAX_UNUSED_BYTES
        evicted = []
        for name in unused:
            if excess <= 0:
                break
            excess -= self._stored.pop(name).size_bytes
            evicted.append(name)
        return evicted

    def check(self) -> None:
        assert self._users == Counter(name for names in self._uses.values() for name in names)


def restored(call: Call, read: Callable[[str], bytes]) -> Call:
    """Restore a call's shared blocks, read by name with `read`. Raises ProtocolError for a wrong block."""

    def block_of(block: Buffer) -> Buffer:
        if not _is_reference(block):
            return block
        digest = bytes(block[1:])
        found = read(f"shared/{digest.hex()}")
        check_block(f"shared/{digest.hex()}", found)
        return found

    return call.with_payloads(map(block_of, call.payloads))


def check_block(name: str, block: Buffer) -> None:
    if f"shared/{hashlib.sha256(block).hexdigest()}" != name:
        raise ProtocolError(f"the object {name} of size {len(block)} has another content than its name says")


def signed(key: bytes, number: int, index: int, data: Buffer) -> bytes:
    """Return a call's result prefixed with its signature. key: of the session. number: of the submission."""
    return b"".join((_signature(key, number, index, data), data))


def verified(key: bytes, number: int, index: int, data: Buffer) -> memoryview:
    """Return the result without its signature. Raises ProtocolError if the signature does not match."""
    view = memoryview(data)
    signature, content = view[:KEY_BYTES], view[KEY_BYTES:]
    if not hmac.compare_digest(signature, _signature(key, number, index, content)):
        raise ProtocolError("it is not signed with the key of this session: something else than its job wrote it")
    return content


def _signature(key: bytes, number: int, index: int, data: Buffer) -> bytes:
    # Includes the position, so that a job can sign only its own result.
    code = hmac.new(key, f"{number}/{index}:".encode(), hashlib.sha256)
    code.update(data)
    return code.digest()


def _reference(name: str) -> bytes:
    return _REFERENCE + bytes.fromhex(name.removeprefix("shared/")) if name else b""


def _is_reference(block: Buffer) -> bool:
    return len(block) == _REFERENCE_BYTES and block[:1] == _REFERENCE


def _names_of(blocks: Iterable[Buffer]) -> dict[int, str]:
    distinct = {id(block): block for block in blocks}
    return {
        key: f"shared/{hashlib.sha256(block).hexdigest()}"
        for key, block in distinct.items()
        if MIN_SHARED_BYTES <= len(block) < MAX_DATA_BYTES or _is_reference(block)
    }
