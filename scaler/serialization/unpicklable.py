"""What users are told of a value that cannot be serialized: which part it is, found by pickling each, and why."""

from __future__ import annotations

import reprlib
from collections.abc import Iterator
from itertools import islice

from scaler.errors import SerializationError
from scaler.serialization.pickling import dump

_PICKLING = ("__reduce_ex__", "__reduce__", "__getstate__")

MAX_DEPTH = 20
MAX_PARTS = 1000
"""Parts of one container that are tried; what lies behind them is blamed on the container."""


def blame(what: str, value: object, error: Exception) -> SerializationError:
    """Return the error of a value that cannot be pickled: it names the place inside, such as `at [0]['lock']`.

    what: what the value is, for people. error: what pickling the whole value raised.
    """
    path = ""
    for _ in range(MAX_DEPTH):
        found = _first_bad_part(value)
        if found is None:
            break
        place, value, error = found
        path += place
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
    elif not isinstance(value, type) and _is_pickled_as_stored(type(value)):
        for name, part in getattr(value, "__dict__", {}).items():
            yield f".{name}", part


def _is_pickled_as_stored(kind: type) -> bool:
    """Tell whether pickle takes the attributes of instances as they are: others may leave out what would fail."""
    return all(getattr(kind, name) is getattr(object, name) for name in _PICKLING)
