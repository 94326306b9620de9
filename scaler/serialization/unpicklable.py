"""Errors of values that cannot be serialized: which part it is, found by pickling each, and why."""

from __future__ import annotations

import reprlib
from collections.abc import Iterator
from itertools import islice

from scaler.errors import SerializationError
from scaler.serialization.pickling import dump

MAX_DEPTH = 20
MAX_MEMBERS = 1000
"""Members of one container that are tried; an error behind them names the container."""


def unpicklable(what: str, value: object, error: Exception) -> SerializationError:
    """Return the error of a value that cannot be pickled: it names the member at fault, such as `at [0]['lock']`.

    what: the value's display text. error: what pickling the whole value raised.
    """
    path = ""
    for _ in range(MAX_DEPTH):
        for step, member in islice(_members(value), MAX_MEMBERS):
            try:
                dump(member)
            except Exception as found:  # noqa: BLE001 (a member's own pickling may raise anything)
                path, value, error = path + step, member, found
                break
        else:
            break
    return cannot_serialize(f"{what} at {path}" if path else what, value, error)


def cannot_serialize(what: str, value: object, error: Exception) -> SerializationError:
    """Return the error of a value that cannot be serialized: what it is, its type, and why."""
    kind = type(value)
    return SerializationError(
        f"{what}, a {kind.__module__}.{kind.__qualname__}, cannot be serialized: {describe(error)}"
    )


def describe(error: BaseException) -> str:
    """Return the type and the text of an exception in one line, also when its own `__str__` fails."""
    try:
        text = str(error)
    except Exception as nested:  # noqa: BLE001 (a user's __str__ may raise anything, and the first error matters)
        text = f"<its text cannot be shown: {type(nested).__name__}>"
    if isinstance(error, ModuleNotFoundError):
        text += " here: install it, or have cloudpickle.register_pickle_by_value carry it along"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _members(value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        for key, member in value.items():
            yield f"[{reprlib.repr(key)}]", member
    elif isinstance(value, list | tuple):
        for index, member in enumerate(value):
            yield f"[{index}]", member
    elif not isinstance(value, type) and all(
        # Only where pickle takes the attributes as they are: a class may leave out those that would fail.
        getattr(type(value), name) is getattr(object, name)
        for name in ("__reduce_ex__", "__reduce__", "__getstate__")
    ):
        for name, member in getattr(value, "__dict__", {}).items():
            yield f".{name}", member
