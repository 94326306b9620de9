"""Chunks of small graph nodes on a real worker: the user only notices the speed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scaler import Client, SchedulerClusterCombo
from scaler.client.futures import FutureTable
from scaler.client.task_future import TaskFuture
from scaler.errors import ProcessorDiedError, UsageError
from scaler.extensions.graphs import chunks
from scaler.extensions.graphs.chunks import MIN_NODES
from tests.waiting import wait_for_file

SECONDS = 20


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with SchedulerClusterCombo(n_workers=1) as combo:
        yield combo.get_address()


@pytest.fixture
def client(address: str) -> Iterator[Client]:
    with Client(address, timeout_seconds=SECONDS) as connected:
        yield connected


def add(*values: Any) -> Any:
    return sum(values)


def fail(*values: Any) -> None:
    raise ValueError(f"bad {values}")


def die() -> None:
    os._exit(1)


def slowly(*values: int) -> int:
    time.sleep(0.001)  # a duration that decides how many nodes a chunk has
    return sum(values)


def opened(path: str, value: int) -> int:
    wait_for_file(Path(path))
    if value < 0:
        raise ValueError("below 0")
    return value


def chunks_of(client: Client, function: str) -> int:
    """Return how many chunks of a function's nodes this client has sent so far."""
    own = client.identity.hex()
    return sum(row.id.startswith(own) for row in client.tasks(name=f"{function} (chunks)"))


def levels(function: Any, count: int, width: int) -> tuple[dict[str, Any], list[str]]:
    """Return a graph with this many levels over two values, and the keys of the last level."""
    graph: dict[str, Any] = {"one": 1, "two": 2}
    before = ["one", "two"]
    for level in range(count):
        names = [f"{level} {number}" for number in range(width)]
        graph |= {name: (function, before[0], before[number % len(before)]) for number, name in enumerate(names)}
        before = names
    return graph, before


def values_of(graph: dict[str, Any], keys: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, node in graph.items():
        found[key] = sum(found[each] for each in node[1:]) if isinstance(node, tuple) else node
    return {key: found[key] for key in keys}


def test_inner_nodes_are_batched_and_wanted_ones_sent_alone(client: Client) -> None:
    graph, keys = levels(add, 5, 10)
    assert client.get(graph, keys, chunk_size=5) == values_of(graph, keys)
    assert chunks_of(client, "add") == 8
    assert len([row for row in client.tasks(name="add") if row.id.startswith(client.identity.hex())]) == len(keys)


def test_large_graphs_of_short_calls_without_a_chunk_size_use_chunks(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "WAIT_SECONDS", SECONDS)  # this machine may be busy
    monkeypatch.setattr(chunks, "MAX_NODE_SECONDS", SECONDS)
    graph, keys = levels(add, 11, MIN_NODES // 10)
    assert client.get(graph, keys) == values_of(graph, keys)
    assert chunks_of(client, "add") > 1


def test_slow_calls_without_a_chunk_size_are_separate_tasks(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "MIN_NODES", 15)
    monkeypatch.setattr(chunks, "WAIT_SECONDS", SECONDS)
    graph, keys = levels(slowly, 15, 10)
    assert client.get(graph, keys) == values_of(graph, keys)
    assert not chunks_of(client, "slowly")
    assert len(client.tasks(name="slowly")) == 150, "measured nodes ran once"


@pytest.mark.parametrize("chunk_size", [1, 3])
def test_node_failure_is_reported_alike_with_and_without_chunks(client: Client, chunk_size: int) -> None:
    graph = {"a": 1, ("b", 0): (fail, "a"), "c": (add, ("b", 0)), "d": (add, "c"), "e": (add, "d"), "f": (add, "e")}
    with pytest.raises(ValueError, match=r"bad \(1,\)") as caught:
        client.get(graph, ["f"], chunk_size=chunk_size)
    did_not_run = "node 'f' did not run because its input node ('b', 0) failed"
    assert caught.value.__notes__ == ["in node ('b', 0) of the graph", did_not_run]


def test_node_that_kills_its_process_fails_its_chunk(client: Client) -> None:
    graph = {"a": (die,), "b": (add, 1), "c": (add, "a", "b")}
    with pytest.raises(ProcessorDiedError) as caught:
        client.get(graph, ["c"], chunk_size=2, losses=0)
    did_not_run = "node 'c' did not run because its input node 'a' or another node of its chunk failed"
    assert caught.value.__notes__ == ["in node 'a' or another node of its chunk of the graph", did_not_run]


def test_nodes_with_options_are_separate_tasks(client: Client) -> None:
    graph = {"a": (add, 1), "b": (add, "a"), "c": (add, "b"), "d": (add, "c"), "e": (add, "d"), "f": (add, "e")}
    assert client.get(graph, ["f"], chunk_size=9, node_options={"c": {"name": "own", "retry_on": OSError}}) == {"f": 1}
    assert chunks_of(client, "add") == 2
    assert [row.function for row in client.tasks(name="own")] == ["own"]


def test_progress_bar_counts_nodes_in_chunks(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    graph, keys = levels(add, 5, 10)
    client.get(graph, keys, chunk_size=7, progress=True)
    assert "50/50" in capsys.readouterr().err


def test_chunk_size_is_an_integer_above_zero(client: Client) -> None:
    with pytest.raises(UsageError, match="chunk_size is 0, but must be an integer of at least 1"):
        client.get({"a": (add, 1)}, ["a"], chunk_size=0)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"block": False}, "block=False"),
        ({"expected_seconds": 1.0}, "expected_seconds"),
        ({"profiling": True}, "profiling"),
        ({"retries": 0}, "retries=0"),
    ],
)
def test_chunk_size_without_effect_is_refused(client: Client, options: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=f"chunk_size is 2, but with {why}, each call is a task"):
        client.get({"a": (add, 1)}, ["a"], chunk_size=2, **options)


# -- measurements ------------------------------------------------------------------------------------------------------


class OnlyOnWorkers:
    """Represents a value that needs a resource its client lacks, such as a GPU."""

    def __init__(self, number: int, client: int) -> None:
        self.number, self.client = number, client

    def __reduce__(self) -> tuple[Any, ...]:
        return load_on_workers, (self.number, self.client)


def load_on_workers(number: int, client: int) -> OnlyOnWorkers:
    if os.getpid() == client:
        raise RuntimeError("no GPU here")
    return OnlyOnWorkers(number, client)


def number_of(value: OnlyOnWorkers) -> int:
    return value.number


@pytest.mark.parametrize("late", [False, True])
def test_measured_values_are_not_loaded_locally(client: Client, monkeypatch: pytest.MonkeyPatch, late: bool) -> None:
    monkeypatch.setattr(chunks, "MIN_NODES", 10)
    monkeypatch.setattr(chunks, "WAIT_SECONDS", 0.0 if late else SECONDS)
    monkeypatch.setattr(chunks, "FIRST_SAMPLES", 0)
    prepare_now = FutureTable.prepare
    made: list[TaskFuture] = []

    def prepare_late(self: FutureTable, *arguments: Any, **given: Any) -> TaskFuture:
        if late and given.get("node") == ("all",):  # measured tasks end before all tasks are created
            self.wait_ended([each for each in made if each.delivers], SECONDS)
        made.append(prepare_now(self, *arguments, **given))
        return made[-1]

    monkeypatch.setattr(FutureTable, "prepare", prepare_late)
    graph: dict[str, Any] = {"v": 1, "pid": os.getpid()}
    graph |= {f"a{number}": (OnlyOnWorkers, "v", "pid") for number in range(20)}
    graph |= {f"b{number}": (number_of, f"a{number}") for number in range(20)}
    graph |= {f"c{number}": (number_of, f"a{number}") for number in range(20)}
    graph["all"] = (add, *(f"{letter}{number}" for letter in "bc" for number in range(20)))
    assert client.get(graph, ["all"]) == {"all": 40}


# -- values that come while a graph is prepared ------------------------------------------------------------------------


@pytest.mark.parametrize("chunk_size", [1, 9])
def test_graph_value_that_fails_early_fails_its_dependents(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_size: int
) -> None:
    go = tmp_path / "go"
    value = client.submit(opened, str(go), -5)
    ends_before_the_next_add(monkeypatch, go, value)
    graph = {"v": value, "a": (add, "v", 1), "b": (add, "a"), "c": (add, "b"), "d": (add, 2)}
    with pytest.raises(ValueError, match="below 0"):
        client.get(graph, ["c", "d"], chunk_size=chunk_size)


def ends_before_the_next_add(monkeypatch: pytest.MonkeyPatch, go: Path, value: Any) -> None:
    add_now = FutureTable.add

    def add_later(self: FutureTable, futures: Any) -> bool:
        go.touch()
        value.exception(SECONDS)
        return add_now(self, futures)

    monkeypatch.setattr(FutureTable, "add", add_later)
