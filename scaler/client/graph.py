"""Dask-like graphs: dicts of keys to values and computations, checked and ordered before anything is sent.

A computation is a tuple of a callable and its arguments. An argument is a key of the graph, a list of such, or a
computation of its own; what is neither a string nor a key is a value as it is. In the dict itself stand computations,
other keys (their values), lists that hold keys or computations, and values.
"""

from __future__ import annotations

import reprlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from scaler.client.future import ScalerFuture
from scaler.client.futures import FutureTable
from scaler.client.object_reference import ObjectReference, SharedValue
from scaler.client.tasks import TaskTemplate
from scaler.errors import UsageError
from scaler.serialization import ByReference, dump_value, size_of
from scaler.serialization.references import same
from scaler.worker.processor.calling import finish

Key = Hashable
_NOTHING = object()
SHARED_VALUE_BYTES = 4096
"""A larger value that several computations need is put into the object storage, once."""
_SMALL = (type(None), bool, int, float, complex)

Templates = Callable[[Callable[..., Any], bool], TaskTemplate]
"""Returns the template of a task, by its function and whether its value is wanted here."""
_KEY_TYPES = frozenset({str, bytes, int, float, tuple})
"""What in the place of a value may be another key, as in Dask."""


class Node(NamedTuple):
    """A computation. needs: the keys among its arguments, each once."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    needs: tuple[Key, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """What the wanted keys need.

    nodes: in an order in which each comes after all that it needs. wanted: each wanted key, and where its value is
    found: under itself, or under the key that it stands for.
    """

    nodes: dict[Key, Node]
    values: dict[Key, Any]
    wanted: dict[Key, Key]


class KeyArgument:
    """An argument that is the value of a key."""

    __slots__ = ("key",)
    __match_args__ = ("key",)

    def __init__(self, key: Key) -> None:
        self.key = key


@dataclass(frozen=True, slots=True)
class InnerNode:
    """An argument that is a computation of its own."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]


def plan_graph(graph: Mapping[Any, Any], keys: Iterable[Any]) -> Plan:
    """Return what must run for these keys.

    Raises UsageError for keys that are missing or wanted twice, and for cycles; the text names them.
    """
    targets = {key: _target(graph, key) for key in _checked(graph, keys)}
    parsed: dict[Key, Node | None] = {}
    done: dict[Key, Node] = {}
    values: dict[Key, Any] = {}
    path: list[tuple[Key, Iterator[Key]]] = []
    on_path: set[Key] = set()
    for wanted in targets.values():
        if wanted in parsed:
            continue
        path.append((wanted, _enter(graph, wanted, parsed, values)))
        on_path.add(wanted)
        while path:
            key, needs = path[-1]
            needed = next((needed for needed in needs if needed in on_path or needed not in parsed), _NOTHING)
            if needed is _NOTHING:
                path.pop()
                on_path.discard(key)
                node = parsed[key]
                if node is not None:
                    done[key] = node
            elif needed in on_path:
                raise UsageError(f"the graph has a cycle: {_show_cycle([key for key, _ in path], needed)}")
            else:
                path.append((needed, _enter(graph, needed, parsed, values)))
                on_path.add(needed)
    return Plan(done, values, targets)


def is_computation(value: object) -> bool:
    """Tell whether a value of a graph is a computation: a tuple that begins with a callable."""
    return type(value) is tuple and bool(value) and callable(value[0])


def fill(argument: Any, value_of: Callable[[Key], Any]) -> Any:
    """Return an argument with the values (or futures) of its keys; inner computations become InnerCalls."""
    match argument:
        case KeyArgument(key):
            return value_of(key)
        case InnerNode(function, arguments):
            return InnerCall(function, tuple(fill(inner, value_of) for inner in arguments))
        case list():
            return [fill(inner, value_of) for inner in argument]
        case _:
            return argument


class InnerCall:
    """A computation inside another one's arguments; the task that gets it computes it."""

    __slots__ = ("arguments", "function")

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self.function = function
        self.arguments = arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return _call, (self.function, self.arguments)


def _call(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return finish(function(*arguments))


class GraphRun:
    """One run of a graph: submits what the wanted keys need, each task naming the futures of those before it.

    futures: those of the wanted keys, in their order.
    """

    def __init__(self, graph: Mapping[Any, Any], keys: Iterable[Any], table: FutureTable, templates: Templates) -> None:
        """Raises UsageError when the graph cannot be run."""
        self._plan = plan_graph(graph, keys)
        self._table = table
        self._templates = templates
        self._tasks: list[ScalerFuture] = []
        self.futures: dict[Key, ScalerFuture] = {}

    def submit(self) -> None:
        """Submit the tasks. When it raises, what was submitted is cancelled."""
        try:
            self._submit()
        except BaseException:
            self.cancel()
            raise

    def values(self) -> dict[Key, Any]:
        """Wait for the wanted keys. Raises the exception of the first that fails; what is unfinished is cancelled."""
        try:
            return {key: future.result() for key, future in self.futures.items()}
        except BaseException:
            self.cancel()
            raise

    def cancel(self) -> None:
        """Cancel all tasks that have not ended."""
        for task in self._tasks:
            task.cancel()

    def _submit(self) -> None:
        self._prepare()
        while not self._table.add([task for task in self._tasks if not task.done()]):
            # A future among the graph's values has ended meanwhile: its value must be embedded.
            self._prepare()

    def _prepare(self) -> None:
        """Make all tasks before the first is submitted: the values of inner nodes never come here to be embedded."""
        plan = self._plan
        wanted = set(plan.wanted.values())
        templates: dict[tuple[int, bool], TaskTemplate] = {}
        placed: dict[Key, Any] = dict(plan.values)
        self._tasks = []
        self._share_values(placed)
        value_of = placed.__getitem__
        for key, node in plan.nodes.items():
            deliver = key in wanted
            template = templates.get((id(node.function), deliver))
            if template is None:
                template = templates[id(node.function), deliver] = self._templates(node.function, deliver)
            arguments = tuple([fill(argument, value_of) for argument in node.arguments])
            task = placed[key] = self._table.prepare(template, arguments, {})
            task.node = (key,)
            self._tasks.append(task)
        for key, target in plan.wanted.items():
            future = placed[target]
            if target in plan.values:
                value = plan.values[target]
                template = self._templates(same, True)
                if isinstance(value, ScalerFuture):
                    future = value
                elif isinstance(value, ObjectReference):
                    future = self._table.prepare(template, (value,), {})
                    self._tasks.append(future)
                else:
                    future = self._table.ended(template, value)
            self.futures[key] = future

    def _share_values(self, placed: dict[Key, Any]) -> None:
        uses = Counter(key for node in self._plan.nodes.values() for key in node.needs if key in self._plan.values)
        for key, count in uses.items():
            value = placed[key]
            if count < 2 or isinstance(value, (*_SMALL, ByReference)):
                continue
            if isinstance(value, str | bytes) and len(value) < SHARED_VALUE_BYTES:
                continue
            parts = dump_value(value, self._templates(same, True).serializer, f"the value of key {key!r}")
            if size_of(parts) >= SHARED_VALUE_BYTES:
                placed[key] = SharedValue(self._table.upload(parts))


def _checked(graph: Mapping[Any, Any], keys: Iterable[Any]) -> Iterable[Key]:
    """Return the wanted keys. Raises UsageError when they are none of this graph, or one is there twice."""
    if not isinstance(graph, Mapping):
        raise UsageError(f"a graph is a dict of keys to values and computations, not a {type(graph).__name__}")
    if isinstance(keys, str | bytes):
        raise UsageError(f"keys is {keys!r}: give a list of keys, such as [{keys!r}]")
    seen: dict[Key, None] = {}
    for key in keys:
        if not _is_key(graph, key):
            raise UsageError(f"key {key!r} is wanted, but the graph has no such key")
        if key in seen:
            raise UsageError(f"key {key!r} is wanted twice: name each key once")
        seen[key] = None
    return seen


def _target(graph: Mapping[Any, Any], key: Key) -> Key:
    """Return the key whose value this key has: itself, unless another key stands in the place of its value."""
    path: list[Key] = []
    while True:
        value = graph[key]
        if type(value) not in _KEY_TYPES or is_computation(value) or not _is_key(graph, value) or value == key:
            return key
        path.append(key)
        if value in path:
            raise UsageError(f"the graph has a cycle: {_show_cycle(path, value)}")
        key = value


def _enter(graph: Mapping[Any, Any], key: Key, parsed: dict[Key, Node | None], values: dict[Key, Any]) -> Iterator[Key]:
    value = graph[key]
    needs: dict[Key, None] = {}
    if is_computation(value):
        node = Node(value[0], tuple(_parse(graph, key, argument, needs) for argument in value[1:]), tuple(needs))
    elif type(value) is list and _computes(graph, value):
        node = Node(same, (_parse(graph, key, value, needs, is_value=True),), tuple(needs))
    else:
        parsed[key] = None
        values[key] = value
        return iter(())
    parsed[key] = node
    return iter(needs)


def _computes(graph: Mapping[Any, Any], values: list[Any]) -> bool:
    """Tell whether a list holds a key or a computation, at any depth."""
    return any(
        _computes(graph, value) if type(value) is list else is_computation(value) or _is_key(graph, value)
        for value in values
    )


def _parse(graph: Mapping[Any, Any], key: Key, argument: Any, needs: dict[Key, None], is_value: bool = False) -> Any:
    """Parse one argument, or an item of a list that is a value of the graph: there strings may be no keys.

    It recurses only as deep as the user wrote lists and computations into each other.
    """
    if _is_key(graph, argument):
        target = _target(graph, argument)
        needs[target] = None
        return KeyArgument(target)
    if isinstance(argument, str) and not is_value:
        raise UsageError(
            f"key {key!r} needs {reprlib.repr(argument)}, but the graph has no such key; "
            "give a string as a value of its own"
        )
    if type(argument) is list:
        return [_parse(graph, key, inner, needs, is_value) for inner in argument]
    if is_computation(argument):
        return InnerNode(argument[0], tuple(_parse(graph, key, inner, needs) for inner in argument[1:]))
    return argument


def _is_key(graph: Mapping[Any, Any], argument: Any) -> bool:
    try:
        return argument in graph
    except TypeError:  # it cannot be hashed
        return False


def _show_cycle(path: list[Key], again: Key) -> str:
    cycle = [repr(key) for key in path[path.index(again) :]] + [repr(again)]
    if len(cycle) > 12:
        cycle = [*cycle[:6], "...", *cycle[-5:]]
    return " -> ".join(cycle)
