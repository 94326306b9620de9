"""Converts values to bytes, which only clients and processors interpret.

A value becomes parts: a pickle and its out-of-band buffers, joined into one payload when sent inline. If the faster
plain pickle fails or contains the name `__main__`, which differs between processes, cloudpickle pickles the value.

A payload is a single pickle, a value from another language (extension `languages`), or a tag, the number of parts
(u32), the size of each (u64), and the parts. The head and the parts are padded with zeros to multiples of 16 bytes, to
align arrays. Integers are little endian.
"""

from __future__ import annotations

import inspect
import math
import pickle
import struct
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import GeneratorType, ModuleType
from typing import Any, cast

from scaler.errors import ProtocolError, ScalerError, SerializationError, UsageError
from scaler.plugins import part_of
from scaler.protocol.messages import INLINE_LIMIT_BYTES, PayloadTag
from scaler.serialization.snapshot import Fresh, Unchanging, loading, modules_by_value
from scaler.texts import shown

MOVED = {
    "scaler.client.chunks": "scaler.extensions.maps.chunks",
    "scaler.client.graph_plan": "scaler.extensions.graphs.plan",
    "scaler.client.graph_tasks": "scaler.extensions.graphs.program",
    "scaler.serialization.chunks": "scaler.serialization",
    "scaler.serialization.separate": "scaler.extensions.maps.values",
}
"""Old names of modules moved since the last release. Pickles in journals and bundles contain these names."""
ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes})
"""Immutable types, which are safe to share and cheap to keep in one pickle."""
MAX_PARTIALS = 20
Buffer = bytes | bytearray | memoryview
Parts = list[Buffer]
"""A pickle, then its out-of-band buffers in order."""

_SCALER = __file__.rpartition("/serialization/")[0]
_HEAD = struct.Struct("<BI")
_ALIGNMENT = 16
_OF_OTHER_LANGUAGES = frozenset({PayloadTag.NAMED, PayloadTag.JSON})
_WHOLE = _OF_OTHER_LANGUAGES | {PayloadTag.PICKLE}
"""First bytes of payloads that consist of a single part."""
PLAIN_PICKLE_ERRORS = (pickle.PicklingError, AttributeError, TypeError, ImportError, RecursionError)
"""Errors of plain pickle after which cloudpickle may succeed."""


def dump(value: object, on_retry: Callable[[], None] | None = None, in_band: bool = False) -> Parts:
    """Return the parts of a value. Raises any error from the value's own pickling.

    on_retry: called before a second attempt, to reset side effects of the first. in_band: put buffers into the pickle.
    """
    buffers: list[pickle.PickleBuffer] = []
    keep = None if in_band else buffers.append
    try:
        data = pickle.dumps(value, 5, buffer_callback=keep)
    except ScalerError:
        raise
    except PLAIN_PICKLE_ERRORS:
        data = b"__main__"  # let cloudpickle decide
    if b"__main__" in data or modules_by_value():
        from scaler.serialization.by_value import dumps  # noqa: PLC0415 (most processes never need cloudpickle)

        if on_retry is not None:
            on_retry()
        buffers.clear()
        data = dumps(value, keep)
    return [data, *(buffer.raw() for buffer in buffers)] if buffers else [data]


def of_other_languages() -> Any:
    """Return the module for values from other languages, which few processes need."""
    return part_of("languages", "documents", "a value from another language")


def load(parts: Sequence[Buffer], is_own: bool = False) -> Any:
    """Return the value of these parts. Raises any error from unpickling.

    Small read-only buffers are copied to make arrays in them writable. Large buffers are shared, unless the
    value belongs to a single task or future (`is_own`).
    """
    if len(parts) == 1:
        data = parts[0]
        if len(data) and data[0] in _OF_OTHER_LANGUAGES:  # inlined, because every result passes through here
            return of_other_languages().read(data)
        return pickle.loads(data)  # noqa: S301 (peers of a cluster run each other's code by design)
    limit_bytes = math.inf if is_own else INLINE_LIMIT_BYTES
    buffers = [
        bytearray(part) if len(part) <= limit_bytes and memoryview(part).readonly else part for part in parts[1:]
    ]
    return pickle.loads(parts[0], buffers=buffers)  # noqa: S301


def is_of_other_language(parts: Sequence[Buffer]) -> bool:
    """Return whether these parts are a value or function name from a peer without Python."""
    return len(parts[0]) > 0 and parts[0][0] in _OF_OTHER_LANGUAGES


def own_buffer(part: memoryview) -> Buffer:
    """Return a received part as writable memory, without a copy if it fills its frame. Requires a sole owner."""
    if not part.readonly:
        return part
    try:
        whole = memoryview(part.obj).cast("B")
    except TypeError:
        return bytearray(part)
    return whole if whole.nbytes == part.nbytes and not whole.readonly else bytearray(part)


def size_of(parts: Sequence[Buffer]) -> int:
    return len(parts[0]) if len(parts) == 1 else sum(map(len, parts))


def to_payload(parts: Sequence[Buffer], tag: PayloadTag = PayloadTag.PARTS) -> bytes:
    """Return the inline payload of these parts. A single part with its own tag, such as a pickle, is the payload."""
    first = parts[0]
    if tag is PayloadTag.PARTS and len(parts) == 1 and len(first) and first[0] in _WHOLE:
        return first if type(first) is bytes else bytes(first)
    head = _HEAD.pack(tag, len(parts)) + struct.pack(f"<{len(parts)}Q", *map(len, parts))
    return b"".join(padded for part in (head, *parts) for padded in (part, bytes(-len(part) % _ALIGNMENT)))


def parts_of(payload: Buffer) -> list[memoryview]:
    """Return views of the parts in an inline payload, without copying. Raises ProtocolError if it is invalid."""
    view = memoryview(payload)
    if not view:
        raise ProtocolError("a payload is empty")
    tag = view[0]
    if tag in _WHOLE:
        return [view]
    if tag not in (PayloadTag.PARTS, PayloadTag.ARGUMENTS):
        raise ProtocolError(f"a payload begins with tag {tag}, which is not an inline tag")
    if len(view) < _HEAD.size:
        raise ProtocolError("a payload is shorter than its head")
    _, count = _HEAD.unpack_from(view)
    offset = _HEAD.size + 8 * count
    if offset > len(view):
        raise ProtocolError(f"a payload of size {len(view)} announces too many parts: {count}")
    parts = []
    for size in struct.unpack_from(f"<{count}Q", view, _HEAD.size):
        offset += -offset % _ALIGNMENT
        if offset + size > len(view):
            raise ProtocolError(f"a payload of size {len(view)} announces a part that ends at {offset + size}")
        parts.append(view[offset : offset + size])
        offset += size
    return parts


def unpicklable(what: str, value: object, error: Exception) -> SerializationError:
    """Return the error for a value that cannot be pickled. The error names the failing member, as in `at [0].lock`."""
    path, culprit, found = "", value, error
    with suppress(UsageError):  # without the extension, only the whole value is named
        path, culprit, found = part_of("failures", "culprit", what)(value, error)
    return cannot_serialize(f"{what} at {path}" if path else what, culprit, found)


def cannot_serialize(what: str, value: object, error: Exception) -> SerializationError:
    kind = type(value)
    if kind is GeneratorType:
        return SerializationError(f"{what} is a generator: client.stream(fn, ...) iterates over its values")
    return SerializationError(f"{what} ({kind.__module__}.{kind.__qualname__}) cannot be serialized: {describe(error)}")


def cannot_load(what: str, error: BaseException) -> SerializationError:
    """Return the error for a value that cannot be loaded, with the reason and the line of user code that raised."""
    place, step = "", error.__traceback__
    while step is not None:
        code, line, step = step.tb_frame.f_code, step.tb_lineno, step.tb_next
        if code.co_filename.startswith((_SCALER, "<frozen ")) or "/cloudpickle/" in code.co_filename:
            continue
        place = f" in {code.co_qualname} ({code.co_filename.rpartition('/')[2]}:{line})"
        if isinstance(error, RecursionError) and code.co_name == "__getattr__":
            place += ", which must raise AttributeError for missing attributes"
    return SerializationError(f"{what} cannot be loaded: {describe(error)}{place}")


def describe(error: BaseException) -> str:
    """Return an exception's type and text in one line, even if its `__str__` fails."""
    try:
        text = str(error)
    except Exception as nested:  # noqa: BLE001 (a user's __str__ may raise, and the first error matters)
        text = f"<text unavailable: {type(nested).__name__}>"
    if isinstance(error, ModuleNotFoundError):
        text += f" here: {how_to_send(error.name or 'module')}"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def how_to_send(module: str) -> str:
    return f"install it, or send your own code with client.upload('{module.partition('.')[0]}.py')"


class Serializer(ABC):
    """Base class of user-defined serializers, applied to functions, to each argument, and to results.

    Pass an instance, or a class: a class with only static or class methods is used directly; any other class is
    instantiated without arguments. Workers receive the serializer's code, and must have the libraries that it imports.
    """

    @abstractmethod
    def serialize(self, obj: Any) -> bytes:
        """Return bytes from which `deserialize` restores this function, argument, or result."""

    @abstractmethod
    def deserialize(self, payload: bytes) -> Any:
        """Return the object that `serialize` converted to these bytes."""


def bind_serializer(serializer: Any) -> Serializer:
    """Return an object with serialize and deserialize from a class or instance. Raises UsageError."""
    names = ("serialize", "deserialize")
    for name in names:
        if not callable(getattr(serializer, name, None)):
            raise UsageError(f"serializer {shown(serializer)} has no method {name}")
    if isinstance(serializer, type) and not all(
        isinstance(inspect.getattr_static(serializer, name), staticmethod | classmethod) for name in names
    ):
        try:
            serializer = serializer()
        except TypeError as error:
            raise UsageError(f"serializer {shown(serializer)} cannot be created without arguments: {error}") from error
    return cast("Serializer", serializer)


def check_bytes(serializer: Serializer, made: object) -> Buffer:
    """Return the result of a user's serializer. Raises SerializationError if it is not bytes."""
    if isinstance(made, bytes | bytearray | memoryview):
        return made
    raise SerializationError(f"{shown(serializer)}.serialize must return bytes, not {type(made).__name__}")


def dump_value(
    value: object, serializer: Serializer | None = None, what: str = "the result", in_band: bool = False
) -> Parts:
    """Return the parts of a value. Raises SerializationError with `what`, the type of the value, and the reason."""
    try:
        if serializer is None:
            return dump(value, in_band=in_band)
        return [check_bytes(serializer, serializer.serialize(value))]
    except Exception as error:
        if isinstance(error, ScalerError):
            raise
        raise (unpicklable if serializer is None else cannot_serialize)(what, value, error) from error


def load_value(parts: Sequence[Buffer], serializer: Serializer | None = None, what: str = "the result") -> Any:
    """Return the value of these parts. Raises SerializationError if it cannot be loaded here."""
    try:
        return load(parts) if serializer is None else serializer.deserialize(bytes(parts[0]))
    except ScalerError:
        raise
    except Exception as error:  # noqa: BLE001 (raised as another exception)
        # The message names the missing module, and its frames would add nothing.
        cause = None if isinstance(error, ModuleNotFoundError) else error
        raise cannot_load(what, error) from cause


def dump_function(function: Callable[..., Any], serializer: Serializer | None = None) -> Parts:
    if not callable(function):
        raise UsageError(f"a task's function must be callable, and {shown(function)} is not")
    return dump_value(function, serializer, f"function {name_of(function)}")


def format_of(function: Buffer) -> Serializer | None:
    """Return the serializer for a function sent by name, or None for any other payload. Raises SerializationError."""
    if len(function) < 2 or function[0] != PayloadTag.NAMED:
        return None
    if function[1] != PayloadTag.JSON:
        raise SerializationError(f"a function by name asks for results of format {function[1]}, not 6 (JSON)")
    return cast("Serializer", of_other_languages().JsonSerializer())


def load_function(parts: Sequence[Buffer], serializer: Serializer | None = None) -> Callable[..., Any]:
    function = load_value(parts, serializer, "the function")
    if not callable(function):
        raise SerializationError(
            f"the function was deserialized as an object of type {type(function).__name__}, which cannot be called"
        )
    return cast("Callable[..., Any]", function)


def load_serializer(parts: Sequence[Buffer]) -> Serializer:
    return bind_serializer(load_value(parts, None, "the serializer"))


def dump_retry_on(retry_on: object) -> bytes:
    """Return a Spec's `retry_on`, or empty bytes for None. Raises UsageError and SerializationError."""
    given = (retry_on,) if isinstance(retry_on, type) else retry_on
    if isinstance(given, Iterable) and not isinstance(given, str | bytes):
        types = tuple(given)
        for kind in types:
            if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                raise UsageError(f"retry_on takes exception types, not {shown(kind)}")
        return bytes(dump_value(types, None, "retry_on")[0]) if types else b""
    if not callable(given):
        text = "an exception type, a tuple of them, or a function that takes an exception and returns a bool"
        raise UsageError(f"retry_on is {shown(retry_on)}, but must be {text}")
    return bytes(dump_value(given, None, "retry_on", in_band=True)[0])


def load_retry_on(retry_on: bytes) -> Callable[[BaseException], bool]:
    """Return a predicate that decides whether to retry after an exception. Raises SerializationError."""
    if retry_on and is_of_other_language([retry_on]):
        found: object = of_other_languages().find_exceptions(retry_on)
    else:
        found = load_value([retry_on], None, "the types of retry_on") if retry_on else ()
    if isinstance(found, tuple):
        return lambda error: isinstance(error, found)
    predicate = cast("Callable[[BaseException], object]", found)
    return lambda error: bool(predicate(error))


def name_of(function: object) -> str:
    """Return a callable's qualified name, even inside partials (but not mocks and proxies), or its type's name."""
    for _ in range(MAX_PARTIALS):
        try:
            name = getattr(function, "__qualname__", None) or getattr(function, "__name__", None)
        except Exception:  # noqa: BLE001 (a user's __getattr__ may raise)
            break
        if issubclass(type(name), str):
            return str(name)
        if not issubclass(type(function), partial):
            break
        function = cast("partial[Any]", function).func
    return type(function).__qualname__


class ManyCalls:
    """Results of a chunk. calls: numbers of finished and failed calls."""

    __slots__ = ()

    @property
    def calls(self) -> tuple[int, int]:
        raise NotImplementedError


class ManyCallsFunction(Unchanging):
    """A function that makes the calls of a chunk."""

    def replay(self, *args: Any) -> list[Any]:
        """Make the calls for a debugger: an exception propagates from the call that raised it."""
        raise NotImplementedError


class PickledFunction(Unchanging):
    """A pickled function. `fresh` returns the function in its pickled state for each call."""

    def __init__(self, parts: Sequence[Buffer]) -> None:
        self._parts = parts = [memoryview(part).toreadonly() for part in parts]  # for repeated loading
        self.fresh = Fresh(lambda: load_function(parts))

    def prepare(self, load_arguments: Callable[[Any], Any], packed: Any) -> tuple[Callable[..., Any], Any]:
        """Return separate copies of the function and the arguments for one call. Raises SerializationError,
        ObjectLostError."""
        try:
            with loading:
                return self.fresh.get(), load_arguments(packed)
        except ScalerError:
            raise
        except Exception as error:
            raise cannot_load("the arguments", error) from error

    def __reduce_ex__(self, protocol: int) -> tuple[Any, ...]:  # type: ignore[override]
        return PickledFunction, ([outside(part, protocol) for part in self._parts],)


def outside(part: Buffer, protocol: int) -> Buffer | pickle.PickleBuffer:
    """Return pickled bytes out of band if the protocol allows, so that they are not searched for names."""
    return pickle.PickleBuffer(part) if protocol >= 5 else bytes(part)


class MovedModules:
    """An import hook. A module with an old name contains the new module's contents."""

    @staticmethod
    def find_spec(name: str, *_: object) -> ModuleSpec | None:
        return ModuleSpec(name, MovedModules) if name in MOVED else None  # type: ignore[arg-type]

    @staticmethod
    def create_module(_spec: ModuleSpec) -> None: ...

    @staticmethod
    def exec_module(old: ModuleType) -> None:
        new = import_module(MOVED[old.__name__])
        vars(old).update({name: value for name, value in vars(new).items() if not name.startswith("__")})


sys.meta_path.append(MovedModules)
