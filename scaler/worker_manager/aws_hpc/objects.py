"""Format of the objects that jobs read and write in S3. Pure.

One object contains all calls of an array job, and each child reads only its own call. Layout, little endian: magic (8
bytes), number of calls (u32), end of each call (u64 each, counted from the end of this table), the calls.

A *block* is one payload of a call: function, serializer, code, arguments, or an input. A repeated block becomes an
object of the session, and its calls refer to it by SHA-256. Jobs verify the digest, so the object cannot be replaced.
Other blocks remain in their call.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from scaler.errors import ProtocolError
from scaler.offload.call import Call, pack_call
from scaler.serialization import Buffer

MAGIC = b"scalbndl"
_HEAD = struct.Struct("<8sI")
MAX_DATA_BYTES = 5 * 1024**3  # Maximum size of a call or result: the limit of PutObject. Source: S3 user guide.

MIN_SHARED_BYTES = 1024  # smaller blocks remain in their calls
MAX_SEEN = 10_000  # number of recent blocks to compare with new blocks
KEY_BYTES = 32  # size of the session's key, which precedes each call and signs each result

_REFERENCE = b"\xfe"
_REFERENCE_BYTES = 1 + hashlib.sha256().digest_size
Read = Callable[[int, int], bytes]  # returns the existing bytes between two offsets


def pack_bundle(calls: Sequence[bytes]) -> bytes:
    ends = list(accumulate(map(len, calls)))
    return b"".join([_HEAD.pack(MAGIC, len(calls)), struct.pack(f"<{len(ends)}Q", *ends), *calls])


def call_of(read: Read, index: int, first_bytes: int) -> bytes:
    """Return one packed call. Reads again only if the first bytes do not contain it. Raises ProtocolError."""
    first = read(0, first_bytes)
    if len(first) < _HEAD.size or first[:8] != MAGIC:
        raise ProtocolError(f"the calls do not begin with {MAGIC.decode()} (size {len(first)})")
    _, count = _HEAD.unpack_from(first)
    if index >= count:
        raise ProtocolError(f"there is no call {index}: the number of calls is {count}")
    base = _HEAD.size + 8 * count

    def part(begin: int, end: int) -> bytes:
        found = first[begin:end] if end <= len(first) else read(begin, end)
        if len(found) != end - begin:
            raise ProtocolError(f"the calls end at {begin + len(found)}, before {end}")
        return found

    if index:
        begin, end = struct.unpack("<QQ", part(_HEAD.size + 8 * (index - 1), _HEAD.size + 8 * (index + 1)))
    else:
        begin, (end,) = 0, struct.unpack("<Q", part(_HEAD.size, _HEAD.size + 8))
    return part(base + begin, base + end)


@dataclass(frozen=True, slots=True)
class PackedCall:
    """A call packed as bytes, and the shared blocks that were removed from it."""

    call: Call
    data: bytes
    blocks: Mapping[str, Buffer] = field(default_factory=dict)


class SharedObjects:
    """The shared objects of a session by name, kept in S3 until the session ends. uploaded: names; thread-safe."""

    def __init__(self) -> None:
        self._seen: OrderedDict[str, None] = OrderedDict()
        self.uploaded: set[str] = set()

    def pack(self, calls: Sequence[Call]) -> list[PackedCall]:
        blocks_of_all = [block for call in calls for block in call.payloads]
        names = _names_of(blocks_of_all)
        counts = Counter(names[id(block)] for block in blocks_of_all if id(block) in names)

        def shared_name(block: Buffer) -> str:
            name = names.get(id(block), "")
            is_shared = counts[name] > 1 or name in self._seen
            # A client's own bytes must not be mistaken for a reference.
            return name if name and (is_shared or _is_reference(block)) else ""

        packed = []
        for call in calls:
            blocks = {name: block for block in call.payloads if (name := shared_name(block))}
            detached = call
            if blocks:
                detached = call.with_payloads(_reference(shared_name(block)) or block for block in call.payloads)
            packed.append(PackedCall(call, pack_call(detached), blocks))
        for name in counts:
            self._seen[name] = None
            self._seen.move_to_end(name)
        while len(self._seen) > MAX_SEEN:
            self._seen.popitem(last=False)
        return packed


def restored(call: Call, read: Callable[[str], bytes]) -> Call:
    """Restore a call's shared blocks, read by name with `read`. Raises ProtocolError for a wrong block."""

    def block_of(block: Buffer) -> Buffer:
        if not _is_reference(block):
            return block
        name = f"shared/{bytes(block[1:]).hex()}"
        found = read(name)
        if f"shared/{hashlib.sha256(found).hexdigest()}" != name:
            raise ProtocolError(f"the object {name} of size {len(found)} does not match its name")
        return found

    return call.with_payloads(map(block_of, call.payloads))


def signed(key: bytes, number: int, index: int, data: Buffer) -> bytes:
    """Return a call's result prefixed with its signature. key: session key. number: number of the submission."""
    return b"".join((_signature(key, number, index, data), data))


def verified(key: bytes, number: int, index: int, data: Buffer) -> memoryview:
    """Return the result without its signature. Raises ProtocolError if the signature does not match."""
    view = memoryview(data)
    signature, content = view[:KEY_BYTES], view[KEY_BYTES:]
    if not hmac.compare_digest(signature, _signature(key, number, index, content)):
        raise ProtocolError("it is not signed with the key of this session, so its job did not write it")
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
