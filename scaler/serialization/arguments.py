"""A task's arguments as parts, and back.

The built-in serializer makes one pickle: of `args` when there are no keyword arguments, otherwise of the list
`[args, kwargs]`. A user's serializer is asked for each argument by itself: part 0 is then a pickle of
`(names of the keyword arguments, one kind per argument)`, and part i + 1 is argument i, the keyword ones last.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from scaler.errors import ScalerError, SerializationError
from scaler.serialization.pickling import Buffer, Parts, dump, load
from scaler.serialization.references import ArgumentOnly, ByReference, Collection, collecting, providing
from scaler.serialization.serializer import Serializer
from scaler.serialization.unpicklable import blame, cannot_serialize, describe

_SERIALIZED = 0
_INPUT = 1
_PICKLED = 2

Inputs = Callable[[int], Any]


def dump_arguments(
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    serializer: Serializer | None = None,
    owner: object = None,
    function_name: str = "",
) -> tuple[Parts, list[ByReference]]:
    """Return the parts of a task's arguments, and the references in them: input i stands for reference i.

    owner: the client that the task is for. function_name: for the text of errors.
    Raises SerializationError that names the first argument that cannot be serialized.
    """
    collection = Collection(owner)
    context = collecting(collection)
    try:
        with context:
            if serializer is not None:
                return _dump_each(args, kwargs, serializer, collection, function_name), collection.found
            try:
                return dump([args, kwargs] if kwargs else args, collection.clear), collection.found
            except ScalerError:
                raise
            except Exception as error:
                raise _blame(args, kwargs, function_name, error) from error
    finally:
        context.end()


def load_arguments(
    parts: Sequence[Buffer], inputs: Inputs, serializer: Serializer | None = None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return args and kwargs from what `dump_arguments` returned; `inputs(i)` gives the value of reference i.

    Raises SerializationError when they cannot be loaded here, and whatever `inputs` raises of the platform's own.
    """
    with providing(inputs):
        if serializer is not None:
            return _load_each(parts, inputs, serializer)
        try:
            loaded = load(parts, is_own=True)
        except ScalerError:
            raise
        except Exception as error:
            raise SerializationError(f"the arguments cannot be loaded: {describe(error)}") from error
    if type(loaded) is tuple:
        return loaded, {}
    args, kwargs = loaded
    return args, kwargs


def _dump_each(
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    serializer: Serializer,
    collection: Collection,
    function_name: str,
) -> Parts:
    kinds = bytearray()
    parts: Parts = [b""]
    for position, argument in enumerate((*args, *kwargs.values())):
        value = argument
        if isinstance(argument, ByReference):
            known = argument.known_value(collection)
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
            raise cannot_serialize(_place(args, kwargs, position) + _of(function_name), value, error) from error
    parts[0] = pickle.dumps((tuple(kwargs), bytes(kinds)), 5)
    return parts


def _load_each(
    parts: Sequence[Buffer], inputs: Inputs, serializer: Serializer
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    names, kinds = pickle.loads(parts[0])  # noqa: S301 (see pickling.load)
    values = []
    for position, kind in enumerate(kinds):
        part = parts[position + 1]
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
            raise SerializationError(f"argument {position + 1} cannot be loaded: {describe(error)}") from error
    positional = len(values) - len(names)
    return tuple(values[:positional]), dict(zip(names, values[positional:], strict=True))


def check_bytes(serializer: Serializer, made: object) -> Buffer:
    """Return what a user's serializer made. Raises SerializationError when it is not bytes."""
    if isinstance(made, bytes | bytearray | memoryview):
        return made
    raise SerializationError(f"{serializer!r}.serialize must return bytes, not {type(made).__name__}")


def _blame(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], function_name: str, error: Exception
) -> SerializationError:
    """Find the argument that cannot be pickled by pickling each one: this is the slow path of an error."""
    for position, argument in enumerate((*args, *kwargs.values())):
        try:
            dump(argument)
        except Exception as found:  # noqa: BLE001 (it is the text of the error that is being raised)
            return blame(_place(args, kwargs, position) + _of(function_name), argument, found)
    return SerializationError(f"the arguments{_of(function_name)} cannot be serialized together: {describe(error)}")


def _place(args: tuple[Any, ...], kwargs: Mapping[str, Any], position: int) -> str:
    if position < len(args):
        return f"argument {position + 1}"
    return f"argument {list(kwargs)[position - len(args)]!r}"


def _of(function_name: str) -> str:
    return f" of {function_name}" if function_name else ""
