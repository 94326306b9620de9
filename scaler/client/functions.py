"""Functions on their way to workers: serialized once, and again only when something that they carry has changed.

A function that travels by value (of `__main__`, a lambda, a closure) carries the globals and cells that it uses. It is
serialized again when one of them is another object than before, and every time when one of them can change by itself
(a list, an instance). So a submit always sends what the function is at that moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import Any

from scaler.client.tasks import Definition, Kind
from scaler.serialization import name_of
from scaler.serialization.pickling import Buffer, modules_by_value

MAX_REMEMBERED_FUNCTIONS = 1024
MAX_KINDS_PER_FUNCTION = 64
_ATOMS = (type(None), bool, int, float, complex, str, bytes, type, ModuleType)
_MISSING = object()

Carried = list[tuple[object, str, object]]
"""What a function carries: where it was found (a dict of globals, a cell, a function), under which name, and what."""


class KnownFunction:
    """A function, its definition, and the kinds of task that were made of it, by their options."""

    __slots__ = ("_carried", "definition", "function", "kinds", "name")

    def __init__(self, function: Callable[..., Any], definition: Definition, carried: Carried) -> None:
        self.function = function
        self.definition = definition
        self.name = name_of(function)
        self.kinds: dict[object, Kind] = {}
        self._carried = carried

    def is_current(self) -> bool:
        """Tell whether everything that the function carries is what it was when it was serialized."""
        return not self._carried or all(_read(place, name) is value for place, name, value in self._carried)

    def remember(self, options: object, kind: Kind) -> None:
        if len(self.kinds) >= MAX_KINDS_PER_FUNCTION:
            self.kinds.clear()
        self.kinds[options] = kind


class FunctionTable:
    """The functions that were submitted lately. `define` makes the definition of one that is new or has changed."""

    __slots__ = ("_by_value", "_define", "_known")

    def __init__(self, define: Callable[[Callable[..., Any]], tuple[Definition, bool]]) -> None:
        """define: serializes; returns the definition, and whether it carries code or values of its own."""
        self._define = define
        self._known: dict[int, KnownFunction] = {}
        self._by_value = modules_by_value()

    def get(self, function: Callable[..., Any]) -> KnownFunction:
        """Return what is known of a function. Raises UsageError or SerializationError when it cannot be sent."""
        by_value = modules_by_value()
        if by_value != self._by_value:  # what was sent by name may have to travel by value now
            self._by_value = by_value
            self._known.clear()
        known = self._known.get(id(function))
        if known is not None and known.function is function and known.is_current():
            return known
        definition, carries_code = self._define(function)
        carried = carried_by(function, carries_code)
        known = KnownFunction(function, definition, carried or [])
        if carried is not None:
            if len(self._known) >= MAX_REMEMBERED_FUNCTIONS:
                del self._known[next(iter(self._known))]
            self._known[id(function)] = known
        return known

    def clear(self) -> None:
        self._known.clear()


def is_by_value(data: Buffer) -> bool:
    """Tell whether a function's pickle carries its code, and is not just its name."""
    return b"cloudpickle" in bytes(data)


def carried_by(function: object, by_value: bool) -> Carried | None:
    """Return what a function carries, or None when that can change without being replaced."""
    if not by_value:
        return [] if isinstance(function, FunctionType | type) or isinstance(_reduced(function), str) else None
    if not isinstance(function, FunctionType):
        return None
    carried: Carried = []
    seen = {id(function)}
    stack = [function]
    while stack:
        for place, name, value in _mentions(stack.pop()):
            if id(value) in seen:
                carried.append((place, name, value))
            elif isinstance(value, FunctionType):
                seen.add(id(value))
                stack.append(value)
                carried.append((place, name, value))
            elif value is _MISSING or isinstance(value, _ATOMS) or _is_plain_builtin(value) or _is_constant(value):
                carried.append((place, name, value))
            else:
                return None
    return carried


def _reduced(function: object) -> object:
    """Return what pickle would make of an object: a string for what it finds by name in a module."""
    try:
        return function.__reduce_ex__(5)
    except Exception:  # noqa: BLE001 (a user's __reduce__ may raise anything; then it is no name)
        return None


def _mentions(function: FunctionType) -> Iterator[tuple[object, str, object]]:
    for name in ("__code__", "__defaults__", "__kwdefaults__"):
        yield function, name, getattr(function, name)
    for cell in function.__closure__ or ():
        yield cell, "", _read(cell, "")
    for code in _codes(function.__code__):
        for name in code.co_names:
            value = function.__globals__.get(name, _MISSING)
            if value is not _MISSING:
                yield function.__globals__, name, value


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a code object and those of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _is_plain_builtin(value: object) -> bool:
    return isinstance(value, BuiltinFunctionType) and (
        value.__self__ is None or isinstance(value.__self__, ModuleType | type)
    )


def _is_constant(value: object) -> bool:
    if isinstance(value, CodeType):
        return True
    if isinstance(value, tuple | frozenset):
        return all(isinstance(item, _ATOMS) for item in value)
    return (
        isinstance(value, dict) and not value
    )  # empty keyword defaults: replaced, not filled, by those who change them


def _read(place: object, name: str) -> object:
    if isinstance(place, dict):
        return place.get(name, _MISSING)
    if isinstance(place, CellType):
        try:
            return place.cell_contents
        except ValueError:  # not assigned yet
            return _MISSING
    return getattr(place, name)
