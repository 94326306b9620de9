"""Functions, results, objects and serializers as parts, and back; and the exception types of `retry_on`."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, cast

from scaler.errors import ScalerError, SerializationError, UsageError
from scaler.serialization.pickling import Buffer, Parts, dump, load
from scaler.serialization.unpicklable import cannot_serialize, describe, unpicklable


class Serializer(ABC):
    """Base of serializers that users write: for functions, for each argument by itself, and for results.

    A class with static or class methods may be given as it is; a class with plain methods is instantiated without
    arguments. Its code travels to the workers, the libraries that it imports do not: they must be installed there.
    """

    @abstractmethod
    def serialize(self, obj: Any) -> bytes:
        """Return the bytes that `deserialize` turns back into this function, argument or result."""

    @abstractmethod
    def deserialize(self, payload: bytes) -> Any:
        """Return the object that these bytes stand for."""


def bind_serializer(serializer: Any) -> Serializer:
    """Return an object with callable serialize and deserialize, from a serializer's class or instance.

    Raises UsageError when it has no such methods, or when its class cannot be instantiated without arguments.
    """
    names = ("serialize", "deserialize")
    for name in names:
        if not callable(getattr(serializer, name, None)):
            raise UsageError(f"serializer {serializer!r} has no method {name}")
    if isinstance(serializer, type) and not all(
        isinstance(inspect.getattr_static(serializer, name), staticmethod | classmethod) for name in names
    ):
        try:
            serializer = serializer()
        except TypeError as error:
            raise UsageError(f"serializer {serializer!r} cannot be made without arguments: {error}") from error
    return cast("Serializer", serializer)


def check_bytes(serializer: Serializer, made: object) -> Buffer:
    """Return the result of a user's serializer. Raises SerializationError when it is not bytes."""
    if isinstance(made, bytes | bytearray | memoryview):
        return made
    raise SerializationError(f"{serializer!r}.serialize must return bytes, not {type(made).__name__}")


class Divisible(ABC):
    """A value of several, where one that cannot be serialized must not take the others with it."""

    __slots__ = ()

    @abstractmethod
    def serializable(self) -> object:
        """Return the same without the values that cannot be serialized. Asked only when the whole cannot be."""


def dump_value(value: object, serializer: Serializer | None = None, what: str = "the result") -> Parts:
    """Return the parts of a value. Raises SerializationError that says `what` it is, its type, and why."""
    try:
        if serializer is None:
            return dump(value)
        return [check_bytes(serializer, serializer.serialize(value))]
    except Exception as error:
        if isinstance(value, Divisible):
            return dump(value.serializable())
        if isinstance(error, ScalerError):
            raise
        raise (unpicklable if serializer is None else cannot_serialize)(what, value, error) from error


def load_value(parts: Sequence[Buffer], serializer: Serializer | None = None, what: str = "the result") -> Any:
    """Return the value of these parts. Raises SerializationError when it cannot be loaded here."""
    try:
        return load(parts) if serializer is None else serializer.deserialize(bytes(parts[0]))
    except ScalerError:
        raise
    except Exception as error:
        raise SerializationError(f"{what} cannot be loaded: {describe(error)}") from error


def dump_function(function: Callable[..., Any], serializer: Serializer | None = None) -> Parts:
    """Return the parts of a function, or of any other callable.

    Raises UsageError when it cannot be called, SerializationError when it cannot be serialized.
    """
    if not callable(function):
        raise UsageError(f"a task's function must be callable, and {function!r} is not")
    return dump_value(function, serializer, f"function {name_of(function)}")


def load_function(parts: Sequence[Buffer], serializer: Serializer | None = None) -> Callable[..., Any]:
    """Return the function of these parts. Raises SerializationError when it cannot be loaded here."""
    function = load_value(parts, serializer, "the function")
    if not callable(function):
        raise SerializationError(f"the function became a {type(function).__name__}, which cannot be called")
    return cast("Callable[..., Any]", function)


def dump_serializer(serializer: Serializer) -> Parts:
    """Return the parts of a user's serializer. Raises SerializationError when it cannot be pickled."""
    return dump_value(serializer, None, f"serializer {name_of(serializer)}")


def load_serializer(parts: Sequence[Buffer]) -> Serializer:
    """Return the serializer of these parts. Raises SerializationError when it cannot be loaded here."""
    return bind_serializer(load_value(parts, None, "the serializer"))


def dump_retry_on(types: Sequence[type[BaseException]]) -> bytes:
    """Return the `retry_on` of a Spec; empty for no types. Raises UsageError when one is not an exception type."""
    for kind in types:
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise UsageError(f"retry_on takes exception types, not {kind!r}")
    return bytes(dump_value(tuple(types), None, "retry_on")[0]) if types else b""


def load_retry_on(retry_on: bytes) -> tuple[type[BaseException], ...]:
    """Return the exception types of a Spec's `retry_on`. Raises SerializationError when one cannot be loaded here."""
    types = load_value([retry_on], None, "the types of retry_on") if retry_on else ()
    return cast("tuple[type[BaseException], ...]", types)


def name_of(function: object) -> str:
    """Return the display name of a function: its qualified name, also through partials."""
    inner = getattr(function, "func", None)
    if callable(inner) and not hasattr(function, "__qualname__"):
        return name_of(inner)
    name = getattr(function, "__qualname__", None) or getattr(function, "__name__", None)
    return name if isinstance(name, str) else type(function).__qualname__
