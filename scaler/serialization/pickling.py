"""Values as parts (a pickle and its out-of-band buffers), and parts as one payload.

Plain pickle is tried first, because it is six times as fast as cloudpickle. It names functions and classes by module,
which is wrong for those of `__main__`: another process has another `__main__`. A pickle that names it contains its
name, so the bytes are searched, and cloudpickle pickles the value again. A mere string with that name costs time, never
correctness.

A payload is a single pickle, or a tag, the number of parts (u32), the size of each (u64), zeros up to a multiple of 16,
then each part, again with zeros up to a multiple of 16: arrays over them are aligned. Integers are little endian.
"""

from __future__ import annotations

import math
import pickle
import struct
import sys
from collections.abc import Callable, Sequence, Set
from typing import Any

from scaler.errors import ProtocolError, ScalerError
from scaler.protocol.messages import INLINE_LIMIT_BYTES, PayloadTag

Buffer = bytes | bytearray | memoryview
Parts = list[Buffer]
"""A pickle, then its out-of-band buffers in order."""

_HEAD = struct.Struct("<BI")
_ALIGNMENT = 16
_PLAIN_PICKLE_ERRORS = (pickle.PicklingError, AttributeError, TypeError, ImportError, RecursionError)


def dump(value: object, on_retry: Callable[[], None] | None = None, in_band: bool = False) -> Parts:
    """Return the parts of a value. Raises whatever the value's own pickling raises.

    on_retry: called before a second attempt, to forget what the first one met.
    in_band: the pickle contains the buffers, and is the only part.
    """
    buffers: list[pickle.PickleBuffer] = []
    keep = None if in_band else buffers.append
    try:
        data = pickle.dumps(value, 5, buffer_callback=keep)
    except ScalerError:
        raise
    except _PLAIN_PICKLE_ERRORS:
        data = b"__main__"  # as if it had named it: cloudpickle decides
    if b"__main__" in data or modules_by_value():
        import cloudpickle  # noqa: PLC0415 (most processes never need it)

        if on_retry is not None:
            on_retry()
        buffers.clear()
        data = cloudpickle.dumps(value, 5, buffer_callback=keep)
    return [data, *(buffer.raw() for buffer in buffers)] if buffers else [data]


def load(parts: Sequence[Buffer], is_own: bool = False) -> Any:
    """Return the value of these parts. Raises whatever its unpickling raises.

    Small read-only buffers are copied, so that arrays over them can be written to. Large ones are used where they are,
    because others may use them too, unless the value belongs to one task or future alone (`is_own`).
    """
    if len(parts) == 1:
        return pickle.loads(parts[0])  # noqa: S301 (the peers of a cluster run each other's code: that is its purpose)
    limit_bytes = math.inf if is_own else INLINE_LIMIT_BYTES
    buffers = [
        bytearray(part) if len(part) <= limit_bytes and memoryview(part).readonly else part for part in parts[1:]
    ]
    return pickle.loads(parts[0], buffers=buffers)  # noqa: S301


def own_buffer(part: memoryview) -> Buffer:
    """Return a received part as its only owner may use it: writable, without a copy where it fills its frame."""
    if not part.readonly:
        return part
    try:
        whole = memoryview(part.obj).cast("B")
    except TypeError:
        return bytearray(part)
    return whole if whole.nbytes == part.nbytes and not whole.readonly else bytearray(part)


def modules_by_value() -> Set[str]:
    """Return the modules whose functions the user asked cloudpickle to pickle by value."""
    # While another thread is still importing cloudpickle, its registry is empty.
    registered = getattr(sys.modules.get("cloudpickle"), "list_registry_pickle_by_value", None)
    return frozenset() if registered is None else registered()


def size_of(parts: Sequence[Buffer]) -> int:
    """Return the number of bytes in all parts together."""
    return len(parts[0]) if len(parts) == 1 else sum(map(len, parts))


def to_payload(parts: Sequence[Buffer], tag: PayloadTag = PayloadTag.PARTS) -> bytes:
    """Return the inline payload of these parts. A single pickle is its own payload."""
    first = parts[0]
    if tag is PayloadTag.PARTS and len(parts) == 1 and len(first) and first[0] == PayloadTag.PICKLE:
        return first if type(first) is bytes else bytes(first)
    head = _HEAD.pack(tag, len(parts)) + struct.pack(f"<{len(parts)}Q", *map(len, parts))
    return b"".join(padded for part in (head, *parts) for padded in (part, bytes(-len(part) % _ALIGNMENT)))


def parts_of(payload: Buffer) -> list[memoryview]:
    """Return views of the parts in an inline payload, without copying. Raises ProtocolError when it is none."""
    view = memoryview(payload)
    if not view:
        raise ProtocolError("a payload is empty")
    tag = view[0]
    if tag == PayloadTag.PICKLE:
        return [view]
    if tag not in (PayloadTag.PARTS, PayloadTag.ARGUMENTS):
        raise ProtocolError(f"a payload begins with tag {tag}, which is not an inline one")
    if len(view) < _HEAD.size:
        raise ProtocolError("a payload ends within its head")
    _, count = _HEAD.unpack_from(view)
    offset = _HEAD.size + 8 * count
    if offset > len(view):
        raise ProtocolError(f"a payload of {len(view)} bytes says that it has {count} parts")
    parts = []
    for size in struct.unpack_from(f"<{count}Q", view, _HEAD.size):
        offset += -offset % _ALIGNMENT
        if offset + size > len(view):
            raise ProtocolError(f"a payload of {len(view)} bytes says that a part ends at {offset + size}")
        parts.append(view[offset : offset + size])
        offset += size
    return parts
