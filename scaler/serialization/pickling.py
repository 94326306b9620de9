"""The built-in serializer: pickle protocol 5 with out-of-band buffers, cloudpickle where pickle cannot or must not.

Plain pickle is tried first, because it is six times as fast. It names functions and classes by module, which is wrong
for those of `__main__`: another process has another `__main__`. A pickle that names it contains its name, so the bytes
are searched, and cloudpickle does it again by value. A mere string with that name costs time, never correctness.
"""

from __future__ import annotations

import math
import pickle
import sys
from collections.abc import Callable, Sequence, Set
from typing import Any

from scaler.errors import ScalerError
from scaler.protocol.messages import INLINE_LIMIT_BYTES

Buffer = bytes | bytearray | memoryview
Parts = list[Buffer]
"""A pickle, then its out-of-band buffers in order."""

_NO_MODULES: frozenset[str] = frozenset()
_PLAIN_PICKLE_ERRORS = (pickle.PicklingError, AttributeError, TypeError, ImportError, RecursionError)


def dump(value: object, on_retry: Callable[[], None] | None = None, in_band: bool = False) -> Parts:
    """Return the parts of a value. on_retry is called before a second attempt, to forget what the first one met.

    in_band: the buffers are inside the pickle, which is the only part. Raises whatever the value's own pickling raises.
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
    if buffers:
        return [data, *(buffer.raw() for buffer in buffers)]
    return [data]


def load(parts: Sequence[Buffer], is_own: bool = False) -> Any:
    """Return the value of these parts. Raises whatever its unpickling raises.

    Read-only buffers are copied so that arrays over them can be written to, but for large ones that others may use as
    well: those are used where they are. is_own: the value is for one task or future alone.
    """
    if len(parts) == 1:
        return pickle.loads(parts[0])  # noqa: S301 (the peers of a cluster run each other's code: that is its purpose)
    limit_bytes = math.inf if is_own else INLINE_LIMIT_BYTES
    return pickle.loads(parts[0], buffers=[_writable(part, limit_bytes) for part in parts[1:]])  # noqa: S301


def own_buffer(part: memoryview) -> Buffer:
    """Return a received part as its only owner may use it: writable, without a copy where it fills its frame."""
    if not part.readonly:
        return part
    try:
        whole = memoryview(part.obj).cast("B")
    except TypeError:
        return bytearray(part)
    return whole if whole.nbytes == part.nbytes and not whole.readonly else bytearray(part)


def _writable(part: Buffer, limit_bytes: float) -> Buffer:
    if len(part) <= limit_bytes and memoryview(part).readonly:
        return bytearray(part)
    return part


def modules_by_value() -> Set[str]:
    """Return the modules whose functions the user asked cloudpickle to carry by value."""
    # While another thread is still importing cloudpickle, nobody can have asked it for anything.
    registered = getattr(sys.modules.get("cloudpickle"), "list_registry_pickle_by_value", None)
    return _NO_MODULES if registered is None else registered()
