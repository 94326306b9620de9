"""Which part of a value cannot be pickled: found by pickling its parts, on the slow path of an error."""

from __future__ import annotations

import reprlib
from collections.abc import Iterator
from itertools import islice

from scaler.serialization.pickling import dump

MAX_DEPTH = 20
MAX_PARTS = 1000
"""Parts of one container that are tried; what lies behind them is blamed on the container."""


def culprit_of(value: object, error: Exception) -> tuple[str, object, Exception]:
    """Return where in a value that cannot be pickled the fault lies, such as `[0]['lock']`, what is there, and why.

    The place is empty when the value itself is at fault. error: what pickling the whole value raised.
    """
    path = ""
    for _ in range(MAX_DEPTH):
        found = _first_bad_part(value)
        if found is None:
            break
        place, value, error = found
        path += place
    return path, value, error


def _first_bad_part(value: object) -> tuple[str, object, Exception] | None:
    for place, part in islice(_parts_of(value), MAX_PARTS):
        try:
            dump(part)
        except Exception as error:  # noqa: BLE001 (a part's own pickling may raise anything; the caller raises it)
            return place, part, error
    return None


def _parts_of(value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        for key, part in value.items():
            yield f"[{reprlib.repr(key)}]", part
    elif isinstance(value, list | tuple):
        for index, part in enumerate(value):
            yield f"[{index}]", part
    elif not isinstance(value, type) and type(value).__reduce_ex__ is object.__reduce_ex__:
        # Pickle takes these as they are stored; a function or a type with pickling of its own does not lie here.
        for name, part in getattr(value, "__dict__", {}).items():
            yield f".{name}", part
