"""Pickles functions and classes by value, with these differences from cloudpickle:

- Code keeps its file name for tracebacks of tasks; cloudpickle 3.1.3 and later replace it by `<dynamic-code>`.
- `loading` decides whether a pickle sets the attributes of a known class: reading a result must not do so.
- `functools.cache` functions are pickled by value if plain functions are, and have one cache per process.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from functools import _lru_cache_wrapper, cached_property, lru_cache
from hashlib import blake2b
from io import BytesIO
from pickle import PickleBuffer
from types import CodeType, MemberDescriptorType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import cloudpickle

from scaler.serialization.snapshot import is_found_by_name, loading

DYNAMIC = "<dynamic-code>"
MAX_CACHES = 256
"""Maximum number of `functools.cache` functions kept in a process with their caches (LRU eviction)."""

_reduce_code = cloudpickle.Pickler.dispatch_table[CodeType]
_class_setstate = cloudpickle.cloudpickle._class_setstate  # noqa: SLF001 (no public name)
_make_skeleton_class = cloudpickle.cloudpickle._make_skeleton_class  # noqa: SLF001


def dumps(value: object, keep: Callable[[PickleBuffer], object] | None) -> bytes:
    """Return the pickle of a value. keep: receives its out-of-band buffers; None: the pickle contains them."""
    with BytesIO() as file:
        Pickler(file, 5, buffer_callback=keep).dump(value)
        return file.getvalue()


def _with_file_name(code: CodeType) -> tuple[Any, ...]:
    maker, arguments = _reduce_code(code)
    # Copied, because interning affects the bytes of the pickle, which must be deterministic.
    file_name = "".join(code.co_filename)
    return maker, tuple(file_name if type(each) is str and each == DYNAMIC else each for each in arguments)


def _reduce_cached(cached: _lru_cache_wrapper[Any]) -> str | tuple[Any, ...]:
    if is_found_by_name(cached):
        return cached.__qualname__
    parameters = cached.cache_parameters()
    arguments = parameters["maxsize"], parameters["typed"]
    if id(cached) in _thread.identifying:  # recursive
        return _make_cached, (None, *arguments, b"")
    _thread.identifying.add(id(cached))
    try:
        identifier = blake2b(dumps((cached.__wrapped__, arguments), None), digest_size=16).digest()
    finally:
        _thread.identifying.discard(id(cached))
    return _make_cached, (cached.__wrapped__, *arguments, identifier)


def _make_cached(
    function: Callable[..., Any], maxsize: int | None, typed: bool, identifier: bytes
) -> _lru_cache_wrapper[Any]:
    found = _caches.get(identifier)
    if found is None:
        found = _caches[identifier] = lru_cache(maxsize, typed)(function)
        if len(_caches) > MAX_CACHES:
            _caches.popitem(last=False)
    _caches.move_to_end(identifier)
    return found


class _Thread(threading.local):
    """identifying: `id()` of each `functools.cache` function whose pickle is being computed as its identifier."""

    def __init__(self) -> None:
        self.identifying: set[int] = set()


_thread = _Thread()
_caches: OrderedDict[bytes, _lru_cache_wrapper[Any]] = OrderedDict()
_made_with: WeakKeyDictionary[type, frozenset[str]] = WeakKeyDictionary()
"""Initial attributes of classes that were unpickled here, before their state was set."""


def _set_class(cls: type, state: tuple[dict[str, Any], Any]) -> type:
    """Replace the attributes of an unpickled class and its enum members, if `loading` agrees."""
    if not loading.takes(cls):
        return cls
    made_with = _made_with.get(cls)
    if made_with is None and cls.__dict__.keys().isdisjoint(state[0].keys() - {"__module__", "__doc__"}):
        made_with = _made_with[cls] = frozenset(cls.__dict__)
    if made_with is not None:
        for name in cls.__dict__.keys() - state[0].keys() - made_with:
            with suppress(AttributeError, TypeError):  # owned by the interpreter
                delattr(cls, name)
    _class_setstate(cls, state)
    for name, attributes in state[1].items():
        vars(cls.__members__[name]).update(attributes)  # type: ignore[attr-defined]
    return cls


def _make_class(maker: Callable[..., type], arguments: tuple[Any, ...]) -> type:
    """Return this process's class, or create it, which runs the user's `__init_subclass__` and metaclasses."""
    known: type | None = cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID.get(arguments[-2])  # noqa: SLF001
    if known is None:
        return maker(*arguments)
    if maker is _make_skeleton_class and loading.would_take(known):
        _, name, bases, *_ = arguments
        known.__name__ = name
        if known.__bases__ != bases and "__orig_bases__" not in known.__dict__:
            known.__bases__ = bases
    return known


def _with_slots(cls: type, arguments: tuple[Any, ...], state: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Create an unpickled class with its slots, because cloudpickle sets `__slots__` too late to have an effect."""
    maker, name, bases, keywords, *rest = arguments
    members = {each: value for each, value in state.items() if type(value) is not MemberDescriptorType}
    members.pop("__slots__", None)  # omitted by cloudpickle if equal to a base's
    bases = tuple([tuple if each is NamedTuple else each for each in bases])  # NamedTuple itself refuses slots
    return (maker, name, bases, {**keywords, "__slots__": cls.__dict__["__slots__"]}, *rest), members


def _with_members(
    cls: type[Enum], arguments: tuple[Any, ...], state: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], dict[str, dict[str, Any]]]:
    """Add the parts of an enumeration that cloudpickle omits: aliases, and attributes of members."""
    members = {name: member.value for name, member in cls.__members__.items()}
    attributes = {name: _attributes(member) for name, member in cls.__members__.items()}
    bases, name, qualname, _, *rest = arguments
    return (bases, name, qualname, members, *rest), {k: v for k, v in state.items() if k not in members}, attributes


def _attributes(member: Enum) -> dict[str, Any]:
    own = vars(member).items()
    return {name: each for name, each in own if name == "_value_" or not (name.startswith("_") and name.endswith("_"))}


def _member_of(cls: Any, name: str) -> Enum:
    member: Enum = cls.__members__[name]
    return member


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    dispatch_table = cloudpickle.Pickler.dispatch_table.new_child(
        {
            CodeType: _with_file_name,
            _lru_cache_wrapper: _reduce_cached,
            cached_property: lambda it: (cached_property, (it.func,), {"attrname": it.attrname, "__doc__": it.__doc__}),
        }
    )

    def reducer_override(self, obj: object) -> Any:
        if isinstance(obj, Enum) and obj._name_ in type(obj).__members__ and not is_found_by_name(type(obj)):
            return _member_of, (type(obj), obj._name_)  # a copied value, such as a function, may not be equal
        reduced = super().reducer_override(obj)
        if isinstance(reduced, tuple) and isinstance(obj, type) and reduced[-1] is _class_setstate:
            loading.know(obj)
            maker, arguments, (state, attributes), *rest = reduced
            if issubclass(obj, Enum):
                arguments, state, attributes = _with_members(obj, arguments, state)
            elif "__slots__" in obj.__dict__:
                arguments, state = _with_slots(obj, arguments, state)
            return (_make_class, (maker, arguments), (state, attributes), *rest[:-1], _set_class)
        return reduced
