"""A task's exception on its way to the client, with the traceback as text.

The payload begins with texts (the name of its type, its text, the traceback: see `protocol.failures`), which anybody
can read without loading anything. Behind them is a pickle of builtins: the parts of the exception, or None. So it can
always be read, whatever the exception does when it is pickled or loaded.

Many exceptions have an `__init__` that takes something else than what they hand to the one of their base. Pickle would
call it with the latter, and fail. Such an exception is made again without it, from its `args` and its attributes.
"""

from __future__ import annotations

import pickle
from types import FunctionType
from typing import Any

from scaler.errors import ProtocolError, RemoteError, RemoteTraceback
from scaler.protocol.failures import pack_exception, unpack_exception
from scaler.serialization.culprits import describe
from scaler.serialization.pickling import Buffer, Parts, dump, load

MAX_TRACEBACK_CHARACTERS = 16 * 1024


def dump_exception(exception: BaseException, traceback_text: str) -> bytes:
    """Return the payload of an exception. Never fails: what cannot be pickled arrives as a RemoteError."""
    kind = type(exception)
    type_name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    text = describe(exception).removeprefix(kind.__name__).removeprefix(": ")
    parts: list[bytes] | None = None
    try:
        parts = [bytes(part) for part in _dump(exception)]
    except Exception as error:  # noqa: BLE001 (any failure of a user's __reduce__ means: send its text instead)
        text = f"{text} (the exception itself cannot be pickled: {describe(error)})"
    return pack_exception(type_name, text, _shorten(traceback_text), pickle.dumps(parts, 5))


def load_exception(payload: Buffer) -> BaseException:
    """Return the exception, with the remote traceback as its cause; a RemoteError when it cannot be loaded here.

    Raises ProtocolError when the payload is no exception's.
    """
    type_name, text, traceback_text, pickled = unpack_exception(bytes(payload))
    try:
        parts = pickle.loads(pickled)  # noqa: S301 (see pickling.load)
    except Exception as error:
        raise ProtocolError(f"a payload that should hold an exception does not: {describe(error)}") from error
    exception: BaseException = RemoteError(type_name, text)
    if parts is not None:
        try:
            loaded = load(parts)
        except Exception as error:  # noqa: BLE001 (any failure of a user's __init__ means: its text must do)
            exception = RemoteError(
                type_name, f"{text} (the exception itself cannot be loaded here: {describe(error)})"
            )
        else:
            if isinstance(loaded, BaseException):
                exception = loaded
    assign(exception, "__cause__", RemoteTraceback(traceback_text))
    return exception


def assign(exception: BaseException, name: str, value: object) -> None:
    """Set an attribute of an exception whose class may refuse that, as frozen dataclasses do."""
    BaseException.__setattr__(exception, name, value)


def annotate(exception: BaseException, note: str) -> None:
    """Add a note to an exception, once, whatever its class makes of `add_note` and of attributes."""
    notes = vars(BaseException)["__dict__"].__get__(exception).get("__notes__", ())
    if note not in notes:
        assign(exception, "__notes__", [*notes, note])


class _Again:
    """Travels instead of an exception, and becomes it."""

    def __init__(self, kind: type[BaseException], args: tuple[Any, ...], state: dict[str, Any] | None) -> None:
        self._parts = kind, args, state

    def __reduce__(self) -> tuple[Any, ...]:
        return make_again, self._parts


def make_again(kind: type[BaseException], args: tuple[Any, ...], state: dict[str, Any] | None) -> BaseException:
    """Return an exception with these args and attributes, without its `__init__`."""
    exception = kind.__new__(kind, *args)
    assign(exception, "args", args)
    if kind.__setstate__ is not BaseException.__setstate__:
        exception.__setstate__(state)
    else:
        for name, value in (state or {}).items():
            assign(exception, name, value)
    return exception


def _dump(exception: BaseException) -> Parts:
    parts = dump(exception)
    kind = type(exception)
    if not isinstance(kind.__init__, FunctionType):
        return parts
    try:
        load(parts)
    except Exception:  # noqa: BLE001 (the user's __init__ may raise anything)
        reduced = exception.__reduce_ex__(5)
        if isinstance(reduced, tuple) and reduced[0] is kind:
            return dump(_Again(kind, reduced[1], reduced[2] if len(reduced) > 2 else None))
    return parts


def _shorten(text: str) -> str:
    if len(text) <= MAX_TRACEBACK_CHARACTERS:
        return text
    half = MAX_TRACEBACK_CHARACTERS // 2
    return f"{text[:half]}\n  ... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"
