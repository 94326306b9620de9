"""Payloads: parts as one string of bytes behind a tag, for what is small enough to travel with its task.

Framed parts are: tag (1 byte), number of parts (u32), size of each (u64), zeros up to a multiple of 16, then each part,
again with zeros up to a multiple of 16: arrays over them are aligned. Integers are little endian.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from scaler.errors import ProtocolError
from scaler.protocol.messages import PayloadTag
from scaler.serialization.pickling import Buffer

_HEAD = struct.Struct("<BI")
_ALIGNMENT = 16
_PICKLE = 0x80


def size_of(parts: Sequence[Buffer]) -> int:
    """Return the number of bytes in all parts together."""
    if len(parts) == 1:
        return len(parts[0])
    return sum(map(len, parts))


def to_payload(parts: Sequence[Buffer], tag: PayloadTag = PayloadTag.PARTS) -> bytes:
    """Return the inline payload of these parts. A lone pickle is its own payload."""
    if tag is PayloadTag.PARTS and len(parts) == 1:
        first = parts[0]
        if len(first) and first[0] == _PICKLE:
            return first if type(first) is bytes else bytes(first)
    head = _HEAD.pack(tag, len(parts)) + struct.pack(f"<{len(parts)}Q", *map(len, parts))
    pieces: list[Buffer] = [head, bytes(-len(head) % _ALIGNMENT)]
    for part in parts:
        pieces.append(part)
        pieces.append(bytes(-len(part) % _ALIGNMENT))
    return b"".join(pieces)


def parts_of(payload: Buffer) -> list[memoryview]:
    """Return views of the parts in an inline payload, without copying. Raises ProtocolError when it is none."""
    view = memoryview(payload)
    if not view:
        raise ProtocolError("a payload is empty")
    tag = view[0]
    if tag == _PICKLE:
        return [view]
    if tag not in (PayloadTag.PARTS, PayloadTag.ARGUMENTS):
        raise ProtocolError(f"a payload begins with tag {tag}, which is not an inline one")
    if len(view) < _HEAD.size:
        raise ProtocolError("a payload ends within its head")
    _, count = _HEAD.unpack_from(view)
    offset = _HEAD.size + 8 * count
    if offset > len(view):
        raise ProtocolError(f"a payload of {len(view)} bytes says that it has {count} parts")
    sizes = struct.unpack_from(f"<{count}Q", view, _HEAD.size)
    parts = []
    for size in sizes:
        offset += -offset % _ALIGNMENT
        if offset + size > len(view):
            raise ProtocolError(f"a payload of {len(view)} bytes says that a part ends at {offset + size}")
        parts.append(view[offset : offset + size])
        offset += size
    return parts
