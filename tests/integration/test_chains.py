"""Chains of short tasks, each with the value of the one before, on a real cluster."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import pytest

from scaler import Client, SchedulerClusterCombo
from tests.waiting import wait_for_file

LENGTH = 300


@pytest.fixture(scope="module")
def client(cluster: SchedulerClusterCombo) -> Iterator[Client]:
    """A client of workers that know the functions to be short."""
    with Client(cluster.get_address(), timeout_seconds=60) as client:
        for function, arguments in (
            (grow, ("",)),
            (fail_at, (0, -1)),
            (die_at, (0, -1, Path())),
            (wait_at, (0, -1, Path())),
        ):
            client.starmap(function, [arguments] * 50)
        yield client


def fail_at(number: int, last: int) -> int:
    if number == last:
        raise ValueError(f"no number follows {last}")
    return number + 1


def die_at(number: int, place: int, note: Path) -> int:
    """Kill the process, the first time that the number is this one."""
    if number == place and not note.exists():
        note.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number + 1


def wait_at(number: int, place: int, go: Path) -> int:
    """Wait for a file when the number is this one."""
    if number == place:
        wait_for_file(go)
    return number + 1


def grow(text: str) -> str:
    return text + 100 * "x"


def chain(function: Callable[..., Any], first: object, *arguments: object) -> dict[str, Any]:
    """Return a graph of calls, each with the value of the one before."""
    return {"0": first} | {str(n): (function, str(n - 1), *arguments) for n in range(1, LENGTH + 1)}


def last_of(client: Client, graph: dict[str, Any]) -> Any:
    return client.get(graph, [str(LENGTH)])[str(LENGTH)]


def test_each_task_of_a_chain_gets_its_predecessors_value(client: Client) -> None:
    assert client.get(chain(fail_at, 0, -1), [str(LENGTH), "7"]) == {str(LENGTH): LENGTH, "7": 7}


def test_values_that_outgrow_a_message_go_through_the_storage(client: Client) -> None:
    assert last_of(client, chain(grow, "y" * 20_000)) == "y" * 20_000 + "x" * 100 * LENGTH


def test_exception_within_a_chain_ends_the_rest_with_it(client: Client) -> None:
    futures = client.get(chain(fail_at, 0, 150), ["150", str(LENGTH)], block=False)
    with pytest.raises(ValueError, match="no number follows 150"):
        futures[str(LENGTH)].result()
    assert futures["150"].result() == 150


def test_process_dying_within_a_chain_costs_one_attempt(client: Client, tmp_path: Path) -> None:
    note = tmp_path / "died"
    assert last_of(client, chain(die_at, 0, 150, note)) == LENGTH
    assert note.exists()


def test_cancels_a_running_chain(client: Client, tmp_path: Path) -> None:
    go = tmp_path / "go"
    futures = client.get(chain(wait_at, 0, 150, go), ["150", str(LENGTH)], block=False)
    assert futures["150"].result() == 150
    assert futures[str(LENGTH)].cancel()
    go.touch()
    with pytest.raises(CancelledError):
        futures[str(LENGTH)].result()
