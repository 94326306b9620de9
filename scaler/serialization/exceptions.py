"""Exceptions on their way to the client, and the texts of any failure.

The payload of a task's own exception is:

    tag (1 byte: PayloadTag.EXCEPTION) | version (1 byte: 2) | sizes of the three texts (u32 each, little endian) |
    name of its type, its text, its traceback (UTF-8) | a pickle of builtins: the exception and its cause, or None

So the texts can be read without loading what users made, and the payload can always be read, whatever the exception
does when it is pickled or loaded. The payloads of all other failures are UTF-8 text.

Many exceptions have an `__init__` that takes other arguments than the ones it passes to its base class. Pickle calls it
with the latter, and fails. Such an exception is rebuilt without `__init__`, from its `args` and its attributes.
"""

from __future__ import annotations

import contextlib
import copy
import pickle
import struct
from types import FunctionType
from typing import Any, NamedTuple

from scaler.errors import ProtocolError, RemoteError, RemoteTraceback
from scaler.protocol.messages import Outcome, PayloadTag, is_stored
from scaler.serialization import Buffer, Parts, describe, dump, load
from scaler.serialization.tracebacks import MAX_CAUSES, causes
from scaler.texts import readable

MAX_TRACEBACK_CHARACTERS = 16 * 1024
MAX_TEXT_BYTES = 4 * MAX_TRACEBACK_CHARACTERS
_VERSION = 2
_ORIGIN = "__origin__"
_Packed = tuple[list[bytes], bool, Any]
"""The parts of an exception; whether what led to it is its context, or else its cause; and that, packed, or None."""
_HEAD = struct.Struct("<BB3I")


class FailureTexts(NamedTuple):
    """text: what failed, with the type of an exception before it. traceback is empty where there is none."""

    text: str
    traceback: str = ""


class ShownAsError(Exception):
    """Carries results beside a failure: monitors show it as another exception, whose payload is `shown`."""

    shown: bytes

    @property
    def only(self) -> BaseException | None:
        """The exception, when it is the only one: it decides whether to try again."""
        return None


class PartFailedError(ShownAsError):
    """A part of a task raised, such as a node of a chunk. number: of the part. shown: the payload of what it raised."""

    def __init__(self, number: int, shown: bytes) -> None:
        super().__init__(number, shown)
        self.number = number
        self.shown = shown

    def __str__(self) -> str:
        return failure_texts(Outcome.EXCEPTION, self.shown).text

    def raised(self) -> BaseException:
        """Return what the part raised. It tells `take_origin` the number."""
        error = load_exception(self.shown)
        assign(error, _ORIGIN, self.number)
        return error


def pack_exception(type_name: str, text: str, traceback: str, pickled: bytes) -> bytes:
    """Return the payload of an exception."""
    texts = [part.encode("utf-8", "backslashreplace") for part in (type_name, text, traceback)]
    return b"".join((_HEAD.pack(PayloadTag.EXCEPTION, _VERSION, *map(len, texts)), *texts, pickled))


def unpack_exception(payload: bytes) -> tuple[str, str, str, bytes]:
    """Return type name, text, traceback and the pickled parts. Raises ProtocolError for any other payload."""
    if len(payload) < _HEAD.size or payload[0] != PayloadTag.EXCEPTION:
        raise ProtocolError("a payload that should hold an exception does not")
    _, version, *sizes = _HEAD.unpack_from(payload)
    if version != _VERSION:
        raise ProtocolError(f"an exception of version {version} came, and this side knows version {_VERSION}")
    texts = []
    at = _HEAD.size
    for size in sizes:
        texts.append(readable(payload[at : at + size], MAX_TEXT_BYTES))
        at += size
    if at > len(payload):
        raise ProtocolError(f"an exception of size {len(payload)} says that it has {at}")
    return texts[0], texts[1], texts[2], payload[at:]


def failure_texts(outcome: int, payload: bytes) -> FailureTexts:
    """Return the texts of a payload that is not a success. Never fails: a text says what cannot be read."""
    if is_stored(payload):
        return FailureTexts("an exception that is too large to be shown: its client has it")
    if outcome not in (Outcome.EXCEPTION, Outcome.EXCEPTION_TO_RETRY):
        return FailureTexts(readable(payload, MAX_TEXT_BYTES))
    try:
        type_name, text, traceback, _ = unpack_exception(payload)
    except ProtocolError as error:
        return FailureTexts(f"an exception that cannot be read ({error})")
    return FailureTexts(f"{type_name}: {text}" if text else type_name, traceback)


def dump_exception(exception: BaseException, traceback_text: str) -> bytes:
    """Return the payload of an exception. Never fails: what cannot be pickled arrives as a RemoteError."""
    kind = type(exception)
    type_name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    text = describe(exception).removeprefix(kind.__name__).removeprefix(": ")
    packed: _Packed | None = None
    try:
        packed = _pack(exception)
    except Exception as error:  # noqa: BLE001 (any failure of a user's __reduce__ means: send its text instead)
        text = f"{text} (the exception itself cannot be pickled: {describe(error)})"
    if isinstance(exception, ShownAsError):
        type_name, text, traceback_text, _ = unpack_exception(exception.shown)
    if len(traceback_text) > MAX_TRACEBACK_CHARACTERS:
        half = MAX_TRACEBACK_CHARACTERS // 2
        omitted = len(traceback_text) - 2 * half
        traceback_text = f"{traceback_text[:half]}\n  ... characters left out: {omitted} ...\n{traceback_text[-half:]}"
    return pack_exception(type_name, text, traceback_text, pickle.dumps(packed, 5))


def load_exception(payload: Buffer) -> BaseException:
    """Return the exception, or a RemoteError when it cannot be loaded here; its first cause is the remote traceback.

    Raises ProtocolError when the payload does not hold an exception.
    """
    type_name, text, traceback_text, pickled = unpack_exception(bytes(payload))
    try:
        packed = pickle.loads(pickled)  # noqa: S301 (see `load`)
    except Exception as error:
        raise ProtocolError(f"a payload that should hold an exception does not: {describe(error)}") from error
    exception: BaseException = RemoteError(type_name, text)
    first = exception
    if packed is not None:
        try:
            exception, first = _unpack(packed)
        except Exception as error:  # noqa: BLE001 (any failure of a user's __init__ means: its text must do)
            text = f"{text} (the exception itself cannot be loaded here: {describe(error)})"
            exception = first = RemoteError(type_name, text)
    assign(first, "__cause__", RemoteTraceback(traceback_text))
    return exception


def remote_traceback(exception: BaseException) -> RemoteTraceback | None:
    """Return the traceback with which an exception came from a worker; None for one that was raised here."""
    return next((each for each in causes(exception) if isinstance(each, RemoteTraceback)), None)


def locate(exception: BaseException, where: str) -> None:
    """Name the item or node of an exception: in a note, and at the top of its remote traceback."""
    annotate(exception, f"in {where}")
    trace = remote_traceback(exception)
    if trace is not None:
        trace.where = where


def assign(exception: BaseException, name: str, value: object) -> None:
    """Set an attribute of an exception whose class may refuse that, as frozen dataclasses do."""
    BaseException.__setattr__(exception, name, value)


def annotate(exception: BaseException, note: str) -> None:
    """Add a note to an exception, once, whatever its class makes of `add_note` and of attributes."""
    notes = _attributes(exception).get("__notes__", ())
    if note not in notes:
        assign(exception, "__notes__", [*notes, note])


def take_origin(exception: BaseException) -> int | None:
    """Return the number of the part of a task that raised this, once; None when there is none."""
    found: int | None = _attributes(exception).pop(_ORIGIN, None)
    return found


def _attributes(exception: BaseException) -> dict[str, Any]:
    """Return the attributes of an exception, whatever its class makes of them."""
    found: dict[str, Any] = vars(BaseException)["__dict__"].__get__(exception)
    return found


def copy_of(exception: BaseException) -> BaseException:
    """Return a copy for one future or item of what several share; the same when it cannot be copied."""
    try:
        twin = copy.copy(exception)
    except Exception:  # noqa: BLE001 (a user's exception may need other arguments than it has)
        return exception
    if type(twin) is not type(exception):
        return exception
    cause = exception.__cause__
    assign(twin, "__cause__", copy.copy(cause) if isinstance(cause, RemoteTraceback) else cause)
    if hasattr(exception, "__notes__"):
        assign(twin, "__notes__", [*exception.__notes__])
    return twin


def _rebuild(kind: type[BaseException], args: tuple[Any, ...], state: dict[str, Any] | None) -> BaseException:
    """Return an exception with these args and attributes, without calling its `__init__`."""
    exception = kind.__new__(kind, *args)
    assign(exception, "args", args)
    if kind.__setstate__ is not BaseException.__setstate__:
        exception.__setstate__(state)
    else:
        for name, value in (state or {}).items():
            assign(exception, name, value)
    return exception


def _pack(exception: BaseException, left: int = MAX_CAUSES) -> _Packed:
    """Return the parts of an exception, and of what led to it as far as that can be pickled."""
    parts = [bytes(part) for part in _dump(exception)]
    is_context = exception.__cause__ is None and not exception.__suppress_context__
    earlier = exception.__context__ if is_context else exception.__cause__
    packed = None
    if earlier is not None and not isinstance(earlier, RemoteTraceback) and left > 2:
        with contextlib.suppress(Exception):
            packed = _pack(earlier, left - 1)
    return parts, is_context, packed


def _unpack(packed: _Packed) -> tuple[BaseException, BaseException]:
    """Return an exception, and the first of its causes. Raises whatever loading it raises."""
    parts, is_context, packed_earlier = packed
    exception = load(parts)
    if type(exception) is tuple:
        exception = _rebuild(*exception)
    if not isinstance(exception, BaseException):
        raise TypeError(f"its pickle is of type {type(exception).__name__}")
    first = exception
    if packed_earlier is not None:
        with contextlib.suppress(Exception):
            earlier, its_first = _unpack(packed_earlier)
            assign(exception, "__context__" if is_context else "__cause__", earlier)
            first = exception if is_context else its_first
    return exception, first


def _dump(exception: BaseException) -> Parts:
    """Return the parts of an exception, or of what `_rebuild` needs when its `__init__` does not take its args."""
    parts = dump(exception)
    kind = type(exception)
    if not isinstance(kind.__init__, FunctionType):
        return parts
    try:
        load(parts)
    except Exception:  # noqa: BLE001 (the user's __init__ may raise anything)
        reduced = exception.__reduce_ex__(5)
        if isinstance(reduced, tuple) and reduced[0] is kind:
            return dump((kind, reduced[1], reduced[2] if len(reduced) > 2 else None))
    return parts
