"""Dask-like graphs: dicts of keys to values and computations, checked and ordered before anything is sent.

A computation is a tuple of a callable and its arguments. An argument is a key of the graph, a list of such, or a
computation of its own; an argument that is neither a string nor a key is a value. The values of the dict itself are
computations, other keys (their values), lists that hold keys or computations, and plain values. Nodes of today's Dask
(`Task`, `Alias` and others) may stand in the place of any of these, and inside lists and arguments.
"""

from __future__ import annotations

import gc
import math
import reprlib
import sys
from array import array
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
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
from scaler.client.future import ScalerFuture
from scaler.client.futures import FutureTable
from scaler.client.graph_chunks import (
    MAX_CHUNK_SECONDS,
    MAX_NODES,
    MIN_NODES,
    WAIT_SECONDS,
    Cut,
    Measured,
    NodeTask,
    samples_of,
)
from scaler.client.graph_tasks import ChunkedNode, ChunkFunction
from scaler.client.options import OptionKeywords, Options
from scaler.client.task_future import TaskFuture
from scaler.client.tasks import ObjectReference, TaskTemplate
from scaler.errors import UsageError
from scaler.serialization import Parts, dump_value, size_of
from scaler.serialization.arguments import ByReference, same
from scaler.serialization.exceptions import copy_of
from scaler.worker.processor.calling import finish

Key = Hashable
SHARED_VALUE_BYTES = 4096
"""A larger value that several computations need is put into the object storage, once."""
_NOTHING = object()
_SMALL = (type(None), bool, int, float, complex)
_STRINGS = frozenset({str})
_KEY_TYPES = frozenset({str, bytes, int, float, tuple})
"""Types of values that may be another key, as in Dask."""


Computation = tuple[Any, ...]
"""A callable and its arguments, as in the graph."""
_ON_PATH = -1
_Entered = tuple[Key, Computation | None, Iterable[Key], Iterator[Key]]
"""A key, its computation, what it needs, and those of these that are to be visited: all."""


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
        self.keys: list[Key] = []
        """Of values and computations, in that order: each has its number there."""
        self._numbers: dict[Key, int] = {}
        """Also of keys that stand for another one: the number of that. _ON_PATH: what a key needs is being visited."""
        self._inputs = array("I")
        """The numbers of what the computations need, of one after the other."""
        self._ends = array("Q")
        """By number: where its inputs end."""
        self._is_value = bytearray()
        """By number."""
        self._stands_for: dict[Key, Key] = {}
        """Of keys that stand for another one: that one."""
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
        """Return the key under which the value of a key is found: another one where it stands for that."""
        return self.keys[self._numbers[key]]

    def number(self, key: Key) -> int:
        """Return the number of a key, or of the one that it stands for."""
        return self._numbers[key]

    def is_key(self, argument: Any) -> bool:
        """Tell whether an argument of a computation is a key."""
        try:
            return argument in self._numbers
        except TypeError:  # it cannot be hashed
            return False

    def inputs(self, number: int) -> Sequence[int]:
        """Return the numbers of what a computation needs; of one whose arguments are all strings, in their order."""
        return self._inputs[self._ends[number - 1] if number else 0 : self._ends[number]]

    def is_simple(self, arguments: Sequence[Any]) -> bool:
        """Tell whether arguments are keys and values alone: there is nothing inside them to compute or to fill in."""
        return _STRINGS.issuperset(map(type, arguments)) or not any(
            self._is_compound(each) for each in arguments if not self._is_key(each)
        )

    def _is_compound(self, argument: Any) -> bool:
        return type(argument) is list or _is_computation(argument) or isinstance(argument, self._node_types)

    def fill(self, argument: Any, values: Mapping[Key, Any]) -> Any:
        """Return an argument with the values or futures of its keys; inner computations become InnerCalls."""
        if self._node_types and isinstance(argument, self._node_types):
            return self._fill_node(argument, values)
        if self._is_key(argument):
            return values[self.target(argument)]
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
        graph, numbers = self._graph, self._numbers
        for wanted in self.wanted:
            stack = [] if wanted in numbers else [self._enter(wanted)]
            while stack:
                key, computation, needs, left = stack[-1]
                for needed in left:
                    number = numbers.get(needed)
                    if number is None:
                        if needed not in graph:
                            self._scan(key, needed, {})  # raises
                        stack.append(self._enter(needed))
                        break
                    if number == _ON_PATH:
                        raise _cycle([each for each, *_ in stack], needed)
                else:
                    stack.pop()
                    self._leave(key, computation, needs)

    def _enter(self, key: Key) -> _Entered:
        """Go on to a key."""
        self._numbers[key] = _ON_PATH
        value = self._graph[key]
        if type(value) is tuple and not self._node_types and _is_computation(value):
            arguments = value[1:]
            if _STRINGS.issuperset(map(type, arguments)):  # they are keys, or it is a mistake
                return key, value, arguments, iter(arguments)
        needs: dict[Key, None] = {}
        computation = self._computation(key, value, needs)
        return key, computation, needs, iter(needs)

    def _leave(self, key: Key, computation: Computation | None, needs: Iterable[Key]) -> None:
        """Note a key, after all that it needs."""
        numbers = self._numbers
        if computation is None and key in self._stands_for:
            numbers[key] = numbers[self._stands_for[key]]
            return
        numbers[key] = len(self.keys)
        self.keys.append(key)
        self._is_value.append(computation is None)
        if computation is not None:
            self.nodes[key] = computation
            inputs = [numbers[each] for each in needs]
            self._inputs.extend(inputs)
            is_value = self._is_value
            # A value counts once of a computation that has several names for it.
            if used := {each for each in inputs if is_value[each]}:
                self.uses.update([self.keys[each] for each in used])
        self._ends.append(len(self._inputs))

    def _computation(self, key: Key, value: Any, needs: dict[Key, None]) -> Computation | None:
        """Return the computation of a key; None when it is a value or stands for another key, which is noted.

        Notes the keys that it needs.
        """
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
        """Do what `_computation` does, for a node of Dask. Raises UsageError for keys that the graph does not have."""
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

    def count_future(self, future: Any, count: int) -> None: ...

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
        chunk_size: int | None,
    ) -> None:
        """Submit the tasks. own: options of single nodes. chunk_size: nodes of a task, at most; None: by measurement.

        Raises UsageError when the graph cannot be run; then nothing runs.
        """
        self._table = table
        self._templates = templates
        self._own = own
        self._known: dict[tuple[int, bool], TaskTemplate] = {}
        """By the id of the function, and whether the value is wanted."""
        self._wrapped: dict[int, ChunkedNode] = {}
        """What runs single nodes that need values of chunks, by the id of their function."""
        self._tasks: list[TaskFuture] = []
        self._sizes: dict[ScalerFuture, int] = {}
        """How many nodes are in each task that has several."""
        self.futures: dict[Key, TaskFuture] = {}
        try:
            with _no_collections():
                self._run(Plan(graph, keys), chunk_size)
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
        return _Shown(self, self._tasks, self._sizes, bar)

    @property
    def size(self) -> int:
        """The number of computations."""
        return len(self._tasks) - len(self._sizes) + sum(self._sizes.values())

    def cancel(self) -> None:
        """Cancel all unfinished tasks."""
        for task in self._tasks:
            task.cancel()

    def _run(self, plan: Plan, chunk_size: int | None) -> None:
        """Make all tasks before the first is submitted: the values of inner nodes never come here to be embedded.

        But those of the nodes that are measured do: they are submitted before the others are made.
        """
        wanted = set(plan.wanted.values())
        found: dict[Key, Any] = dict(plan.values)
        self._share_values(plan, found)
        cut = self._cut(plan, found, wanted, chunk_size)
        measured = len(self._tasks)
        for key in plan.nodes if cut is None else cut.order:
            if type(key) is NodeTask:
                assert cut is not None, "it is of the cut"
                self._make_chunk(key, cut.function, found)
            elif cut is not None and key in cut.singles:
                function = plan.nodes[key][0]
                wrapped = self._wrapped.setdefault(id(function), ChunkedNode(function))
                self._make(key, wrapped, cut.singles[key].arguments(found), found, deliver=key in wanted)
            elif key not in found:  # it was not measured
                self._make_plain(plan, key, found, deliver=key in wanted)
        for key, target in plan.wanted.items():
            future = found[target]
            if target in plan.values:
                value = plan.values[target]
                template = self._templates(same, True, None)
                if isinstance(value, TaskFuture):
                    future = value
                elif isinstance(value, ObjectReference):
                    future = self._table.prepare(template, (value,), {})
                    self._tasks.append(future)
                else:
                    future = self._table.ended(template, value)
            self.futures[key] = future
        self._submit(measured)

    def _make_plain(self, plan: Plan, key: Key, found: dict[Key, Any], *, deliver: bool) -> None:
        function, *arguments = plan.nodes[key]
        # Most arguments are keys.
        filled = [found[each] if type(each) is str and each in found else plan.fill(each, found) for each in arguments]
        self._make(key, function, tuple(filled), found, deliver=deliver)

    def _make(
        self,
        key: Key,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        found: dict[Key, Any],
        *,
        deliver: bool,
    ) -> None:
        own = self._own.get(key)
        template = self._known.get((id(function), deliver)) if own is None else None
        if template is None:
            template = self._templates(function, deliver, own)
            if own is None:
                self._known[id(function), deliver] = template
        task = found[key] = self._table.prepare(template, arguments, {})
        task.node = (key,)
        self._tasks.append(task)

    def _make_chunk(self, chunk: NodeTask, function: ChunkFunction, found: dict[Key, Any]) -> None:
        task = self._table.prepare(self._templates(function, False, None), chunk.arguments(found), {})
        chunk.future = task
        self._tasks.append(task)
        self._sizes[task] = len(chunk.keys)

    def _cut(self, plan: Plan, found: dict[Key, Any], wanted: set[Key], chunk_size: int | None) -> Cut | None:
        """Return the chunks; None: there are none. Without a size, some nodes run before the others, to be measured."""
        alone = {*wanted, *self._own}
        if chunk_size is not None:
            return Cut(plan, chunk_size, alone) if chunk_size > 1 else None
        if len(plan.nodes) < MIN_NODES or not self._table.may_wait():
            return None
        samples = samples_of(plan, self._own)
        for key in samples:
            self._make_plain(plan, key, found, deliver=True)
        self._submit(0)
        self._table.wait_ended(self._tasks, len(plan.nodes) * WAIT_SECONDS)
        measured = Measured()
        for key in samples:
            measured.add(plan.nodes[key][0], *_measure(found[key]))
        if not any(measured.is_small(plan.nodes[key][0]) for key in samples):
            return None
        return Cut(plan, MAX_NODES, alone, samples, measured.is_small, MAX_CHUNK_SECONDS)

    def _submit(self, first: int) -> None:
        """Submit the tasks from this one on.

        A future among the graph's values, or a sample, may have ended since they were made, so that no task can name
        it: its value goes into the object storage.
        """
        while not self._table.add(tasks := [task for task in self._tasks[first:] if not task.done()]):
            stored: dict[TaskFuture, ObjectReference] = {}
            for task in tasks:
                self._store_inputs(task, stored)

    def _store_inputs(self, task: TaskFuture, stored: dict[TaskFuture, ObjectReference]) -> None:
        """Have a task get the values of inputs that have ended from the object storage; it ends when one has failed."""
        for reference in task.references:
            if not isinstance(reference, TaskFuture) or not reference.must_embed:
                continue
            error = CancelledError() if reference.cancelled() else reference.exception()
            if error is not None:
                task.template = None
                task.settle(None, copy_of(error))
                task.references = ()
                return
            if reference not in stored:
                name = repr(reference)
                stored[reference] = self._put(self._dumped(reference.result(), name), name)
            put = stored[reference]
            task.references = tuple([put if each is reference else each for each in task.references])
            task.uploads = (*task.uploads, put._upload)

    def _dumped(self, value: Any, what: str) -> Parts:
        return dump_value(value, self._templates(same, True, None).serializer, what)

    def _put(self, parts: Parts, name: str) -> ObjectReference:
        return ObjectReference(self._table, self._table.upload(parts), name, size_of(parts))

    def _share_values(self, plan: Plan, found: dict[Key, Any]) -> None:
        """Put large values into the object storage that several computations need."""
        for key, count in plan.uses.items():
            value = found[key]
            if count < 2 or isinstance(value, (*_SMALL, ByReference)):
                continue
            if isinstance(value, str | bytes) and len(value) < SHARED_VALUE_BYTES:
                continue
            parts = self._dumped(value, f"the value of key {key!r}")
            if size_of(parts) >= SHARED_VALUE_BYTES:
                found[key] = self._put(parts, repr(key))


def _measure(sample: TaskFuture) -> tuple[float, int]:
    """Return the seconds of a task and the size of its value; more than any limit if it failed, or has not ended."""
    if not sample.done() or sample.cancelled() or sample.exception() is not None:
        return math.inf, sys.maxsize
    return sample.profiling_info().duration_s, size_of(dump_value(sample.result()))


class _Shown:
    """Shows a run while its values are awaited.

    A class: contextlib's generators set the traceback of the exception, and one of a user's may refuse that.
    """

    def __init__(
        self, run: GraphRun, tasks: Sequence[TaskFuture], sizes: Mapping[ScalerFuture, int], bar: NodeBar | None
    ) -> None:
        """sizes: how many computations are in each task that has several."""
        self._run = run
        self._tasks = tasks
        self._sizes = sizes
        self._bar = bar

    def __enter__(self) -> None:
        if self._bar is not None:
            for task in self._tasks:
                task.add_done_callback(self._count)

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if self._bar is not None:
            for task in self._tasks:
                if task.done():  # though its callback was not called yet
                    self._count(task)
            self._bar.close()
        if error is not None:
            self._run.cancel()

    def _count(self, task: ScalerFuture) -> None:
        assert self._bar is not None, "only a run with a bar counts"
        self._bar.count_future(task, self._sizes.get(task, 1))
