"""Snapshots of callables. They detect changes to the globals and cells pickled with a function.

The client pickles a changed function again, and processors unpickle it again. A snapshot compares objects by identity
and calls no user code. A function with an object that could change undetected (an instance, a set, an array) has no
snapshot, and is pickled and unpickled for every call.
"""

from __future__ import annotations

import abc
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Set, Sized
from dis import opmap
from enum import Enum
from functools import _lru_cache_wrapper, partial
from operator import attrgetter, is_
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from scaler.serialization.reading import READING_FUNCTIONS, names_in, only_reads

MAX_OBJECTS = 100_000
_ATOMS = frozenset({
    type(None), bool, int, float, complex, str, bytes, type(...), type(NotImplemented), range, types.CodeType,
    types.GetSetDescriptorType, types.MemberDescriptorType, types.MethodDescriptorType, types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
})  # fmt: skip
_IMMUTABLE = frozenset({
    ("re", "Pattern"), ("logging", "RootLogger"), ("datetime", "date"), ("datetime", "datetime"), ("datetime", "time"),
    ("datetime", "timedelta"), ("datetime", "timezone"), ("decimal", "Decimal"), ("fractions", "Fraction"),
    ("uuid", "UUID"),
})  # fmt: skip
"""More types that are immutable or pickled by name. As text, so that their modules are not imported."""
_CHANGING = frozenset(
    opmap[name]
    for name in ("STORE_GLOBAL", "DELETE_GLOBAL", "STORE_DEREF", "DELETE_DEREF", "STORE_ATTR", "DELETE_ATTR")
)
_REACHING = frozenset({
    "globals", "vars", "exec", "eval", "setattr", "delattr", "gc", "sys", "inspect", "__globals__", "__dict__",
    "__closure__", "__defaults__", "__kwdefaults__", "__code__", "__annotations__", "f_globals", "f_locals", "__self__",
})  # fmt: skip
"""Names through which a function could change the objects pickled with it."""
_OF_FUNCTIONS = ("__code__", "__defaults__", "__kwdefaults__", "__name__", "__qualname__", "__module__", "__doc__")
_READ = attrgetter(*_OF_FUNCTIONS)
HEAP_TYPE = 1 << 9  # flag of types created at run time, such as all Python classes
_WRAPPERS = frozenset({staticmethod, classmethod, property, partial})
_MISSING = object()
_T = TypeVar("_T")


class Unchanging:
    """Base of callables whose behaviour does not depend on later changes to their parts."""

    __slots__ = ()


class FunctionSnapshot:
    """The objects pickled with a callable at one point in time."""

    __slots__ = (
        "_abc_token", "_attributes", "_cells", "_containers", "_items", "_missing", "_sizes",
        "classes", "is_fixed", "only_read", "reaches",
    )  # fmt: skip

    def __init__(self) -> None:
        self.classes: list[type] = []
        self.is_fixed = True
        """Whether calls of the unpickled callable cannot change its objects."""
        self._items: list[tuple[Mapping[str, Any], str, object]] = []
        self._missing: list[tuple[dict[str, Any], frozenset[str]]] = []
        self._attributes: list[tuple[object, Callable[[Any], tuple[object, ...]], tuple[object, ...]]] = []
        self._cells: list[tuple[types.CellType, object]] = []
        self._containers: list[tuple[list[Any] | dict[Any, Any], tuple[Any, ...], tuple[Any, ...]]] = []
        self._sizes: list[tuple[Sized, int]] = []
        self.only_read: list[object] = []
        """Containers that are only read by the functions that name them."""
        self.reaches = False
        """Whether a function could change objects without naming them."""
        self._abc_token: object = None

    def has_changed(self) -> bool:
        for mapping, name, value in self._items:
            if mapping.get(name, _MISSING) is not value:
                return True
        for holder, attributes, values in self._attributes:
            if not all(map(is_, attributes(holder), values)):
                return True
        for sized, size in self._sizes:
            if len(sized) != size:
                return True
        for names, missing in self._missing:
            if not names.keys().isdisjoint(missing):
                return True
        for cell, value in self._cells:
            if _contents(cell) is not value:
                return True
        for container, values, keys in self._containers:
            if len(container) != len(values) or not all(
                map(is_, container.values() if keys else container, values)  # type: ignore[union-attr]
            ):
                return True
            if keys and not all(map(is_, container, keys)):
                return True
        return self._abc_token is not None and abc.get_cache_token() != self._abc_token

    def _note_items(self, mapping: Mapping[str, Any]) -> Iterator[object]:
        items = list(mapping.items())
        self._items += [(mapping, name, value) for name, value in items]
        self._sizes.append((mapping, len(items)))
        return (value for _, value in items)

    def _members(self, value: object, is_loaded: bool) -> Iterator[object] | None:
        """Record an object, and return the objects pickled with it; None if it could change undetected."""
        kind = type(value)
        if kind is types.FunctionType or kind is _lru_cache_wrapper or isinstance(value, type):
            return iter(()) if is_found_by_name(value) else self._of_definition(value, is_loaded)
        if kind is tuple or kind is frozenset:
            return iter(value)  # type: ignore[call-overload, no-any-return]
        if isinstance(value, Unchanging):
            return iter(())
        if kind is list:
            self.is_fixed = False
            self._containers.append((value, tuple(value), ()))  # type: ignore[arg-type]
            return iter(tuple(value))  # type: ignore[arg-type]
        if kind is dict:
            assert isinstance(value, dict)
            self.is_fixed = False
            values, keys = tuple(value.values()), tuple(value)
            self._containers.append((value, values, keys))
            return iter(values + keys)
        if kind is types.ModuleType:
            return iter(()) if self._is_plain_module(value) else None  # type: ignore[arg-type]
        if kind is types.BuiltinFunctionType:
            owner = value.__self__  # type: ignore[attr-defined]
            return iter(()) if owner is None or type(owner) is types.ModuleType else iter((owner,))
        if kind in _WRAPPERS:
            return self._of_wrapper(value)
        is_plain = (kind.__module__, kind.__qualname__) in _IMMUTABLE or _is_named(value) or _is_logger(kind)
        return iter(()) if is_plain else None

    def _of_wrapper(self, value: object) -> Iterator[object]:
        match value:
            case property():
                return iter((value.fget, value.fset, value.fdel))
            case partial():
                self.is_fixed = False
                return iter((value.func, value.args, value.keywords, *self._note_items(vars(value))))
            case _:
                return iter((value.__func__,))  # type: ignore[attr-defined]

    def _of_definition(self, value: object, is_loaded: bool) -> Iterator[object]:
        if type(value) is types.FunctionType:
            self.reaches |= not _leaves_alone(value.__code__)
            self.is_fixed &= not self.reaches
            return self._of_function(value, is_loaded)
        if isinstance(value, type):
            return self._of_class(value)
        self.is_fixed = False
        return iter((value.__wrapped__, *self._note_items(vars(value))))  # type: ignore[attr-defined]

    def _of_function(self, function: types.FunctionType, is_loaded: bool) -> Iterator[object]:
        self._attributes.append((function, _READ, _READ(function)))
        yield function.__defaults__
        yield function.__kwdefaults__
        yield from self._note_items(vars(function))
        if function.__annotations__:
            yield from self._of_annotations(function.__annotations__)
        for cell in function.__closure__ or ():
            value = _contents(cell)
            self._cells.append((cell, value))
            if value is not _MISSING:
                yield value
        used = function.__globals__
        names = set(names_in(function.__code__))
        present = names & used.keys()
        if len(present) < len(names):
            self._missing.append((used, frozenset(names - present)))
        is_plain = is_loaded and READING_FUNCTIONS.isdisjoint(used)
        for name in present:
            value = used[name]
            self._items.append((used, name, value))
            is_read = is_plain and type(value) in (list, dict) and only_reads(function.__code__, name)
            if is_read and _is_flat(value):
                self.only_read.append(value)
            else:
                yield value
        if is_loaded:
            self._sizes.append((used, len(used)))

    def _of_class(self, cls: type) -> Iterator[object]:
        self.classes.append(cls)
        self.is_fixed = False
        self._attributes.append((cls, lambda each: (each.__bases__,), (cls.__bases__,)))
        yield cls.__bases__
        yield type(cls)
        if isinstance(cls, abc.ABCMeta):
            self._abc_token = abc.get_cache_token()
        is_enum = issubclass(cls, Enum)
        values = self._note_items(cls.__dict__)
        for name, value in zip(list(cls.__dict__), values, strict=False):
            if name == "__annotations__" and isinstance(value, dict):
                yield from self._of_annotations(value)
            # Products of the class statement, such as dataclass fields, are replaced, never mutated.
            elif not (name.startswith("_") and name.endswith("_")) and name != "_abc_impl":
                if is_enum and isinstance(value, cls):
                    yield from self._note_items(vars(value))
                else:
                    yield value

    def _of_annotations(self, annotations: dict[str, Any]) -> Iterator[object]:
        return (value for value in self._note_items(annotations) if isinstance(value, type))

    def _is_plain_module(self, module: types.ModuleType) -> bool:
        name = module.__name__
        if sys.modules.get(name) is not module or _is_by_value(name):
            return False
        if hasattr(module, "__path__"):  # cloudpickle includes submodules imported so far
            self._sizes.append((sys.modules, len(sys.modules)))
        return True


def snapshot_of(value: object, is_loaded: bool = False) -> FunctionSnapshot | None:
    """Return a snapshot; None if the callable could change undetected. is_loaded: no other code shares its globals."""
    snapshot = FunctionSnapshot()
    seen: set[int] = set()
    stack: list[object] = [value]
    try:
        while stack or (snapshot.reaches and snapshot.only_read):
            current = stack.pop() if stack else snapshot.only_read.pop()
            if type(current) in _ATOMS or id(current) in seen:
                continue
            seen.add(id(current))
            members = snapshot._members(current, is_loaded)  # noqa: SLF001 (its maker)
            if members is None or len(seen) > MAX_OBJECTS:
                return None
            stack.extend(members)
    except (AttributeError, RuntimeError):  # concurrent change to a class, or an incomplete object
        return None
    return snapshot


def _is_flat(value: object) -> bool:
    if type(value) is dict:
        return _is_flat(list(value)) and _is_flat(list(value.values()))
    if type(value) is not list:
        return False
    kinds = set(map(type, value)) - _ATOMS
    return not kinds or (
        kinds == {tuple} and all(_ATOMS.issuperset(map(type, each)) for each in value if type(each) is tuple)
    )


def _leaves_alone(code: types.CodeType) -> bool:
    """Return whether a function cannot change the objects pickled with it, except containers and classes."""
    return (
        _CHANGING.isdisjoint(code.co_code[::2])
        and _REACHING.isdisjoint(code.co_names)
        and all(_leaves_alone(each) for each in code.co_consts if isinstance(each, types.CodeType))
    )


def is_found_by_name(value: object) -> bool:
    """Return whether a function or class is an attribute of an importable module, so that pickles name it."""
    if isinstance(value, type) and not value.__flags__ & HEAP_TYPE:
        return True  # defined in C
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module == "__main__" or _is_by_value(module):
        return False
    found: object = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is value


def _is_named(value: object) -> bool:
    """Return whether pickle stores a callable object by name only, such as NumPy's."""
    try:
        return callable(value) and isinstance(value.__reduce_ex__(5), str)
    except Exception:  # noqa: BLE001 (user code in __reduce__: not pickled by name)
        return False


def _is_logger(kind: type) -> bool:
    """Return whether pickle stores instances by name: loggers, including those of the class given to
    `logging.setLoggerClass`."""
    base = next((each for each in kind.__mro__ if (each.__module__, each.__qualname__) == ("logging", "Logger")), None)
    return base is not None and (kind.__reduce__, kind.__reduce_ex__) == (base.__reduce__, base.__reduce_ex__)


def _is_by_value(module: str) -> bool:
    """Return whether the user registered a module or its parent for pickling by value."""
    return any(module == each or module.startswith(f"{each}.") for each in modules_by_value())


def modules_by_value() -> Set[str]:
    """Return the modules whose functions the user told cloudpickle to pickle by value."""
    # The registry does not exist while another thread is importing cloudpickle.
    registered = getattr(sys.modules.get("cloudpickle"), "list_registry_pickle_by_value", None)
    return frozenset() if registered is None else registered()


def _contents(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # unassigned
        return _MISSING


class Fresh(Generic[_T]):
    """A callable in its pickled state: unpickled again before a call if it has changed."""

    __slots__ = ("_function", "_load", "_snapshot", "is_fixed")

    def __init__(self, load: Callable[[], _T]) -> None:
        self._load = load
        self._function: _T | None = None
        self._snapshot: FunctionSnapshot | None = None
        self.is_fixed = False
        """Whether all calls get the same object; known after the first `get`."""

    def get(self) -> _T:
        if self.is_fixed:
            return self._function  # type: ignore[return-value]
        snapshot = self._snapshot
        if snapshot is not None and not snapshot.has_changed():
            if snapshot.classes:
                loading.note(snapshot.classes)
            assert self._function is not None, "it has a snapshot"
            return self._function
        function = self._load()
        self._snapshot = snapshot_of(function, is_loaded=True)
        self._function = None if self._snapshot is None else function
        self.is_fixed = self._snapshot is not None and self._snapshot.is_fixed
        return function


class _Loading:
    """The call whose function and arguments this process is loading.

    A class pickled by value is one object per process. Its attributes come from the call's first pickle with the class:
    of the function, the arguments, or a result. Reading results outside calls never changes classes.
    """

    def __init__(self) -> None:
        self.number = 0
        self.is_active = False
        self._set_in: WeakKeyDictionary[type, int] = WeakKeyDictionary()
        """The call that last set the attributes of each class; 0: none."""

    def __enter__(self) -> None:
        """Start loading a call."""
        self.number += 1
        self.is_active = True

    def __exit__(self, *_: object) -> None:
        self.is_active = False

    def note(self, classes: Iterable[type]) -> None:
        for each in classes:
            self._set_in[each] = self.number

    def know(self, cls: type) -> None:
        """Record that this process itself has set the attributes of a class."""
        self._set_in.setdefault(cls, 0)

    def takes(self, cls: type) -> bool:
        """Return whether the pickle being loaded sets the attributes of a class, and record that it does."""
        if self.would_take(cls):
            self._set_in[cls] = self.number
            return True
        return False

    def would_take(self, cls: type) -> bool:
        known = self._set_in.get(cls)
        return known is None or (self.is_active and known != self.number)


loading = _Loading()
