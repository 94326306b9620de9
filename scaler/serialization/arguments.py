"""Converts a task's arguments, with their futures and object references, to parts and back.

The built-in serializer creates one pickle: of `args` if there are no keyword arguments, otherwise of `[args, kwargs]`.
A user's serializer serializes each argument: part 0 is a pickle of `(names of the keyword arguments, one kind per
argument)`, and part i + 1 is argument i, keyword arguments last. Futures, object references, and clients register with
the *collection* of the thread that dumps arguments, and leave a placeholder in the pickle.
"""

from __future__ import annotations

import pickle
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from scaler.errors import ScalerError, SerializationError
from scaler.serialization import (
    ATOMS,
    Buffer,
    Parts,
    Serializer,
    cannot_load,
    cannot_serialize,
    check_bytes,
    describe,
    dump,
    is_of_other_language,
    load,
    of_other_languages,
    parts_of,
    unpicklable,
)

_SERIALIZED = 0
_INPUT = 1
_PICKLED = 2

Args = tuple[Any, ...]
Kwargs = Mapping[str, Any]
Inputs = Callable[[int], Any]
Reduced = tuple[Callable[..., Any], Args]


class Collection:
    """The references in the arguments of one task: input i is `found[i]`. owner: the client."""

    __slots__ = ("_indexes", "found", "owner")

    def __init__(self, owner: object) -> None:
        self.owner = owner
        self.found: list[ByReference] = []
        self._indexes: dict[int, int] | None = None

    def index_of(self, reference: ByReference) -> int:
        if self._indexes is None:
            self._indexes = {}
        index = self._indexes.setdefault(id(reference), len(self.found))
        if index == len(self.found):
            self.found.append(reference)
        return index

    def clear(self) -> None:
        self.found.clear()
        self._indexes = None


class _Thread(threading.local):
    collection: Collection | None = None
    inputs: Inputs | None = None


_thread = _Thread()


class DependencyFailedError(ScalerError):
    """A future in the arguments failed. exception: exception of the future, None if cancelled. reference: the
    future."""

    def __init__(self, exception: BaseException | None, reference: ByReference) -> None:
        super().__init__(
            "a future in the arguments has failed" if exception else "a future in the arguments was cancelled"
        )
        self.exception = exception
        self.reference = reference


class ArgumentOnly(ABC):
    """Base of objects that can be pickled only within a task's arguments."""

    _how_to_send = "pass it to submit as an argument"

    @abstractmethod
    def _reduce_into(self, collection: Collection, /) -> Reduced:
        """Return the replacement of this object in the pickle, like `__reduce__`."""

    def __reduce__(self) -> Reduced:
        collection = _thread.collection
        if collection is None:
            raise TypeError(f"{type(self).__name__} cannot be pickled directly: {self._how_to_send}")
        return self._reduce_into(collection)


class ByReference(ArgumentOnly):
    """Base of references that a task receives as values."""

    @abstractmethod
    def _known_value(self, collection: Collection, /) -> tuple[Any] | None:
        """Return a small known value in a tuple, None for a reference. Raises ScalerError for a foreign reference."""

    def _reduce_into(self, collection: Collection, /) -> Reduced:
        known = self._known_value(collection)
        return (load_input, (collection.index_of(self),)) if known is None else (same, known)


def same(value: Any) -> Any:
    """Return the value. Replaces a reference to a known value in the pickle."""
    return value


def load_again(payload: bytes) -> Any:
    """Return the value of a payload. Replaces a reference to an unloaded value in the pickle."""
    return load(parts_of(payload))


def load_input(index: int) -> Any:
    """Return input `index` of the arguments that this thread loads. Raises SerializationError elsewhere."""
    inputs = _thread.inputs
    if inputs is None:
        raise SerializationError("a reference can be loaded only as part of a task's arguments")
    return inputs(index)


def current_inputs() -> Inputs | None:
    """Return the inputs of the task whose arguments this thread is loading, or None."""
    return _thread.inputs


@contextmanager
def using_inputs(inputs: Inputs | None) -> Iterator[None]:
    """Set the inputs for loading a part of a task's arguments later. inputs: from `current_inputs`."""
    outer = _thread.inputs
    _thread.inputs = inputs
    try:
        yield
    finally:
        _thread.inputs = outer


def dump_arguments(
    args: Args, kwargs: Kwargs, serializer: Serializer | None = None, owner: object = None, function_name: str = ""
) -> tuple[Parts, list[ByReference]]:
    """Return the parts of a task's arguments and their references. owner: the client.

    function_name: for errors. Raises SerializationError that names the first faulty argument.
    """
    if serializer is None and not kwargs and ATOMS.issuperset(map(type, args)):
        return [pickle.dumps(args, 5)], []
    collection = Collection(owner)
    outer = _thread.collection
    try:
        _thread.collection = collection
        if serializer is not None:
            return _dump_each(args, kwargs, serializer, collection, function_name), collection.found
        try:
            return dump([args, kwargs] if kwargs else args, collection.clear), collection.found
        except ScalerError:
            raise
        except Exception as error:
            raise _find_unpicklable(args, kwargs, function_name, error) from error
    finally:
        _thread.collection = outer


def load_arguments(
    parts: Sequence[Buffer], inputs: Inputs, serializer: Serializer | None = None
) -> tuple[Args, dict[str, Any]]:
    """Return args and kwargs; `inputs(i)` returns reference i. Raises SerializationError and the errors of `inputs`."""
    if is_of_other_language(parts):
        found: tuple[Args, dict[str, Any]] = of_other_languages().read_arguments(parts[0], inputs)
        return found
    outer = _thread.inputs
    try:
        _thread.inputs = inputs
        if serializer is not None:
            return _load_each(parts, inputs, serializer)
        loaded = load(parts, is_own=True)
    except ScalerError:
        raise
    except Exception as error:
        raise cannot_load("the arguments", error) from error
    finally:
        _thread.inputs = outer
    if type(loaded) is tuple:
        return loaded, {}
    args, kwargs = loaded
    return args, kwargs


def _dump_each(args: Args, kwargs: Kwargs, serializer: Serializer, collection: Collection, function_name: str) -> Parts:
    kinds = bytearray()
    parts: Parts = [b""]
    for position, argument in enumerate((*args, *kwargs.values())):
        value = argument
        if isinstance(argument, ByReference):
            known = argument._known_value(collection)  # noqa: SLF001 (users see these objects)
            if known is None:
                kinds.append(_INPUT)
                parts.append(collection.index_of(argument).to_bytes(4, "little"))
                continue
            (value,) = known
        elif isinstance(argument, ArgumentOnly):
            kinds.append(_PICKLED)
            parts += dump(argument, in_band=True)
            continue
        kinds.append(_SERIALIZED)
        try:
            parts.append(check_bytes(serializer, serializer.serialize(value)))
        except ScalerError:
            raise
        except Exception as error:
            raise cannot_serialize(_label(args, kwargs, position, function_name), value, error) from error
    parts[0] = pickle.dumps((tuple(kwargs), bytes(kinds)), 5)
    return parts


def _load_each(parts: Sequence[Buffer], inputs: Inputs, serializer: Serializer) -> tuple[Args, dict[str, Any]]:
    names, kinds = pickle.loads(parts[0])  # noqa: S301 (see `load`)
    values = []
    for position, (kind, part) in enumerate(zip(kinds, parts[1:], strict=True), 1):
        if kind == _INPUT:
            values.append(inputs(int.from_bytes(part, "little")))
            continue
        try:
            values.append(
                pickle.loads(part) if kind == _PICKLED else serializer.deserialize(bytes(part))  # noqa: S301
            )
        except ScalerError:
            raise
        except Exception as error:
            raise cannot_load(f"argument {position}", error) from error
    positional = len(values) - len(names)
    return tuple(values[:positional]), dict(zip(names, values[positional:], strict=True))


def _find_unpicklable(args: Args, kwargs: Kwargs, function_name: str, error: Exception) -> SerializationError:
    """Return the error for the first argument that cannot be pickled, by pickling each argument again."""
    for position, argument in enumerate((*args, *kwargs.values())):
        try:
            dump(argument)
        except Exception as found:  # noqa: BLE001 (part of the error being raised)
            return unpicklable(_label(args, kwargs, position, function_name), argument, found)
    of_function = f" of {function_name}" if function_name else ""
    return SerializationError(f"the arguments{of_function} cannot be serialized: {describe(error)}")


def _label(args: Args, kwargs: Kwargs, position: int, function_name: str) -> str:
    name = f"{position + 1}" if position < len(args) else repr(list(kwargs)[position - len(args)])
    return f"argument {name}{f' of {function_name}' if function_name else ''}"
