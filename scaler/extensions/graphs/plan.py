"""The dependencies of wanted keys of a graph, validated and ordered before anything is sent. Pure.

A graph is a dict of keys to computations, keys (aliases), lists of keys or computations, and plain values. A
computation is a tuple of a callable and arguments: keys, lists, computations, and plain values except strings.
`scaler.dask` translates Dask's nodes into such tuples.
"""

from __future__ import annotations

import reprlib
import sys
from array import array
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from scaler.errors import UsageError
from scaler.serialization.arguments import same
from scaler.worker.processor.calling import finish

Key = Hashable
Computation = tuple[Any, ...]
_Entered = tuple[Key, Computation | None, Iterable[Key], Iterator[Key]]
"""A key, its computation, its inputs, and an iterator over the unvisited inputs."""
_STRINGS = frozenset({str})
KEY_TYPES = frozenset({str, bytes, int, float, tuple})
"""Types of values that may be keys, as in Dask."""
_ON_PATH = -1
_NODES = "dask._task_spec"


@dataclass(slots=True, eq=False)
class InnerCall:
    function: Callable[..., Any]
    arguments: tuple[Any, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        return _call, (self.function, self.arguments)


def _call(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return finish(function(*arguments))


class Plan:
    """The nodes and values that the wanted keys of a graph need.

    nodes: computations in topological order. values: by key. uses: number of computations that need each value. wanted:
    each wanted key with the key of its value, which differs for an alias.
    """

    def __init__(self, graph: Mapping[Any, Any], keys: Iterable[Any]) -> None:
        if not isinstance(graph, Mapping):
            raise UsageError(f"a graph must be a dict of keys to values and computations, not {type(graph).__name__}")
        if isinstance(keys, str | bytes):
            raise UsageError(f"keys is {keys!r}: pass a list of keys, such as [{keys!r}]")
        dask = sys.modules.get(_NODES)  # no value is a node before the program imports Dask
        if dask is not None and any(isinstance(value, dask.GraphNode) for value in graph.values()):
            raise UsageError(
                "the graph contains Dask nodes: compute it with scaler.dask.get(graph, keys, client=client)"
            )
        self._graph = graph
        self.nodes: dict[Key, Computation] = {}
        self.values: dict[Key, Any] = {}
        self.uses: Counter[Key] = Counter()
        self.wanted: dict[Key, Key] = {}
        self.keys: list[Key] = []
        """Keys of values and computations, indexed by number."""
        self._numbers: dict[Key, int] = {}
        """Number by key. An alias has the number of its target. _ON_PATH: the key's inputs are being visited."""
        self._inputs = array("I")
        """The input numbers of all computations, concatenated."""
        self._ends = array("Q")
        self._is_value = bytearray()
        self._stands_for: dict[Key, Key] = {}
        for key in keys:
            if not self.is_key(key):
                raise UsageError(f"key {key!r} was requested, but the graph has no such key")
            self.wanted[key] = key
        self._order()
        self.wanted = {key: self.target(key) for key in self.wanted}

    def target(self, key: Key) -> Key:
        """Return the key of a key's value: the target of an alias."""
        return self.keys[self._numbers[key]]

    def number(self, key: Key) -> int:
        return self._numbers[key]

    def is_key(self, argument: Any) -> bool:
        try:
            return argument in self._graph
        except Exception:  # noqa: BLE001 (unhashable, or a user's __hash__ or __eq__ raises)
            return False

    def inputs(self, number: int) -> Sequence[int]:
        """Return the numbers of a computation's inputs, in the order of its arguments if these are all strings."""
        return self._inputs[self._ends[number - 1] if number else 0 : self._ends[number]]

    def is_simple(self, arguments: Sequence[Any]) -> bool:
        """Return whether all arguments are keys or plain values, with no nested computations."""
        return _STRINGS.issuperset(map(type, arguments)) or not any(
            type(each) is list or is_computation(each) for each in arguments if not self.is_key(each)
        )

    def fill(self, argument: Any, values: Mapping[Key, Any]) -> Any:
        """Return an argument with its keys replaced by values or futures, and inner computations by InnerCalls."""
        if self.is_key(argument):
            return values[self.target(argument)]
        if type(argument) is list:
            return [self.fill(inner, values) for inner in argument]
        if is_computation(argument):
            return InnerCall(argument[0], tuple([self.fill(inner, values) for inner in argument[1:]]))
        return argument

    def _order(self) -> None:
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
                        path = [each for each, *_ in stack]
                        cycle = [*map(repr, path[path.index(needed) :]), repr(needed)]
                        shown = cycle if len(cycle) <= 12 else [*cycle[:6], "...", *cycle[-5:]]
                        raise UsageError(f"the graph has a cycle: {' -> '.join(shown)}")
                else:
                    stack.pop()
                    self._leave(key, computation, needs)

    def _enter(self, key: Key) -> _Entered:
        self._numbers[key] = _ON_PATH
        value = self._graph[key]
        if is_computation(value):
            arguments = value[1:]
            if _STRINGS.issuperset(map(type, arguments)):  # keys, or a mistake
                return key, value, arguments, iter(arguments)
        needs: dict[Key, None] = {}
        try:
            computation = self._computation(key, value, needs)
        except RecursionError:
            raise too_deep(key) from None
        return key, computation, needs, iter(needs)

    def _leave(self, key: Key, computation: Computation | None, needs: Iterable[Key]) -> None:
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
            # Counts a value once per computation, even under several aliases.
            if used := {each for each in inputs if is_value[each]}:
                self.uses.update([self.keys[each] for each in used])
        self._ends.append(len(self._inputs))

    def _computation(self, key: Key, value: Any, needs: dict[Key, None]) -> Computation | None:
        """Return the computation of a key and collect its inputs; None for a value or an alias, which is recorded."""
        if is_computation(value):
            graph = self._graph
            for argument in value[1:]:
                if type(argument) is str and argument in graph:  # the common case
                    needs[argument] = None
                else:
                    self._scan(key, argument, needs)
            return cast("Computation", value)
        if type(value) is list and self._computes(value):
            self._scan(key, value, needs, is_value=True)
            return same, value
        if type(value) in KEY_TYPES and self.is_key(value) and value != key:
            self._stands_for[key] = value
            needs[value] = None
        else:
            self.values[key] = value
        return None

    def _scan(self, key: Key, argument: Any, needs: dict[Key, None], is_value: bool = False) -> None:
        """Collect the keys in an argument. is_value: whether it is in a graph's list, where strings may be values."""
        if self.is_key(argument):
            needs[argument] = None
        elif type(argument) is list:
            for inner in argument:
                self._scan(key, inner, needs, is_value)
        elif is_computation(argument):
            for inner in argument[1:]:
                self._scan(key, inner, needs)
        elif isinstance(argument, str) and not is_value:
            raise UsageError(
                f"key {key!r} needs {reprlib.repr(argument)}, but the graph has no such key; "
                "make a string argument a separate node"
            )

    def _computes(self, values: list[Any]) -> bool:
        return any(
            self._computes(value) if type(value) is list else is_computation(value) or self.is_key(value)
            for value in values
        )


def is_computation(value: object) -> bool:
    return type(value) is tuple and bool(value) and callable(value[0])


def too_deep(key: Key) -> UsageError:
    text = "its lists and computations contain themselves or are nested too deeply: make inner ones separate nodes"
    return UsageError(f"key {key!r} cannot be computed: {text}")


# -- Dask nodes, on a worker


class NodeCall:
    __slots__ = ("keys", "node")

    def __init__(self, node: Any, keys: tuple[Hashable, ...]) -> None:
        self.node = node
        self.keys = keys

    def __reduce__(self) -> tuple[Any, ...]:
        return NodeCall, (self.node, self.keys)

    def __call__(self, *values: Any) -> Any:
        return self.node(dict(zip(self.keys, values, strict=True)))


class NodeFunction:
    """The function of a node's task. Nodes with the same name share the function, so their tasks share a template."""

    def __init__(self, name: str) -> None:
        self.__qualname__ = name

    def __call__(self, call: NodeCall, *values: Any) -> Any:
        return call(*values)
