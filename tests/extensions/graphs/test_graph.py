"""Valid graphs and their order, and graphs rejected before anything is sent."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from scaler.errors import UsageError
from scaler.extensions.graphs.plan import Plan


def add(a: Any, b: Any) -> Any:
    return a + b


def run(graph: dict[Any, Any], keys: list[Any]) -> dict[Any, Any]:
    """Run a plan locally, like its tasks."""
    plan = Plan(graph, keys)
    values = dict(plan.values)
    for key, (function, *arguments) in plan.nodes.items():
        filled = pickle.loads(pickle.dumps([plan.fill(argument, values) for argument in arguments]))
        values[key] = function(*filled)
    return {key: values[plan.wanted[key]] for key in keys}


def test_plans_only_needed_keys_in_dependency_order() -> None:
    graph = {"last": (add, "middle", "first"), "middle": (add, "first", "first"), "first": (int,), "other": (int,)}
    plan = Plan(graph, ["last"])
    assert list(plan.nodes) == ["first", "middle", "last"]


def test_key_in_place_of_a_value_is_replaced_by_its_value() -> None:
    graph = {"a": 1, "b": "a", "c": "b", "d": (add, "c", "b"), "e": "d", ("x", 0): "e", "f": ("x", 0), 7: ("x", 0)}
    assert run(graph, ["b", "c", "d", "f", 7]) == {"b": 1, "c": 1, "d": 2, "f": 2, 7: 2}
    assert list(Plan(graph, ["f"]).nodes) == ["d"], "no task is made for another name"
    assert run({"a": "a", "b": "no key", "c": ("no", "key")}, ["a", "b", "c"]) == {
        "a": "a",
        "b": "no key",
        "c": ("no", "key"),
    }


def test_list_in_place_of_a_value_contains_computed_items() -> None:
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
        ({"total": 1}, "total", r"pass a list of keys, such as \['total'\]"),
        ({"a": 1}, [{}], "no such key"),
        ([("a", 1)], ["a"], "not list"),
    ],
)
def test_rejects_invalid_graphs(graph: Any, keys: Any, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        Plan(graph, keys)
