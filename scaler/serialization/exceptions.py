"""A task's exception on its way to the client, with the traceback as text.

The payload is a pickle of builtins: (parts of the exception or None, name of its type, its text, the traceback). So it
can always be read, whatever the exception does when it is pickled or loaded.
"""

from __future__ import annotations

import pickle

from scaler.errors import ProtocolError, RemoteError, RemoteTraceback
from scaler.serialization.arguments import describe
from scaler.serialization.pickling import Buffer, dump, load

MAX_TRACEBACK_CHARACTERS = 16 * 1024


def dump_exception(exception: BaseException, traceback_text: str) -> bytes:
    """Return the payload of an exception. Never fails: what cannot be pickled arrives as a RemoteError."""
    kind = type(exception)
    type_name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    text = describe(exception).removeprefix(kind.__name__).removeprefix(": ")
    parts: list[bytes] | None = None
    try:
        parts = [bytes(part) for part in dump(exception)]
    except Exception as error:  # noqa: BLE001 (any failure of a user's __reduce__ means: send its text instead)
        text = f"{text} (the exception itself cannot be pickled: {describe(error)})"
    return pickle.dumps((parts, type_name, text, _shorten(traceback_text)), 5)


def load_exception(payload: Buffer) -> BaseException:
    """Return the exception, with the remote traceback as its cause; a RemoteError when it cannot be loaded here.

    Raises ProtocolError when the payload is no exception's.
    """
    try:
        parts, type_name, text, traceback_text = pickle.loads(payload)  # noqa: S301 (see pickling.load)
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
    exception.__cause__ = RemoteTraceback(traceback_text)
    return exception


def _shorten(text: str) -> str:
    if len(text) <= MAX_TRACEBACK_CHARACTERS:
        return text
    half = MAX_TRACEBACK_CHARACTERS // 2
    return f"{text[:half]}\n  ... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"
