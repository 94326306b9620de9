"""Graphs as written by Dask users, on a real worker, and rejections before anything is sent."""

from __future__ import annotations

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
def client(cluster: SchedulerClusterCombo) -> Iterator[Client]:
    with Client(cluster.get_address(), timeout_seconds=SECONDS) as connected:
        yield connected


def inc(x: int) -> int:
    return x + 1


def add(x: Any, y: Any) -> Any:
    return x + y


def fail(x: Any) -> None:
    raise ValueError(f"bad {x}")


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
        ({"a": 1, "b": "a", "x": (inc, "b")}, 2),
        ({"a": 1, "x": ["a", (inc, "a"), "text"]}, [1, 2, "text"]),
        ({"a": 1, "x": (dict, {"a": "a"})}, {"a": "a"}),
        ({"a": 1, "x": (add, ("a",), ("b", 2))}, ("a", "b", 2)),
        ({"a": (later, 1), "x": (add, (later, "a"), 0)}, 3),
    ],
)
def test_graph_has_the_same_meaning_as_in_dask(client: Client, graph: dict[Any, Any], expected: Any) -> None:
    wanted = list(graph)[-1]
    assert client.get(graph, [wanted]) == {wanted: expected}


def test_task_with_too_many_futures_is_refused_with_a_remedy(
    client: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("scaler.client.futures.MAX_REFERENCES", 3)
    slow = client.submit(one_at, tmp_path / "gate")
    waiting = [client.submit(add, slow, number) for number in range(4)]
    with pytest.raises(LimitError, match=r"4 futures and objects, more than MAX_REFERENCES = 3: combine"):
        client.submit(max, *waiting)
    total = client.submit(sum, waiting[:3])
    (tmp_path / "gate").touch()
    assert total.result() == 6


def test_wanted_keys_may_be_aliases_and_keep_their_order(client: Client) -> None:
    graph = {"a": (inc, 1), "b": "a", "c": (inc, "b")}
    assert list(client.get(graph, ["c", "b", "a"]).items()) == [("c", 3), ("b", 2), ("a", 2)]
    assert client.get(graph, []) == {}
    assert client.get(graph, ["c", "a", "c"]) == {"c": 3, "a": 2}


def test_only_needed_nodes_run_and_each_runs_once(client: Client, tmp_path: Path) -> None:
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
def test_names_a_failing_node_in_any_position(client: Client, block: bool) -> None:
    graph = {"a": 1, ("b", 0): (fail, "a"), "c": (inc, ("b", 0)), "d": (add, "c", ("b", 0)), "e": (inc, "a")}
    futures = {} if block else client.get(graph, ["e", "d"], block=False)
    with pytest.raises(ValueError, match="bad 1") as caught:
        client.get(graph, ["d"]) if block else futures["d"].result(SECONDS)
    did_not_run = "node 'd' did not run because its input node ('b', 0) failed"
    assert caught.value.__notes__ == ["in node ('b', 0) of the graph", did_not_run]
    assert client.get(graph, ["e"]) == {"e": 2}


def test_cancelling_a_node_cancels_only_its_dependents(client: Client) -> None:
    graph = {"slow": (time.sleep, 60), "needs": (add, "slow", 1), "free": (inc, 1)}
    futures = client.get(graph, ["needs", "free", "slow"], block=False)
    assert futures["slow"].cancel()
    assert futures["free"].result(SECONDS) == 2
    with pytest.raises(CancelledError):
        futures["needs"].result(SECONDS)


@pytest.mark.parametrize(
    ("graph", "keys", "text"),
    [
        ({"a": (inc, "b"), "b": (inc, "a")}, ["a"], "'a' -> 'b' -> 'a'"),
        ({"a": (inc, "nowhere")}, ["a"], "'a' needs 'nowhere'"),
        ({"a": (inc, 1)}, ["b"], "no such key"),
        ({"a": (inc, 1), "b": (add, "a", threading.Lock())}, ["b"], "lock"),
    ],
)
def test_nothing_of_a_rejected_graph_is_sent(graph: dict[str, Any], keys: list[str], text: str) -> None:
    with RigScheduler() as scheduler, Client(scheduler.address) as client:
        with pytest.raises((UsageError, TypeError), match=text):
            client.get(graph, keys)
        future = client.submit(abs, -1)
        assert set(scheduler.next_tasks(1)) == {future.task_id}, "the rejected graph has sent a task"


def test_long_chain_runs_and_a_longer_one_is_sent_whole(client: Client) -> None:
    graph: dict[int, Any] = {0: 0.5} | {key: (inc, key - 1) for key in range(1, 10_000)}
    assert client.get(graph, [500]) == {500: 500.5}
    with RigScheduler() as scheduler, Client(scheduler.address) as other:
        last = other.get(graph, [9_999], block=False)[9_999]
        assert list(scheduler.next_tasks(9_999))[-1] == last.task_id
