"""Finds the part of a value that cannot be pickled: an item, an attribute, or a global variable of a function."""

from __future__ import annotations

import reprlib
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property, partial
from itertools import islice
from types import FunctionType, GetSetDescriptorType, MemberDescriptorType, MethodType
from typing import Any, NamedTuple

from scaler.serialization import dump
from scaler.serialization.reading import names_in

MAX_DEPTH = 20
MAX_MEMBERS = 1000
_PARTS: dict[type, tuple[str, ...]] = {
    MethodType: ("__self__", "__func__"),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    property: ("fget", "fset", "fdel"),
    cached_property: ("func",),
    partial: ("func", "args", "keywords"),
}
_OF_THE_CLASS = (GetSetDescriptorType, MemberDescriptorType)
_CLASS_STATE = frozenset({"_abc_impl", "__abstractmethods__"})


class Culprit(NamedTuple):
    path: str
    """Path such as `[0]['lock']` or `global config.lock`; empty for the value itself."""
    value: object
    error: Exception


def find_culprit(value: object, error: Exception) -> Culprit:
    """Return the innermost part of a value that cannot be pickled. error: from pickling the whole value."""
    with suppress(Exception):  # inspecting may run user code
        return _search(Culprit("", value, error), {}) or Culprit("", value, error)
    return Culprit("", value, error)


def _search(whole: Culprit, seen: dict[int, object], depth: int = MAX_DEPTH) -> Culprit | None:
    """Return the unpicklable part of a value; None if all such parts have been visited."""
    if not depth:
        return whole
    seen[id(whole.value)] = whole.value
    is_explained = False
    for step, member in islice(_members(whole.value), MAX_MEMBERS):
        try:
            dump(member)
        except Exception as error:  # noqa: BLE001 (pickling runs user code)
            is_explained = True
            path = f"{whole.path} > {step}" if whole.path and step[0].isalpha() else whole.path + step
            if id(member) not in seen and (found := _search(Culprit(path, member, error), seen, depth - 1)):
                return found
    return None if is_explained else whole


def _members(value: Any) -> Iterator[tuple[str, object]]:
    kind = type(value)
    if issubclass(kind, dict):
        for key, member in value.items():
            yield f"[{reprlib.repr(key)}]", member
    elif issubclass(kind, list | tuple):
        for index, member in enumerate(value):
            yield f"[{index}]", member
    elif kind is FunctionType:
        yield from _members_of_function(value)
    elif kind in _PARTS:
        for name in _PARTS[kind]:
            yield f".{name}", getattr(value, name)
    elif issubclass(kind, type):
        yield from _members_of_class(value)
    elif all(
        # Only if pickle stores the attributes unchanged: a class may omit failing ones.
        getattr(kind, name) is getattr(object, name)
        for name in ("__reduce_ex__", "__reduce__", "__getstate__")
    ):
        yield "class " + kind.__qualname__, kind
        for name, member in getattr(value, "__dict__", {}).items():
            yield f".{name}", member


def _members_of_class(kind: type) -> Iterator[tuple[str, object]]:
    yield ".__bases__", kind.__bases__
    for name, member in vars(kind).items():
        if not isinstance(member, _OF_THE_CLASS) and name not in _CLASS_STATE:
            yield f".{name}", member


def _members_of_function(function: FunctionType) -> Iterator[tuple[str, object]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        with suppress(ValueError):  # unassigned variable
            yield f"variable {name}", cell.cell_contents
    for name in ("__defaults__", "__kwdefaults__"):
        yield f".{name}", getattr(function, name)
    for name in dict.fromkeys(names_in(function.__code__)):
        if name in function.__globals__:
            yield f"global {name}", function.__globals__[name]
    for name, member in vars(function).items():
        yield f".{name}", member
