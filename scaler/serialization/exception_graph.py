"""Pickles of exceptions that restore them without calling `__init__`, which may not accept `args`.

`__new__` of the built-in base class creates the exception, and args, attributes, slots, and C fields are then set one
by one, unless the class defines `__reduce__`. Each related exception (cause, context, group member, attribute,
argument) is a separate node, referenced by number. This allows cycles and missing classes.
"""

from __future__ import annotations

import contextlib
import copy
import copyreg
import pickle
from collections.abc import Callable, Iterator
from functools import cache
from io import BytesIO
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any, NamedTuple, cast

from scaler.errors import RemoteError, RemoteTraceback
from scaler.serialization import PLAIN_PICKLE_ERRORS, describe
from scaler.serialization.snapshot import HEAP_TYPE, modules_by_value

MAX_CAUSES = 10
"""Maximum length of the chain of causes shown or sent with an exception."""
MAX_TEXT_CHARACTERS = 10_000
"""Maximum length of the text that replaces an exception that cannot be loaded."""
_UNSET = object()
_Fields = dict[str, Any]
Graph = list[tuple[Any, ...]]
"""Nodes as tuples of builtins; the first is the exception itself."""


class _Node(NamedTuple):
    type_name: str
    text: str
    made: bytes
    """Pickle of the class and arguments of `__new__`, or of the exception itself if its class defines `__reduce__`."""
    state: bytes
    """Pickle of args, attributes, and fields; empty if the class defines `__reduce__`."""
    notes: list[str]
    cause: int | None
    context: int | None
    suppress_context: bool


class _Naming:
    """Pickler mix-in that replaces exceptions by their numbers."""

    number: Callable[[BaseException], int]
    whole: BaseException | None = None

    def persistent_id(self, value: object) -> tuple[int] | None:
        if not issubclass(type(value), BaseException) or value is self.whole:
            return None
        return (self.number(value),)  # type: ignore[arg-type]


class _PlainPickler(_Naming, pickle.Pickler):
    pass


class _Unpickler(pickle.Unpickler):
    find: Callable[[int], BaseException]

    def persistent_load(self, name: tuple[int]) -> BaseException:
        return self.find(name[0])


def pack(exception: BaseException) -> Graph:
    """Return an exception with all related exceptions. Raises the errors of user-defined `__reduce__` methods."""
    return _Packer().pack(exception)


def unpack(graph: Graph) -> BaseException:
    """Return the exception of a graph. Raises its loading errors; related exceptions that fail become RemoteErrors."""
    return _Unpacker([_Node(*each) for each in graph]).unpack()


def copy_of(exception: BaseException) -> BaseException:
    """Return a copy of a shared exception for one future or item, or the exception itself if it cannot be copied."""
    try:
        if _pickles_itself(type(exception)):
            twin = copy.copy(exception)
        else:
            twin = _blank(*_made(exception))
            _restore(twin, *_state(exception))
    except Exception:  # noqa: BLE001 (user code)
        return exception
    if type(twin) is not type(exception):
        return exception
    assign(twin, "__context__", exception.__context__)
    cause = exception.__cause__
    assign(twin, "__cause__", copy.copy(cause) if isinstance(cause, RemoteTraceback) else cause)
    assign(twin, "__suppress_context__", exception.__suppress_context__)
    notes = attributes_of(exception).get("__notes__")
    if notes is not None:
        assign(twin, "__notes__", [*notes])
    return twin


def assign(exception: BaseException, name: str, value: object) -> None:
    """Set an attribute of an exception, even if its class forbids that, such as a frozen dataclass."""
    BaseException.__setattr__(exception, name, value)


def attributes_of(exception: BaseException) -> dict[str, Any]:
    """Return the `__dict__` of an exception, even if its class overrides attribute access."""
    found: dict[str, Any] = vars(BaseException)["__dict__"].__get__(exception)
    return found


def type_and_text(exception: BaseException) -> tuple[str, str]:
    kind = type(exception)
    type_name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return type_name, describe(exception).removeprefix(kind.__name__).removeprefix(": ")


class _Packer:
    def __init__(self) -> None:
        self._found: list[BaseException] = []
        self._numbers: dict[int, int] = {}

    def pack(self, root: BaseException) -> Graph:
        self._number(root)
        depths = [0]
        nodes: Graph = []
        for number, exception in enumerate(self._found):  # grows during iteration
            goes_on = depths[number] + 2 < MAX_CAUSES
            cause, context = (
                self._number(each) if goes_on and each is not None and not isinstance(each, RemoteTraceback) else None
                for each in (exception.__cause__, exception.__context__)
            )
            depths += [depths[number] + 1] * (len(self._found) - len(depths))
            try:
                made, state, notes = self._pickled(exception)
            except Exception as error:
                if number == 0:
                    raise
                type_name, text = type_and_text(exception)
                stand_in = RemoteError(type_name, f"{text} (the exception itself cannot be pickled: {describe(error)})")
                made, state, notes = self._dumps(stand_in, stand_in), b"", []
            depths += [depths[number]] * (len(self._found) - len(depths))
            type_name, text = type_and_text(exception)
            text = text[:MAX_TEXT_CHARACTERS]
            nodes.append((type_name, text, made, state, notes, cause, context, exception.__suppress_context__))
        return nodes

    def _number(self, exception: BaseException) -> int:
        number = self._numbers.setdefault(id(exception), len(self._found))
        if number == len(self._found):
            self._found.append(exception)
        return number

    def _pickled(self, exception: BaseException) -> tuple[bytes, bytes, list[str]]:
        given = attributes_of(exception).get("__notes__", [])
        notes = [note for note in given if isinstance(note, str)] if isinstance(given, list | tuple) else []
        if _pickles_itself(type(exception)):
            with contextlib.suppress(Exception):  # its `__init__` may reject the result of its `__reduce__`
                data = self._dumps(exception, exception)
                if isinstance(self._loads(data), BaseException):
                    return data, b"", notes
        args, attributes, fields = _state(exception)
        made = self._dumps(_made(exception))
        try:
            return made, self._dumps((args, attributes, fields)), notes
        except Exception:  # noqa: BLE001 (a value's own pickling may raise anything)
            dropped: list[str] = []
            args = tuple(self._kept({f"args[{at}]": each for at, each in enumerate(args)}, dropped, repr).values())
            attributes = self._kept(attributes, dropped)
            fields = self._kept(fields, dropped)
            return made, self._dumps((args, attributes, fields)), [*notes, *dropped]

    def _kept(self, values: _Fields, dropped: list[str], instead: Callable[[object], object] | None = None) -> _Fields:
        kept = {}
        for name, value in values.items():
            try:
                self._dumps(value)
            except Exception as error:  # noqa: BLE001 (user code)
                what = "left out" if instead is None else "replaced by its repr"
                dropped.append(f"{name} was {what}, because it is not picklable: {describe(error)}")
                if instead is not None:
                    kept[name] = instead(value)
            else:
                kept[name] = value
        return kept

    def _dumps(self, value: object, whole: BaseException | None = None) -> bytes:
        try:
            data = self._dumps_with(_PlainPickler, value, whole)
        except PLAIN_PICKLE_ERRORS:
            return self._dumps_with(_pickler_by_value(), value, whole)
        if b"__main__" in data or modules_by_value():
            return self._dumps_with(_pickler_by_value(), value, whole)
        return data

    def _dumps_with(self, pickler: type[Any], value: object, whole: BaseException | None) -> bytes:
        with BytesIO() as file:
            it = pickler(file, 5)
            it.number, it.whole = self._number, whole
            it.dump(value)
            return file.getvalue()

    def _loads(self, data: bytes) -> object:
        unpickler = _Unpickler(BytesIO(data))
        unpickler.find = self._found.__getitem__
        return unpickler.load()


@cache
def _pickler_by_value() -> type[Any]:
    from scaler.serialization.by_value import Pickler  # noqa: PLC0415 (most processes never need cloudpickle)

    return type("_PicklerByValue", (_Naming, Pickler), {})


class _Unpacker:
    def __init__(self, nodes: list[_Node]) -> None:
        self._nodes = nodes
        self._made: dict[int, BaseException] = {}

    def unpack(self) -> BaseException:
        root = self._make(0)
        for number, node in enumerate(self._nodes):
            try:
                exception = self._find(number)
                if node.state and not isinstance(exception, RemoteError):
                    _restore(exception, *self._load(node.state))
            except Exception as error:
                if number == 0:
                    raise
                assign(exception, "args", (node.text,))
                assign(exception, "__notes__", [f"its attributes cannot be loaded here: {describe(error)}"])
            for name, other in (("__cause__", node.cause), ("__context__", node.context)):
                if other is not None:
                    assign(exception, name, self._find(other))
            assign(exception, "__suppress_context__", node.suppress_context)
            if node.notes:
                assign(exception, "__notes__", list(node.notes))
        return root

    def _find(self, number: int) -> BaseException:
        if number not in self._made:
            try:
                self._make(number)
            except Exception as error:  # noqa: BLE001 (loading may run a user's code)
                node = self._nodes[number]
                text = f"{node.text} (the exception itself cannot be loaded here: {describe(error)})"
                self._made[number] = RemoteError(node.type_name, text)
        return self._made[number]

    def _make(self, number: int) -> BaseException:
        node = self._nodes[number]
        found = self._load(node.made)
        exception = _blank(*found) if node.state else found
        if not isinstance(exception, BaseException):
            raise TypeError(f"its pickle contains an object of type {type(exception).__name__}")
        self._made[number] = exception
        return exception

    def _load(self, data: bytes) -> Any:
        unpickler = _Unpickler(BytesIO(data))
        unpickler.find = self._find
        return unpickler.load()


def _native(kind: type[BaseException]) -> type[BaseException]:
    """Return the built-in exception class that defines the memory layout of a class."""
    base: Any = kind
    while base.__flags__ & HEAP_TYPE:
        base = base.__base__
    return cast("type[BaseException]", base)


def _pickles_itself(kind: type[BaseException]) -> bool:
    """Return whether a class customizes pickling, or is defined in C with unknown fields."""
    native = _native(kind)
    return (
        native.__module__ != "builtins"
        or kind in copyreg.dispatch_table
        or kind.__reduce_ex__ is not native.__reduce_ex__
        or (kind.__reduce__ is not native.__reduce__ and not _is_builtin(kind.__reduce__))
        or not _can_be_blank(kind)
    )


def _is_builtin(method: Any) -> bool:
    return getattr(getattr(method, "__objclass__", None), "__module__", "") == "builtins"


def _can_be_blank(kind: type[BaseException]) -> bool:
    """Return whether the built-in base's `__new__` accepts a class. A C extension with its own `__new__` prevents
    it."""
    try:
        _blank(kind, ("", [Exception()]) if issubclass(kind, BaseExceptionGroup) else ())
    except TypeError:
        return False
    return True


def _made(exception: BaseException) -> tuple[type[BaseException], tuple[Any, ...]]:
    if isinstance(exception, BaseExceptionGroup):
        members = vars(BaseExceptionGroup)  # a subclass may shadow these names
        return type(exception), (members["message"].__get__(exception), [*members["exceptions"].__get__(exception)])
    return type(exception), ()


def _blank(kind: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    return _native(kind).__new__(kind, *args)


def _state(exception: BaseException) -> tuple[tuple[Any, ...], _Fields, _Fields]:
    attributes = {name: value for name, value in attributes_of(exception).items() if name != "__notes__"}
    fields: _Fields = {}
    for name, descriptor in _descriptors(type(exception)):
        value = _get(descriptor, exception)
        if value is not _UNSET:
            fields.setdefault(name, value)
    return vars(BaseException)["args"].__get__(exception), attributes, fields


def _restore(exception: BaseException, args: tuple[Any, ...], attributes: _Fields, fields: _Fields) -> None:
    assign(exception, "args", args)
    for name, descriptor in _descriptors(type(exception)):
        # Skip an unchanged field: None may mean unset, which C distinguishes.
        if name in fields and fields[name] is not _get(descriptor, exception):
            with contextlib.suppress(AttributeError, TypeError):  # read-only, set by `__new__`
                descriptor.__set__(exception, fields[name])
    kind = type(exception)
    if attributes and hasattr(kind, "__setstate__") and not _is_builtin(kind.__setstate__):
        exception.__setstate__(attributes)
    else:
        attributes_of(exception).update(attributes)


def _descriptors(kind: type[BaseException]) -> Iterator[tuple[str, Any]]:
    for base in kind.__mro__:
        if base in (BaseException, BaseExceptionGroup, object):
            continue
        for name, descriptor in vars(base).items():
            # As in CPython, omit AttributeError.obj, which may be large or not picklable.
            if type(descriptor) in (MemberDescriptorType, GetSetDescriptorType) and not (
                name.startswith("__") or descriptor is vars(AttributeError)["obj"]
            ):
                yield name, descriptor


def _get(descriptor: Any, exception: BaseException) -> Any:
    try:
        return descriptor.__get__(exception)
    except AttributeError:
        return _UNSET
