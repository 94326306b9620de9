"""Functions, results, objects and serializers as parts, and back; and the exception types of `retry_on`."""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, cast

from scaler.errors import ScalerError, SerializationError, UsageError
from scaler.serialization.arguments import check_bytes
from scaler.serialization.pickling import Buffer, Parts, dump, load
from scaler.serialization.serializer import Serializer, bind_serializer
from scaler.serialization.unpicklable import blame, cannot_serialize, describe


class Divisible(ABC):
    """A value of several, where one that cannot be serialized must not take the others with it."""

    __slots__ = ()

    @abstractmethod
    def serializable(self) -> object:
        """Return the same without what cannot be serialized. Asked only when the whole cannot be."""


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
        raise (blame if serializer is None else cannot_serialize)(what, value, error) from error


def load_value(parts: Sequence[Buffer], serializer: Serializer | None = None, what: str = "the result") -> Any:
    """Return the value of these parts. Raises SerializationError when it cannot be loaded here."""
    try:
        if serializer is None:
            return load(parts)
        return serializer.deserialize(bytes(parts[0]))
    except ScalerError:
        raise
    except Exception as error:
        raise SerializationError(f"{what} cannot be loaded: {describe(error)}") from error


def dump_function(function: Callable[..., Any], serializer: Serializer | None = None) -> Parts:
    """Return the parts of a function, or of anything else that can be called.

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
    if not types:
        return b""
    return bytes(dump_value(tuple(types), None, "retry_on")[0])


def load_retry_on(retry_on: bytes) -> tuple[type[BaseException], ...]:
    """Return the exception types of a Spec's `retry_on`. Raises SerializationError when one cannot be loaded here."""
    if not retry_on:
        return ()
    try:
        return cast("tuple[type[BaseException], ...]", pickle.loads(retry_on))  # noqa: S301 (see pickling.load)
    except Exception as error:
        raise SerializationError(f"the types of retry_on cannot be loaded: {describe(error)}") from error


def name_of(function: object) -> str:
    """Return the name under which people know a function: its qualified name, also through partials."""
    inner = getattr(function, "func", None)
    if callable(inner) and not hasattr(function, "__qualname__"):
        return name_of(inner)
    name = getattr(function, "__qualname__", None) or getattr(function, "__name__", None)
    return name if isinstance(name, str) else type(function).__qualname__
