"""Chunks of small graph nodes: their values, the nodes that stay single, and the effects of a failure."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.client.task_future import load_outcome
from scaler.errors import SerializationError
from scaler.extensions.graphs.chunks import (
    CHAINED_SECONDS,
    FIRST_SAMPLES,
    MAX_CHAINED_NODES,
    MAX_CHAINED_SECONDS,
    MAX_NODE_SECONDS,
    MAX_NODES,
    MAX_VALUE_BYTES,
    MIN_LEVELS,
    MIN_NODES,
    SAMPLES,
    GraphCut,
    Levels,
    Measured,
    NodeChunk,
    is_large,
    samples_of,
)
from scaler.extensions.graphs.plan import Plan
from scaler.extensions.graphs.program import ChunkFunction
from scaler.serialization.exceptions import PartFailedError
from scaler.worker.processor.calling import failure_of

Graph = dict[Any, Any]


def add(*values: Any) -> Any:
    return sum(values)


def other(*values: Any) -> Any:
    return -sum(values)


def fail(*values: Any) -> Any:
    raise ValueError(f"bad {values}")


def sent(value: Any) -> Any:
    """Return a value as a task gets it."""
    return pickle.loads(pickle.dumps(value))


def cut_of(graph: Graph, keys: list[Any], size: int, **given: Any) -> tuple[Plan, GraphCut]:
    plan = Plan(graph, keys)
    return plan, GraphCut(plan, Levels(plan, given.pop("alone", set(plan.wanted.values())), **given), size)


def run(plan: Plan, cut: GraphCut, found: Graph | None = None) -> Graph:
    """Run a graph here, as the tasks would; return the values of chunks' tasks and single nodes."""
    found = {**plan.values, **(found or {})}
    for each in cut.order:
        if isinstance(each, NodeChunk):
            function = ChunkFunction(cut.functions)
            each.future = sent(sent(function)(*sent(each.arguments(found))))
            found |= each.values()
        else:
            function, *arguments = plan.nodes[each]
            found[each] = function(*sent([plan.fill(argument, found) for argument in arguments]))
    return found


def chunks_of(cut: GraphCut) -> list[list[Any]]:
    return [each.keys for each in cut.order if isinstance(each, NodeChunk)]


def chain(length: int) -> Graph:
    return {"0": (add,), **{str(each): (add, str(each - 1), 1) for each in range(1, length)}}


# -- which nodes go together -------------------------------------------------------------------------------------------


def test_chain_nodes_are_sent_together_except_the_wanted_one() -> None:
    plan, cut = cut_of(chain(8), ["7"], 3)
    assert chunks_of(cut) == [["0", "1", "2"], ["3", "4", "5"]]
    assert run(plan, cut)["7"] == 7
    values = [each.future for each in cut.order if isinstance(each, NodeChunk)]
    assert values == [[None, None, 2], [None, None, 5]], "no other value is needed"


# -- results -----------------------------------------------------------------------------------------------------------


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Graph, list[Any]]:
    """Return a graph with keys and values of several kinds, names of names, lists and computations."""
    names: list[Any] = ["v", 7, ("x", 0)]
    graph: Graph = {"v": 3, 7: 5, ("x", 0): 11}
    for number in range(draw(st.integers(1, 30))):
        key = draw(st.sampled_from([f"n{number}", ("n", number), 100 + number]))
        arguments = draw(st.lists(st.sampled_from(names), max_size=4))
        kind = draw(st.integers(0, 9))
        if kind == 0:
            graph[key] = draw(st.sampled_from(names))
        elif kind == 1:
            graph[key] = (sum, list(arguments))
        elif kind == 2:
            graph[key] = (add, (other, *arguments), *arguments)
        elif kind == 3:
            graph[key] = (add, *arguments, *draw(st.lists(st.sampled_from([0.5, True, 1, -1j]), max_size=3)))
        else:
            graph[key] = (draw(st.sampled_from([add, other])), *arguments)
        names.append(key)
    return graph, draw(st.lists(st.sampled_from(names), min_size=1, max_size=3))


@given(graphs(), st.integers(2, 12), st.data())
def test_chunks_return_the_same_as_single_nodes(made: tuple[Graph, list[Any]], size: int, data: st.DataObject) -> None:
    graph, keys = made
    plan = Plan(graph, keys)
    single = dict(plan.values)
    for key, (function, *arguments) in plan.nodes.items():
        single[key] = function(*sent([plan.fill(argument, single) for argument in arguments]))
    nodes = list(plan.nodes)
    own = set(data.draw(st.lists(st.sampled_from(nodes)))) if nodes else set()
    samples = samples_of(plan, own) if data.draw(st.booleans()) else {}
    is_small: Callable[[Any], bool] = (lambda function: function is add) if data.draw(st.booleans()) else bool
    cut = GraphCut(plan, Levels(plan, {*plan.wanted.values(), *own}, samples, is_small), size)
    found = run(plan, cut, {key: single[key] for key in samples})
    wanted = plan.wanted.values()
    assert [(type(found[key]), found[key]) for key in wanted] == [(type(single[key]), single[key]) for key in wanted]
    ordered = [key for each in cut.order for key in (each.keys if isinstance(each, NodeChunk) else [each])]
    assert sorted(map(repr, [*ordered, *samples])) == sorted(map(repr, nodes)), "each node runs once"


def grown(values: list[int]) -> list[int]:
    values.append(len(values))
    return values


def test_node_cannot_change_an_argument_of_other_nodes() -> None:
    graph = {
        "made": (list,),
        "a": (grown, "made"),
        "b": (grown, "made"),
        "c": (grown, "a"),
        "d": (add, (len, "a")),
        "value": [5],
        "e": (grown, "value"),
        "f": (grown, "value"),
        "all": (dict.fromkeys, "names"),
        "names": ("x", "y"),
        **{f"last {name}": (pickle.dumps, name) for name in "abcef"},
    }
    plan, cut = cut_of(graph, [f"last {name}" for name in "abcef"], 10)
    assert chunks_of(cut)
    found = run(plan, cut)
    assert [pickle.loads(found[f"last {name}"]) for name in "abcef"] == [[0], [0], [0, 1], [5, 1], [5, 1]]


def kind(value: Any) -> str:
    return type(value).__name__


CALLS: list[int] = []


def calls() -> list[int]:
    CALLS.append(len(CALLS))
    return CALLS


def test_value_is_captured_when_its_node_returns() -> None:
    CALLS.clear()
    graph = {"a": (calls,), "b": (calls,), "x": (len, "a"), "y": (len, "b"), "z": (add, "x", "y")}
    plan, cut = cut_of(graph, ["x", "y"], 10)
    assert chunks_of(cut) == [["a", "b"]]
    found = run(plan, cut)
    assert (found["x"], found["y"]) == (1, 2)


# -- failures ----------------------------------------------------------------------------------------------------------


def failure(graph: Graph, keys: list[Any]) -> tuple[BaseException, Any]:
    """Return the exception of a node as received by the client, and the key of the node."""
    plan, cut = cut_of(graph, keys, 10)
    with pytest.raises(PartFailedError) as caught:
        run(plan, cut)
    _, arrived = load_outcome(*failure_of(caught.value), None)
    assert isinstance(arrived, PartFailedError)
    return arrived.raised, chunks_of(cut)[0][arrived.number]


def test_node_that_raises_ends_its_chunk_and_is_identified() -> None:
    graph = {"v": 1, "a": (add, "v"), "b": (fail, "a"), "c": (add, "b"), "d": (add, "c")}
    error, key = failure(graph, ["d"])
    assert (repr(error), key) == ("ValueError('bad (1,)')", "b")
    assert "raise ValueError" in str(error.__cause__)


def test_node_with_an_unsendable_value_is_identified() -> None:
    error, key = failure({"b": (add, 1), "a": (threading.Lock,), "x": (add, "b"), "y": (str, "a")}, ["x", "y"])
    assert (
        str(error) == "the result (_thread.lock) cannot be serialized: TypeError: cannot pickle '_thread.lock' object"
    )
    assert (type(error), key) == (SerializationError, "a")


# -- which graphs have chunks ------------------------------------------------------------------------------------------


def test_samples_are_first_nodes_of_each_function_without_dependencies() -> None:
    graph = chain(2 * FIRST_SAMPLES) | {"o": (other, "2"), "p": (other, str(2 * FIRST_SAMPLES - 1))}
    plan = Plan(graph, ["p", "o"])
    assert list(samples_of(plan, ())) == [*map(str, range(SAMPLES)), "o"]
    assert list(samples_of(plan, {"1"})) == ["0"]
    graph = {str(each): (add if each < 2 * FIRST_SAMPLES else other, each) for each in range(3 * FIRST_SAMPLES)}
    found = samples_of(Plan(graph, list(graph)), ())
    assert list(found) == [*map(str, range(FIRST_SAMPLES)), *(str(2 * FIRST_SAMPLES + each) for each in range(SAMPLES))]


def test_long_chains_are_measured_and_other_small_graphs_are_not() -> None:
    wide = {str(each): (add, each) for each in range(MIN_LEVELS)}
    graphs = chain(MIN_LEVELS), chain(MIN_LEVELS + 1), wide | {"all": (add, *wide)}
    assert [is_large(Plan(graph, [list(graph)[-1]]), len(graph) - 1) for graph in graphs] == [False, True, False]
    assert is_large(Plan(wide, wide), MIN_NODES)


@pytest.mark.parametrize(
    ("seconds", "size_bytes", "is_small"),
    [
        ([MAX_NODE_SECONDS] * 2 + [1.0], MAX_VALUE_BYTES, True),
        ([MAX_NODE_SECONDS] + [2 * MAX_NODE_SECONDS] * 2, 1, False),
        ([0.0], MAX_VALUE_BYTES + 1, False),
    ],
)
def test_functions_with_calls_cheaper_than_a_task_are_small(
    seconds: list[float], size_bytes: int, is_small: bool
) -> None:
    measured = Measured()
    for each in seconds:
        measured.add(add, each, size_bytes)
        measured.add(fail, float("inf"), 0)
    assert measured.is_small(add) is is_small
    assert not measured.is_small(fail)
    assert not measured.is_small(other), "an unmeasured function is not small"


def test_chunks_of_a_chain_have_longer_nodes_and_more_of_them() -> None:
    chained, wide = Measured(range(1, SAMPLES + 1)), Measured([1] * FIRST_SAMPLES)
    for measured in (chained, wide):
        measured.add(add, MAX_CHAINED_SECONDS / 4, 1)
        measured.add(other, MAX_CHAINED_SECONDS, 1)
    assert [each.is_small(other) for each in (chained, wide)] == [True, False]
    assert [each.size for each in (chained, wide)] == [MAX_NODES, MAX_NODES]
    for seconds, size in ((CHAINED_SECONDS / 1000, 1000), (0.0, MAX_CHAINED_NODES)):
        chained = Measured(range(1, SAMPLES + 1))
        chained.add(add, seconds, 1)
        assert chained.size == size
