"""Graphs as Dask's users write them, on a real worker; and what is refused before anything is sent."""

from __future__ import annotations

import gc
import resource
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import pytest

from scaler import Client, SchedulerClusterCombo
from scaler.errors import LimitError, UsageError
from tests.integration.client_rig import RigScheduler
from tests.waiting import wait_for_file

SECONDS = 20


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with (
        SchedulerClusterCombo(n_workers=1) as combo,
        Client(combo.get_address(), timeout_seconds=SECONDS) as connected,
    ):
        yield connected


def inc(x: int) -> int:
    return x + 1


def add(x: Any, y: Any) -> Any:
    return x + y


def pair(x: Any, y: Any) -> Any:
    return x, y


def fail(x: Any) -> None:
    raise ValueError(f"bad {x}")


def apply(function: Any, x: Any) -> Any:
    return function(x)


def note(path: str) -> int:
    with Path(path).open("a") as file:
        file.write("x")
    return 1


async def later(x: int) -> int:
    return x + 1


def one_at(gate: Path) -> int:
    wait_for_file(gate)
    return 1


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        ({"a": 1, "b": 2, "c": 3, "x": (add, (inc, "a"), (sum, ["b", "c"]))}, 7),
        ({"a": 1, "b": 2, "c": 3, "x": (list, [["b", ["c"]], (inc, "a"), 9])}, [[2, [3]], 2, 9]),
        ({("a", 0): 1, ("a", 1): (inc, ("a", 0)), "x": (add, ("a", 1), ("a", 0))}, 3),
        ({0: 5, 1: (inc, 0), "x": (add, 1, 0)}, 11),
        ({inc: 5, "x": (add, inc, 1)}, 6),
        ({"f": inc, "x": (apply, "f", 1)}, 2),
        ({"f": len}, len),
        ({"a": 1, "b": "a", "x": (inc, "b")}, 2),
        ({"a": 1, "x": ["a", (inc, "a"), "text"]}, [1, 2, "text"]),
        ({"a": (inc, 1), "b": "a", "x": "b"}, 2),
        ({"a": 1, "x": (dict, {"a": "a"})}, {"a": "a"}),
        ({"a": 1, "x": (add, ("a",), ("b", 2))}, ("a", "b", 2)),
        ({"a": (later, 1), "x": (add, (later, "a"), 0)}, 3),
    ],
)
def test_a_graph_means_what_it_means_to_dask(client: Client, graph: dict[Any, Any], expected: Any) -> None:
    wanted = list(graph)[-1]
    assert client.get(graph, [wanted]) == {wanted: expected}


@pytest.mark.parametrize("as_list", [False, True])
def test_a_task_with_too_many_futures_is_refused_with_what_to_do(
    client: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, as_list: bool
) -> None:
    monkeypatch.setattr("scaler.client.futures.MAX_REFERENCES", 3)
    slow = client.submit(one_at, tmp_path / "gate")
    waiting = [client.submit(add, slow, number) for number in range(4)]
    with pytest.raises(LimitError, match=r"4 futures and objects, and MAX_REFERENCES is 3: combine them in several"):
        client.submit(max, *([waiting] if as_list else waiting))
    total = client.submit(sum, waiting[:3])
    (tmp_path / "gate").touch()
    assert total.result() == 6


def test_wanted_keys_may_be_names_of_one_value_and_come_in_their_order(client: Client) -> None:
    graph = {"a": (inc, 1), "b": "a", "c": (inc, "b")}
    assert list(client.get(graph, ["c", "b", "a"]).items()) == [("c", 3), ("b", 2), ("a", 2)]
    assert client.get(graph, []) == {}
    assert client.get(graph, ["c", "a", "c"]) == {"c": 3, "a": 2}


def test_only_what_is_needed_runs_and_it_runs_once(client: Client, tmp_path: Path) -> None:
    needed, other = str(tmp_path / "needed"), str(tmp_path / "other")
    graph = {"n": (note, ("path", needed)), "o": (fail, 1), "x": (add, "n", "n"), "y": (add, "x", "n")}
    graph["n"] = (lambda: note(needed),)
    graph["o"] = (lambda: note(other),)
    assert client.get(graph, ["y", "x"]) == {"y": 3, "x": 2}
    assert Path(needed).read_text() == "x"
    assert not Path(other).exists()


def test_futures_and_references_are_values_of_a_graph(client: Client) -> None:
    future, reference = client.submit(inc, 1), client.send_object([1, 2])
    graph = {"f": future, "r": reference, "x": (add, "f", (len, "r")), "y": (add, future, (len, reference))}
    assert client.get(graph, ["x", "y", "f", "r"]) == {"x": 4, "y": 4, "f": 2, "r": [1, 2]}


@pytest.mark.parametrize("block", [True, False])
def test_a_failing_node_is_named_whatever_needed_it(client: Client, block: bool) -> None:
    graph = {"a": 1, ("b", 0): (fail, "a"), "c": (inc, ("b", 0)), "d": (add, "c", ("b", 0)), "e": (inc, "a")}
    futures = {} if block else client.get(graph, ["e", "d"], block=False)
    with pytest.raises(ValueError, match="bad 1") as caught:
        client.get(graph, ["d"]) if block else futures["d"].result(SECONDS)
    did_not_run = "node 'd' did not run because its input node ('b', 0) failed"
    assert caught.value.__notes__ == ["in node ('b', 0) of the graph", did_not_run]
    assert client.get(graph, ["e"]) == {"e": 2}


def test_a_bar_counts_the_computations_that_have_ended(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    graph = {"a": 1, "b": (inc, "a"), "c": (inc, "b"), "bad": (fail, "a"), "other": (inc, 5)}
    assert client.get(graph, ["c", "b"], progress=True) == {"c": 3, "b": 2}
    assert "2/2" in capsys.readouterr().err
    with pytest.raises(ValueError, match="bad 1"):
        client.get(graph, ["bad"], progress=True)
    assert "failed=1" in capsys.readouterr().err


def test_the_cancel_of_a_node_takes_what_needs_it_and_nothing_else(client: Client) -> None:
    graph = {"slow": (time.sleep, 60), "needs": (add, "slow", 1), "free": (inc, 1)}
    futures = client.get(graph, ["needs", "free", "slow"], block=False)
    assert futures["slow"].cancel()
    assert futures["free"].result(SECONDS) == 2
    with pytest.raises(CancelledError):
        futures["needs"].result(SECONDS)


def test_a_client_that_is_left_cancels_what_is_pending_of_its_graphs() -> None:
    graph = {"slow": (time.sleep, 60), "needs": (add, "slow", 1)}
    with RigScheduler() as scheduler, Client(scheduler.address) as client:
        futures = client.get(graph, ["needs", "slow"], block=False)
    assert [future.cancelled() for future in futures.values()] == [True, True]


@pytest.mark.parametrize(
    ("graph", "keys", "text"),
    [
        ({"a": (inc, "b"), "b": (inc, "a")}, ["a"], "'a' -> 'b' -> 'a'"),
        ({"a": (inc, "nowhere")}, ["a"], "'a' needs 'nowhere'"),
        ({"a": (inc, 1)}, ["b"], "no such key"),
        ({"a": (inc, 1), "b": (add, "a", threading.Lock())}, ["b"], "lock"),
    ],
)
def test_nothing_is_sent_of_a_graph_that_is_refused(graph: dict[str, Any], keys: list[str], text: str) -> None:
    with RigScheduler() as scheduler, Client(scheduler.address) as client:
        with pytest.raises((UsageError, TypeError), match=text):
            client.get(graph, keys)
        future = client.submit(abs, -1)
        assert set(scheduler.next_tasks(1)) == {future.task_id}, "the first task that comes is none of the graph"


def test_a_long_chain_runs_and_a_longer_one_is_sent_whole(client: Client) -> None:
    graph: dict[int, Any] = {0: 0.5} | {key: (inc, key - 1) for key in range(1, 10_000)}
    assert client.get(graph, [500]) == {500: 500.5}
    with RigScheduler() as scheduler, Client(scheduler.address) as other:
        last = other.get(graph, [9_999], block=False)[9_999]
        assert list(scheduler.next_tasks(9_999))[-1] == last.task_id


def test_a_hundred_thousand_nodes_in_one_graph(client: Client) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    graph: dict[Any, Any] = {"first": 1} | {("x", number): (inc, "first") for number in range(100_000)}
    graph |= {("sum", number): (sum, [("x", 10 * number + each) for each in range(10)]) for number in range(10_000)}
    graph["all"] = (sum, [("sum", number) for number in range(10_000)])
    graph["last"] = (add, "all", ("x", 99_999))
    assert client.get(graph, ["last", ("x", 50_000)]) == {"last": 200_002, ("x", 50_000): 2}
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400 * 1024, "kilobytes: 4 KB for each node"


def test_values_that_are_equal_and_of_other_types_stay_apart_beside_futures(client: Client) -> None:
    values: list[Any] = [1, True, 1.0, 0, False, 0.0, -0.0, None]
    graph: dict[Any, Any] = {"n": (inc, 1)} | {place: (pair, "n", value) for place, value in enumerate(values, 100)}
    found = client.get(graph, list(range(100, 100 + len(values))))
    assert [repr(each) for each in found.values()] == [repr((2, value)) for value in values]


def test_a_graph_leaves_the_garbage_collector_as_it_was(client: Client) -> None:
    assert gc.isenabled()
    client.get({"n": (inc, 1)}, ["n"])
    assert gc.isenabled()
    with pytest.raises(UsageError):
        client.get({"n": (inc, "m"), "m": (inc, "n")}, ["n"])
    assert gc.isenabled()
    gc.disable()
    try:
        client.get({"n": (inc, 1)}, ["n"])
        assert not gc.isenabled()
    finally:
        gc.enable()
