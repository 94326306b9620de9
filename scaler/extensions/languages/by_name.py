"""Functions by name, with values that other languages can read and write.

A client without Python names a function that workers import. The payload of the function is tag 5, tag 6 (results are
JSON), and `module:function` in UTF-8. Arguments and results are tag 6 and a JSON document. The arguments' document is a
map with two optional keys: `args`, a list, and `kwargs`, a map with string keys. The argument `{"$input": i}` stands
for reference i of the task.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from functools import reduce
from typing import Any

from scaler.errors import SerializationError, nearest
from scaler.protocol.messages import PayloadTag
from scaler.serialization import Buffer, Serializer, describe

_INPUT = "$input"
_SHAPE = 'arguments must be a map of "args" (a list) and "kwargs" (a map with string keys)'


class JsonSerializer(Serializer):
    def serialize(self, obj: Any) -> bytes:
        text = json.dumps(obj, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        return bytes([PayloadTag.JSON]) + text.encode()

    def deserialize(self, payload: bytes) -> Any:
        return read(payload)


def find_function(name: str) -> Callable[..., Any]:
    module_name, colon, path = name.partition(":")
    if not (colon and all(part.isidentifier() for part in (*module_name.split("."), *path.split(".")))):
        raise SerializationError(f"a function's name must be module:function, such as math:sqrt, not {name!r}")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise SerializationError(
            f"function {name!r} cannot be imported on its worker: {type(error).__name__}: {error}; "
            "install the module there, or put it into the worker's working directory"
        ) from error
    try:
        function = reduce(getattr, path.split("."), module)
    except AttributeError as error:
        raise SerializationError(
            f"function {name!r} does not exist on its worker: {error}{nearest(path, dir(module))}"
        ) from error
    if not callable(function):
        raise SerializationError(f"{name!r} is of type {type(function).__name__}, which cannot be called")
    return function


def read(payload: Buffer) -> Any:
    """Return the value or function in a payload from another language. Raises SerializationError."""
    tag = payload[0]
    if tag == PayloadTag.NAMED:
        return find_function(str(payload[2:], "utf-8", "replace"))
    if tag != PayloadTag.JSON:
        raise SerializationError(f"a value begins with tag {tag}, so it is not from another language")
    try:
        return json.loads(bytes(payload[1:]), parse_constant=_refuse)
    except Exception as error:
        raise SerializationError(f"a value is not valid JSON: {describe(error)}") from error


def read_arguments(payload: Buffer, inputs: Callable[[int], Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return args and kwargs; `inputs(i)` returns the value of reference i. Raises SerializationError."""
    document = read(payload)
    if not isinstance(document, dict) or document.keys() - {"args", "kwargs"}:
        raise SerializationError(f"{_SHAPE}, and nothing else")
    args, kwargs = document.get("args", []), document.get("kwargs", {})
    if not (isinstance(args, list) and isinstance(kwargs, dict) and all(isinstance(name, str) for name in kwargs)):
        raise SerializationError(_SHAPE)

    def value(argument: object) -> object:
        if type(argument) is not dict or argument.keys() != {_INPUT}:
            return argument
        index = argument[_INPUT]
        try:
            if type(index) is int and index >= 0:
                return inputs(index)
        except IndexError:
            pass
        raise SerializationError(f"an argument names reference {index!r} of its task, which does not exist")

    return tuple(map(value, args)), {name: value(argument) for name, argument in kwargs.items()}


def find_exceptions(payload: bytes) -> tuple[type[BaseException], ...]:
    """Return the exception types named by a `retry_on`, a list of `module:type`. Raises SerializationError."""
    names = read(payload)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise SerializationError("retry_on must be a list of exception names, such as builtins:OSError")
    found = []
    for name in names:
        kind = find_function(name)
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise SerializationError(f"retry_on takes exception types, but {name!r} is not one")
        found.append(kind)
    return tuple(found)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a JSON number")
