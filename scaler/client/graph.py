"""Dask-like graphs: dicts of keys to values and computations, checked and ordered before anything is sent.

A computation is a tuple of a callable and its arguments. An argument is a key of the graph, a list of such, or a
computation of its own; an argument that is neither a string nor a key is a value. The values of the dict itself are
computations, other keys (their values), lists that hold keys or computations, and plain values. Nodes of today's Dask
(`Task`, `Alias` and others) may stand in the place of any of these, and inside lists and arguments.
"""

from __future__ import annotations

import gc
import reprlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, cast

from scaler.client.dask_nodes import (
    NodeCall,
    NodeFunction,
    find_node,
    is_call,
    name_of_node,
    node_types,
    target_of,
    value_of,
)
from scaler.client.futures import FutureTable
from scaler.client.options import OptionKeywords, Options
from scaler.client.task_future import TaskFuture
from scaler.client.tasks import ObjectReference, TaskTemplate
from scaler.errors import UsageError
from scaler.serialization import dump_value, size_of
from scaler.serialization.arguments import ByReference, same
from scaler.worker.processor.calling import finish

Key = Hashable
SHARED_VALUE_BYTES = 4096
"""A larger value that several computations need is put into the object storage, once."""
_NOTHING = object()
_SMALL = (type(None), bool, int, float, complex)
_KEY_TYPES = frozenset({str, bytes, int, float, tuple})
"""Types of values that may be another key, as in Dask."""


Computation = tuple[Any, ...]
"""A callable and its arguments, as in the graph."""


@dataclass(slots=True, eq=False)
class InnerCall:
    """A computation inside another one's arguments; the task that gets it computes it."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        return _call, (self.function, self.arguments)


def _call(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return finish(function(*arguments))


class Plan:
    """What the wanted keys of a graph need.

    nodes: computations, in an order in which each comes after all that it needs. values: by key. uses: how many
    computations need each of the values. wanted: each wanted key, and where its value is found: under itself, or under
    the key that it stands for.
    """

    def __init__(self, graph: Mapping[Any, Any], keys: Iterable[Any]) -> None:
        """Raises UsageError for keys that are missing, and for cycles; the text names them."""
        if not isinstance(graph, Mapping):
            raise UsageError(f"a graph is a dict of keys to values and computations, not {type(graph).__name__}")
        if isinstance(keys, str | bytes):
            raise UsageError(f"keys is {keys!r}: give a list of keys, such as [{keys!r}]")
        self._graph = graph
        self.nodes: dict[Key, Computation] = {}
        self.values: dict[Key, Any] = {}
        self.uses: Counter[Key] = Counter()
        self.wanted: dict[Key, Key] = {}
        self._stands_for: dict[Key, Key] = {}
        """Of keys that stand for another one: that one."""
        self._targets: dict[Key, Key] = {}
        """Of the same keys: where their value is found."""
        self._node_types = node_types()
        self._functions: dict[str, NodeFunction] = {}
        """Of Dask's nodes, by their display names."""
        for key in keys:
            if not self._is_key(key):
                raise UsageError(f"key {key!r} is wanted, but the graph has no such key")
            self.wanted[key] = key
        self._order()
        self.wanted = {key: self.target(key) for key in self.wanted}

    def target(self, key: Key) -> Key:
        return self._targets.get(key, key)

    def fill(self, argument: Any, values: Mapping[Key, Any]) -> Any:
        """Return an argument with the values or futures of its keys; inner computations become InnerCalls."""
        if self._node_types and isinstance(argument, self._node_types):
            return self._fill_node(argument, values)
        if self._is_key(argument):
            return values[self._targets.get(argument, argument)]
        if type(argument) is list:
            return [self.fill(inner, values) for inner in argument]
        if _is_computation(argument):
            return InnerCall(argument[0], tuple([self.fill(inner, values) for inner in argument[1:]]))
        return argument

    def _fill_node(self, node: Any, values: Mapping[Key, Any]) -> Any:
        target = target_of(node)
        if target is not None:
            return values[self.target(target[0])]
        value = value_of(node)
        if value is not None:
            return value[0]
        needs = tuple(node.dependencies)
        return InnerCall(NodeCall(node, needs), tuple([values[self.target(key)] for key in needs]))

    def _order(self) -> None:
        """Visit the wanted keys and all that they need, depth first and without recursion."""
        entered: dict[Key, Computation | None] = {}
        path: set[Key] = set()
        for wanted in self.wanted:
            stack = [] if wanted in entered else [self._step(wanted, entered, path)]
            while stack:
                key, needs, left = stack[-1]
                for needed in left:
                    if needed in path:
                        raise _cycle([each for each, _, _ in stack], needed)
                    if needed not in entered:
                        stack.append(self._step(needed, entered, path))
                        break
                else:
                    stack.pop()
                    path.remove(key)
                    self._leave(key, entered[key], needs)

    def _step(
        self, key: Key, entered: dict[Key, Computation | None], path: set[Key]
    ) -> tuple[Key, dict[Key, None], Iterator[Key]]:
        """Go on to a key. Returns it, the keys that it needs, and those of them that are to be visited: all."""
        needs: dict[Key, None] = {}
        entered[key] = self._enter(key, needs)
        path.add(key)
        return key, needs, iter(needs)

    def _leave(self, key: Key, computation: Computation | None, needs: dict[Key, None]) -> None:
        """Note a key, after all that it needs."""
        if computation is not None:
            self.nodes[key] = computation
            values = self.values
            # A value counts once of a computation that has several names for it.
            needed = dict.fromkeys(map(self.target, needs)) if self._targets else needs
            if used := [each for each in needed if each in values]:
                self.uses.update(used)
        elif key in self._stands_for:
            self._targets[key] = self.target(self._stands_for[key])

    def _enter(self, key: Key, needs: dict[Key, None]) -> Computation | None:
        """Return the computation of a key; None when it is a value or stands for another key, which is noted.

        Notes the keys that it needs.
        """
        value = self._graph[key]
        if self._node_types and isinstance(value, self._node_types):
            return self._enter_node(key, value, needs)
        if _is_computation(value):
            self._check_plain(key, value[0])
            graph = self._graph
            for argument in value[1:]:
                if type(argument) is str and argument in graph:  # as most arguments are
                    needs[argument] = None
                else:
                    self._scan(key, argument, needs)
            return cast("Computation", value)
        if type(value) is list and self._computes(value):
            self._scan(key, value, needs, is_value=True)
            return same, value
        if type(value) in _KEY_TYPES and self._is_key(value) and value != key:
            self._stands_for[key] = value
            needs[value] = None
        else:
            self._check_plain(key, value)
            self.values[key] = value
        return None

    def _enter_node(self, key: Key, node: Any, needs: dict[Key, None]) -> Computation | None:
        """Do what `_enter` does for a node of Dask. Raises UsageError when the graph does not have what it needs."""
        value = value_of(node)
        if value is not None:
            self._check_plain(key, value[0])
            self.values[key] = value[0]
            return None
        self._scan_node(key, node, needs)
        target = target_of(node)
        if target is not None:
            (self._stands_for[key],) = target
            return None
        name = name_of_node(key, node)
        function = self._functions.get(name)
        if function is None:
            function = self._functions[name] = NodeFunction(name)
        return function, NodeCall(node, tuple(needs)), *needs

    def _scan_node(self, key: Key, node: Any, needs: dict[Key, None]) -> None:
        for needed in target_of(node) or node.dependencies:
            if not self._is_key(needed):
                raise UsageError(f"key {key!r} needs {needed!r}, but the graph has no such key")
            needs[needed] = None

    def _check_plain(self, key: Key, value: Any) -> None:
        """Raise UsageError for a value that holds a node of Dask, which would come back as it is."""
        if self._node_types and (node := find_node(value, self._node_types)) is not None:
            text = "make it a node of its own, or use Dask's containers, such as Dict and Tuple"
            raise UsageError(f"key {key!r} holds {node!r} in its {type(value).__name__}, where it does not run: {text}")

    def _scan(self, key: Key, argument: Any, needs: dict[Key, None], is_value: bool = False) -> None:
        """Note the keys in an argument. is_value: it is in a list that is a value of the graph: strings may be values.

        It recurses only as deep as the user wrote lists and computations into each other.
        """
        if self._node_types and isinstance(argument, self._node_types):
            if (value := value_of(argument)) is None:
                self._scan_node(key, argument, needs)
            else:
                self._check_plain(key, value[0])
        elif self._is_key(argument):
            needs[argument] = None
        elif type(argument) is list:
            for inner in argument:
                self._scan(key, inner, needs, is_value)
        elif _is_computation(argument):
            self._check_plain(key, argument[0])
            for inner in argument[1:]:
                self._scan(key, inner, needs)
        elif isinstance(argument, str) and not is_value:
            raise UsageError(
                f"key {key!r} needs {reprlib.repr(argument)}, but the graph has no such key; "
                "give a string as a value of its own"
            )
        else:
            self._check_plain(key, argument)

    def _computes(self, values: list[Any]) -> bool:
        """Tell whether a list holds a key, a computation or a node, at any depth."""
        return any(
            self._computes(value)
            if type(value) is list
            else isinstance(value, self._node_types) or _is_computation(value) or self._is_key(value)
            for value in values
        )

    def _is_key(self, argument: Any) -> bool:
        try:
            return argument in self._graph
        except TypeError:  # it cannot be hashed
            return False


def _is_computation(value: object) -> bool:
    return type(value) is tuple and bool(value) and callable(value[0])


def _is_call_node(value: object, types: tuple[type, ...]) -> bool:
    return isinstance(value, types) and is_call(value)


def _cycle(path: list[Key], again: Key) -> UsageError:
    cycle = [repr(key) for key in path[path.index(again) :]] + [repr(again)]
    if len(cycle) > 12:
        cycle = [*cycle[:6], "...", *cycle[-5:]]
    return UsageError(f"the graph has a cycle: {' -> '.join(cycle)}")


@contextmanager
def _no_collections() -> Iterator[None]:
    """Pause the garbage collector: as a large graph grows, it would visit all of it many times, and find nothing."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class NodeBar(Protocol):
    """Shows how many computations of a graph have ended."""

    def count_future(self, future: Any) -> None: ...

    def close(self) -> None: ...


Templates = Callable[[Callable[..., Any], bool, Options | None], TaskTemplate]
"""Returns the template of a task, by its function, whether its value is wanted here, and options of its own."""


def nodes_with_options(
    graph: Mapping[Any, Any],
    given: Mapping[Any, OptionKeywords],
    common: OptionKeywords,
    checked: Callable[[OptionKeywords], Options],
) -> dict[Key, Options]:
    """Return the options of the nodes that have their own, over those that all have. Raises UsageError."""
    if not isinstance(given, Mapping):
        raise UsageError(f"node_options is {given!r}, and must be a dict of keys to dicts of options")
    found: dict[Key, Options] = {}
    types = node_types()
    for key, own in given.items():
        if not isinstance(own, Mapping):
            raise UsageError(f"node_options of key {key!r} is {own!r}, and must be a dict such as {{'priority': 5}}")
        if key not in graph or not (_is_computation(graph[key]) or _is_call_node(graph[key], types)):
            raise UsageError(f"node_options names key {key!r}, and the graph has no computation with this key")
        try:
            found[key] = checked({**common, **own})
        except (UsageError, TypeError) as error:
            raise UsageError(f"node_options of key {key!r}: {error}") from None
    return found


class GraphRun:
    """One run of a graph: submits what the wanted keys need, each task naming the futures of those before it.

    futures: those of the wanted keys, in their order.
    """

    def __init__(
        self,
        graph: Mapping[Any, Any],
        keys: Iterable[Any],
        table: FutureTable,
        templates: Templates,
        own: Mapping[Key, Options],
    ) -> None:
        """Submit the tasks. own: options of single nodes.

        Raises UsageError when the graph cannot be run; then nothing runs.
        """
        self._table = table
        self._templates = templates
        self._own = own
        self._tasks: list[TaskFuture] = []
        self.futures: dict[Key, TaskFuture] = {}
        try:
            with _no_collections():
                self._prepare(Plan(graph, keys))
                while not self._table.add([task for task in self._tasks if not task.done()]):
                    # A future among the graph's values has ended meanwhile: its value must be embedded.
                    self._prepare(Plan(graph, keys))
        except BaseException:
            self.cancel()
            raise

    def values(self, bar: NodeBar | None = None) -> dict[Key, Any]:
        """Wait for the wanted keys. Raises the exception of the first that fails, and cancels all unfinished tasks."""
        with self.shown(bar):
            return {key: future.result() for key, future in self.futures.items()}

    def shown(self, bar: NodeBar | None) -> _Shown:
        """Return a context in which values are awaited. An exception cancels all unfinished tasks.

        bar: counts the computations that have ended, and is closed.
        """
        return _Shown(self, self._tasks, bar)

    @property
    def size(self) -> int:
        """The number of computations."""
        return len(self._tasks)

    def cancel(self) -> None:
        """Cancel all unfinished tasks."""
        for task in self._tasks:
            task.cancel()

    def _prepare(self, plan: Plan) -> None:
        """Make all tasks before the first is submitted: the values of inner nodes never come here to be embedded."""
        table = self._table
        wanted = set(plan.wanted.values())
        templates: dict[tuple[int, bool], TaskTemplate] = {}
        found: dict[Key, Any] = dict(plan.values)
        self._tasks = []
        self._share_values(plan, found)
        for key, (function, *arguments) in plan.nodes.items():
            deliver = key in wanted
            own = self._own.get(key)
            template = templates.get((id(function), deliver)) if own is None else None
            if template is None:
                template = self._templates(function, deliver, own)
                if own is None:
                    templates[id(function), deliver] = template
            # Most arguments are keys.
            filled = [
                found[each] if type(each) is str and each in found else plan.fill(each, found) for each in arguments
            ]
            task = found[key] = table.prepare(template, tuple(filled), {})
            task.node = (key,)
            self._tasks.append(task)
        for key, target in plan.wanted.items():
            future = found[target]
            if target in plan.values:
                value = plan.values[target]
                template = self._templates(same, True, None)
                if isinstance(value, TaskFuture):
                    future = value
                elif isinstance(value, ObjectReference):
                    future = table.prepare(template, (value,), {})
                    self._tasks.append(future)
                else:
                    future = table.ended(template, value)
            self.futures[key] = future

    def _share_values(self, plan: Plan, found: dict[Key, Any]) -> None:
        """Put large values into the object storage that several computations need."""
        for key, count in plan.uses.items():
            value = found[key]
            if count < 2 or isinstance(value, (*_SMALL, ByReference)):
                continue
            if isinstance(value, str | bytes) and len(value) < SHARED_VALUE_BYTES:
                continue
            parts = dump_value(value, self._templates(same, True, None).serializer, f"the value of key {key!r}")
            if size_of(parts) >= SHARED_VALUE_BYTES:
                found[key] = ObjectReference(self._table, self._table.upload(parts), repr(key), size_of(parts))


class _Shown:
    """Shows a run while its values are awaited.

    A class: contextlib's generators set the traceback of the exception, and one of a user's may refuse that.
    """

    def __init__(self, run: GraphRun, tasks: Sequence[TaskFuture], bar: NodeBar | None) -> None:
        self._run = run
        self._tasks = tasks
        self._bar = bar

    def __enter__(self) -> None:
        if self._bar is not None:
            for task in self._tasks:
                task.add_done_callback(self._bar.count_future)

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if self._bar is not None:
            for task in self._tasks:
                if task.done():  # though its callback was not called yet
                    self._bar.count_future(task)
            self._bar.close()
        if error is not None:
            self._run.cancel()
