"""Typical uses of a client on a real cluster of two workers."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scaler import Client, ScalerFuture, SchedulerClusterCombo
from scaler.errors import ClientClosedError, ClientDisconnectedError, ProtectedError, UsageError
from tests.waiting import wait_for_file


@pytest.fixture(scope="module")
def client(cluster: SchedulerClusterCombo) -> Iterator[Client]:
    with Client(cluster.get_address(), timeout_seconds=20) as connected:
        connected.submit(int).result(20)
        yield connected


def double(x: Any) -> Any:
    return x * 2


def add(a: Any, b: Any) -> Any:
    return a + b


def fail(x: Any) -> Any:
    error = ValueError(f"bad {x}")
    error.add_note("the user's own")
    raise error


def notes_of(future: ScalerFuture) -> list[str]:
    notes: list[str] = getattr(future.exception(20), "__notes__", [])
    return notes


# -- submit


def test_futures_are_arguments_at_any_depth_and_for_many_tasks(client: Client) -> None:
    first = client.submit(double, 1)
    chain = first
    for _ in range(50):
        chain = client.submit(add, chain, first)
    nested = client.submit(lambda d: sum(d["x"]), {"x": [first, chain, 1]})
    assert chain.result(20) == 102
    assert nested.result(20) == 105
    assert client.submit(add, chain, first).result(20) == 104


def test_failed_future_fails_its_dependents(client: Client) -> None:
    failed = client.submit(fail, 1)
    early = client.submit(double, failed)
    with pytest.raises(ValueError, match="bad 1"):
        failed.result(20)
    with pytest.raises(ValueError, match="bad 1"):
        early.result(20)
    late = client.submit(double, [failed])
    last = client.submit(double, late)
    for future in (early, late, last):
        did_not_run = (
            f"double ({future.task_id.hex()}) did not run because its input fail ({failed.task_id.hex()}) failed"
        )
        with pytest.raises(ValueError, match="bad 1") as caught:
            future.result(20)
        assert (caught.value.__notes__[0], caught.value.__notes__[-1]) == ("the user's own", did_not_run)
    assert notes_of(failed) == ["the user's own"]


# -- futures


def test_callbacks_run_once_and_may_submit(client: Client) -> None:
    ended = threading.Event()
    seen: list[Any] = []

    def then(future: Any) -> None:
        seen.append(future.result())
        client.submit(double, future.result()).add_done_callback(last)

    def last(future: Any) -> None:
        seen.append(future.result())
        ended.set()

    client.submit(double, 1).add_done_callback(then)
    assert ended.wait(20)
    assert seen == [2, 4]


def test_waiting_in_a_callback_raises_instead_of_deadlocking(client: Client, tmp_path: Path) -> None:
    caught: list[BaseException] = []
    ended = threading.Event()
    running = client.submit(time.sleep, 60)

    def wait(_future: Any) -> None:
        try:
            running.result()
        except UsageError as error:
            caught.append(error)
        ended.set()

    client.submit(wait_for_file, tmp_path / "go").add_done_callback(wait)
    (tmp_path / "go").touch()  # now it has the callback
    assert ended.wait(20)
    assert "callback" in str(caught[0])
    assert running.cancel()


# -- large things


def test_object_is_sent_once_and_used_by_many_tasks(client: Client) -> None:
    array = np.ones(200_000)
    reference = client.send_object(array, name="ones")
    assert "ones" in repr(reference)
    futures = [client.submit(lambda a, k: a.sum() * k[0], reference, [number]) for number in range(5)]
    nested = client.submit(lambda d: d["a"].sum(), {"a": reference})
    assert [future.result(20) for future in futures] == [200_000.0 * number for number in range(5)]
    assert nested.result(20) == 200_000.0


# -- get


# -- nested


# -- serializers


# -- clients


def test_disconnected_client_reports_it_and_ends_its_futures(cluster: SchedulerClusterCombo) -> None:
    client = Client(cluster.get_address())
    future = client.submit(time.sleep, 60)
    client.disconnect()
    client.disconnect()
    with pytest.raises(ClientDisconnectedError):
        future.result(5)
    for use in (
        lambda: client.submit(double, 1),
        lambda: client.map(double, [1]),
        lambda: client.get({}, []),
        lambda: client.send_object(1),
        client.clear,
        client.shutdown,
    ):
        with pytest.raises(ClientClosedError):
            use()


def test_client_cannot_shut_down_a_protected_scheduler(client: Client) -> None:
    with pytest.raises(ProtectedError, match="protected") as caught:
        client.shutdown()
    assert isinstance(caught.value, ValueError)
    assert client.submit(double, 1).result(20) == 2
