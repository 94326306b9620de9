"""`Client(processes=False)`: the same calls, run locally at once, with a working debugger."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from scaler import Client, ScalerExecutor
from scaler.errors import ClientClosedError, ObjectLostError, RemoteTraceback, SerializationError, UsageError

PROGRAM = """
from scaler import Client

def halve(number):
    half = number / 2
    breakpoint()
    return half

with Client(processes=False) as client:
    print("result", client.submit(halve, 14).result())
"""


@pytest.fixture
def client() -> Iterator[Client]:
    with Client(processes=False) as here:
        yield here


def double(number: int) -> int:
    return 2 * number


def inverse(number: int) -> float:
    return 1 / number


def nested(client: Client, number: int) -> int:
    return int(client.submit(double, number).result()) + int(Client().submit(double, number).result())


def append(items: list[int]) -> list[int]:
    items.append(len(items))
    return items


def interrupted() -> None:
    raise KeyboardInterrupt


async def later(number: int) -> int:
    await asyncio.sleep(0)
    return number


def test_debugger_stops_in_a_task_and_sees_its_variables() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], input="p half\nc\n", capture_output=True, text=True, timeout=50, check=True
    )
    assert "7.0" in done.stdout.splitlines()[1]
    assert done.stdout.endswith("result 7.0\n")
    assert done.stderr == ""


def test_all_ways_to_call_a_function_work(client: Client) -> None:
    future = client.submit(threading.get_ident)
    assert future.done()
    assert future.result() == threading.get_ident()
    assert client.submit_verbose(double, (1,), retries=2, capabilities={"gpu": 1}, memory="1GB", tag="t").result() == 2
    assert client.map(double, range(100)) == list(range(0, 200, 2))
    assert client.starmap(pow, [(2, 3), (3, 2)]) == [8, 9]
    assert list(client.imap(double, range(5))) == sorted(client.imap_unordered(double, range(5))) == [0, 2, 4, 6, 8]
    assert client.get({"a": 1, "b": (double, "a"), "c": (sum, ["a", "b"])}, ["c", "b"]) == {"c": 3, "b": 2}
    assert client.gather([client.submit(double, future) for future in client.as_completed([client.submit(double, 1)])])
    assert client.cache(double, 3).result() == 6
    assert client.submit(nested, client, 5).result() == 20
    assert client.submit(later, 3).result() == 3
    large = client.send_object(bytes(100_000))
    assert client.submit(len, large).result() == client.submit(len, bytes(100_000)).result() == 100_000
    with ScalerExecutor(client) as executor:
        assert list(executor.map(double, range(4), chunksize=2)) == [0, 2, 4, 6]
    with ScalerExecutor(processes=False) as executor:
        assert executor.submit(threading.get_ident).result() == threading.get_ident()
    client.wait_for_workers(100)
    assert "it ran in this process" in client.explain(future)


def test_exceptions_arrive_with_the_result_as_from_a_worker(client: Client) -> None:
    future = client.submit(inverse, 0)
    with pytest.raises(ZeroDivisionError) as caught:
        future.result()
    assert isinstance(caught.value.__cause__, RemoteTraceback)
    assert "in inverse" in str(caught.value.__cause__)
    with pytest.raises(ZeroDivisionError) as caught:
        client.map(inverse, [1, 0])
    assert caught.value.item_index == 1  # type: ignore[attr-defined]
    failed = client.get({"a": (inverse, 0), "b": (double, "a")}, ["b"], block=False)["b"]
    assert "node 'b' did not run because its input node 'a' failed" in failed.exception().__notes__
    with pytest.raises(KeyboardInterrupt):
        client.submit(interrupted)


def test_failures_on_a_cluster_also_fail_locally(client: Client) -> None:
    items = [1]
    assert client.submit(append, items).result() == [1, 1]
    assert items == [1]
    kept = client.send_object(items)
    assert [client.submit(append, kept).result() for _ in range(2)] == [[1, 1], [1, 1]]
    with pytest.raises(SerializationError, match="argument 1"):
        client.submit(double, threading.Lock())
    with pytest.raises(SerializationError, match="the result"):
        client.submit(threading.Lock).result()
    client.clear()
    assert isinstance(client.submit(append, kept).exception(), ObjectLostError)


def test_methods_that_need_a_cluster_raise_a_clear_error(client: Client) -> None:
    asked: list[Any] = [client.cluster, lambda: client.logs(client.submit(double, 1)), client.objects]
    for ask in asked:
        with pytest.raises(UsageError, match="processes=False"):
            ask()
    with pytest.raises(UsageError, match="omit the address and the session"):
        Client("tcp://127.0.0.1:1", processes=False)
    assert repr(client).endswith("of this process, without processes>")
    client.shutdown()
    with pytest.raises(ClientClosedError):
        client.submit(double, 1)


def increased(array: Any) -> float:
    array += 1
    return float(array.sum())


def test_arrays_of_several_tasks_share_no_memory(client: Client) -> None:
    numpy = pytest.importorskip("numpy")
    graph = {"n": 3, "made": (numpy.zeros, "n"), "a": (increased, "made"), "b": (increased, "made")}
    assert client.get(graph, ["a", "b"]) == {"a": 3.0, "b": 3.0}
