"""Which graphs run, in which order, and which are refused before anything is sent."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from scaler.client.graph_plan import Plan
from scaler.errors import UsageError


def add(a: Any, b: Any) -> Any:
    return a + b


def run(graph: dict[Any, Any], keys: list[Any]) -> dict[Any, Any]:
    """Run a plan here, as the tasks would."""
    plan = Plan(graph, keys)
    values = dict(plan.values)
    for key, (function, *arguments) in plan.nodes.items():
        filled = pickle.loads(pickle.dumps([plan.fill(argument, values) for argument in arguments]))
        values[key] = function(*filled)
    return {key: values[plan.wanted[key]] for key in keys}


def test_values_callables_and_computations() -> None:
    graph = {"a": 2, "b": [1, "x"], "c": (add, "a", "a"), "d": (add, "c", 10), "f": add}
    assert run(graph, ["d", "b", "f"]) == {"d": 14, "b": [1, "x"], "f": add}


def test_only_what_the_keys_need_is_planned_and_each_comes_after_its_needs() -> None:
    graph = {"last": (add, "middle", "first"), "middle": (add, "first", "first"), "first": (int,), "other": (int,)}
    plan = Plan(graph, ["last"])
    assert list(plan.nodes) == ["first", "middle", "last"]


def test_a_value_counts_once_of_each_computation_that_needs_it() -> None:
    plan = Plan({"a": 1, "b": "a", "c": (add, "a", "b"), "d": (add, "c", "a")}, ["d"])
    assert plan.uses == {"a": 2}


def test_lists_and_inner_computations_of_keys() -> None:
    graph = {("x", 0): 1, ("x", 1): (add, ("x", 0), 1), "sum": (sum, [("x", 0), ("x", 1), (add, ("x", 1), 5)])}
    assert run(graph, ["sum"]) == {"sum": 10}


def test_a_key_in_the_place_of_a_value_stands_for_that_keys_value() -> None:
    graph = {"a": 1, "b": "a", "c": "b", "d": (add, "c", "b"), "e": "d", ("x", 0): "e", "f": ("x", 0), 7: ("x", 0)}
    assert run(graph, ["b", "c", "d", "f", 7]) == {"b": 1, "c": 1, "d": 2, "f": 2, 7: 2}
    assert list(Plan(graph, ["f"]).nodes) == ["d"], "no task is made for another name"
    assert run({"a": "a", "b": "no key", "c": ("no", "key")}, ["a", "b", "c"]) == {
        "a": "a",
        "b": "no key",
        "c": ("no", "key"),
    }


def test_a_list_in_the_place_of_a_value_holds_what_its_keys_and_computations_give() -> None:
    graph = {"a": 1, "list": ["a", (add, "a", 5), [("a", 2), "text", "sum"]], "sum": (add, "a", 1), "plain": [1, "x"]}
    assert run(graph, ["list", "plain"]) == {"list": [1, 6, [("a", 2), "text", 2]], "plain": [1, "x"]}


@pytest.mark.parametrize(
    ("graph", "keys", "text"),
    [
        ({"a": 1}, ["b"], "no such key"),
        ({"a": (add, "b", 1)}, ["a"], "'a' needs 'b'"),
        ({"a": (sum, ["b"])}, ["a"], "'a' needs 'b'"),
        ({"a": (add, "b", 1), "b": (add, "c", "c"), "c": (add, "a", 1)}, ["b"], "'b' -> 'c' -> 'a' -> 'b'"),
        ({"a": (add, "a", 1)}, ["a"], "'a' -> 'a'"),
        ({"a": "b", "b": "c", "c": "a"}, ["a"], "'a' -> 'b' -> 'c' -> 'a'"),
        ({"a": ["b"], "b": (add, "a", 1)}, ["a"], "'a' -> 'b' -> 'a'"),
        ({"total": 1}, "total", r"give a list of keys, such as \['total'\]"),
        ({"a": 1}, [{}], "no such key"),
        ([("a", 1)], ["a"], "not list"),
    ],
)
def test_graphs_that_cannot_be_are_refused(graph: Any, keys: Any, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        Plan(graph, keys)


def test_a_fault_in_what_the_keys_do_not_need_disturbs_nobody() -> None:
    assert run({"a": 1, "bad": (add, "nowhere", 1)}, ["a"]) == {"a": 1}


def test_a_chain_of_twenty_thousand_is_planned_without_recursion() -> None:
    graph: dict[int, Any] = {0: 0} | {key: (add, key - 1, 1.5) for key in range(1, 20_000)}
    plan = Plan(graph, [19_999])
    assert list(plan.nodes) == list(range(1, 20_000))


def test_a_long_cycle_is_shown_by_its_ends() -> None:
    graph = {key: (add, (key + 1) % 1000, 0.5) for key in range(1000)}
    with pytest.raises(UsageError, match=r"0 -> 1 -> .* -> \.\.\. -> .* -> 0$"):
        Plan(graph, [0])
