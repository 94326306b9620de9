"""What users do with a client, on a real cluster of two workers."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scaler import Client, ScalerFuture, SchedulerClusterCombo, Serializer
from scaler.errors import (
    ClientClosedError,
    ClientDisconnectedError,
    ObjectLostError,
    ProcessorDiedError,
    ProtectedError,
    RemoteTraceback,
    SerializationError,
    TaskTimeoutError,
    UsageError,
)
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


def keyword_only(a: int, /, b: int = 2, *rest: int, c: int, **others: int) -> tuple[Any, ...]:
    return a, b, rest, c, others


class Adder:
    def __init__(self, base: int) -> None:
        self.base = base

    def add(self, x: int) -> int:
        return self.base + x

    def __call__(self, x: int) -> int:
        return self.base + x


class OnlyNumbers(Serializer):
    """Bytes of its own for integers."""

    def serialize(self, obj: Any) -> bytes:
        import cloudpickle  # noqa: PLC0415

        return b"I%d" % obj if type(obj) is int else b"G" + cloudpickle.dumps(obj)

    def deserialize(self, payload: bytes) -> Any:
        import pickle  # noqa: PLC0415

        return int(payload[1:]) if payload[:1] == b"I" else pickle.loads(payload[1:])


# -- submit


@pytest.mark.parametrize(
    ("function", "args", "expected"),
    [
        (double, (4,), 8),
        (lambda x: x + 1, (1,), 2),
        (functools.partial(add, 10), (1,), 11),
        (functools.partial(lambda x, y: x - y, y=1), (3,), 2),
        (Adder(5).add, (1,), 6),
        (Adder(7), (1,), 8),
        (len, ("four",), 4),
        ("x-y".split, ("-",), ["x", "y"]),
        (Adder, (3,), None),
    ],
)
def test_anything_that_can_be_called_can_be_submitted(client: Client, function: Any, args: Any, expected: Any) -> None:
    result = client.submit(function, *args).result(20)
    assert result == expected if expected is not None else isinstance(result, Adder)


def test_every_kind_of_argument_arrives(client: Client) -> None:
    assert client.submit(keyword_only, 1, c=3).result(20) == (1, 2, (), 3, {})
    assert client.submit(keyword_only, 1, 5, 6, 7, c=3, d=4).result(20) == (1, 5, (6, 7), 3, {"d": 4})
    assert client.submit_verbose(keyword_only, (1,), {"c": 2, "profiling": 3}).result(20)[-1] == {"profiling": 3}


def test_what_cannot_be_called_or_sent_is_refused_at_once(client: Client) -> None:
    with pytest.raises(UsageError, match="callable"):
        client.submit(3)  # type: ignore[arg-type]
    with pytest.raises(SerializationError, match=r"argument 1 of double \(_thread\.lock"):
        client.submit(double, threading.Lock())


def test_futures_are_arguments_at_any_depth_and_for_many_tasks(client: Client) -> None:
    first = client.submit(double, 1)
    chain = first
    for _ in range(50):
        chain = client.submit(add, chain, first)
    nested = client.submit(lambda d: sum(d["x"]), {"x": [first, chain, 1]})
    assert chain.result(20) == 102
    assert nested.result(20) == 105
    assert client.submit(add, chain, first).result(20) == 104


def test_a_future_that_failed_fails_what_needs_it(client: Client) -> None:
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
        assert caught.value.__notes__[-1] == did_not_run
    assert notes_of(failed) == ["the user's own"]


def test_copies_of_an_exception_for_several_futures_keep_its_notes(client: Client) -> None:
    failed = client.submit(fail, 1)
    assert notes_of(failed) == ["the user's own"]
    assert notes_of(client.submit(double, failed))[0] == "the user's own"


def test_the_tasks_own_exception_comes_with_the_remote_traceback(client: Client) -> None:
    with pytest.raises(ValueError, match="bad 7") as caught:
        client.submit(fail, 7).result(20)
    assert isinstance(caught.value.__cause__, RemoteTraceback)
    assert "in fail" in str(caught.value.__cause__)
    assert isinstance(client.submit(fail, 7).exception(20), ValueError)


def test_results_and_exceptions_that_cannot_travel_fail_that_future_alone(client: Client) -> None:
    with pytest.raises(SerializationError, match="lock"):
        client.submit(threading.Lock).result(20)

    def raise_unpicklable() -> None:
        raise ValueError(threading.Lock())

    with pytest.raises(Exception, match="cannot be pickled"):
        client.submit(raise_unpicklable).result(20)
    assert client.submit(double, 2).result(20) == 4


def test_a_process_that_dies_is_named_after_the_last_retry(client: Client) -> None:
    with pytest.raises(ProcessorDiedError, match="exit code 3"):
        client.submit_verbose(os._exit, (3,), retries=1).result(30)


def test_options_reach_the_task(client: Client, tmp_path: Any) -> None:
    with pytest.raises(TaskTimeoutError):
        client.submit_verbose(time.sleep, (30,), timeout_seconds=0.2).result(20)

    def third_time_lucky(path: str) -> int:
        with open(path, "a") as file:  # noqa: PTH123
            file.write("x")
        if os.path.getsize(path) < 3:  # noqa: PTH202
            raise KeyError("not yet")
        return 3

    path = str(tmp_path / "tries")
    assert client.submit_verbose(third_time_lucky, (path,), retries=5, retry_on=KeyError).result(20) == 3


@pytest.mark.parametrize(
    "options",
    [
        {"retries": -1},
        {"retries": 1.5},
        {"priority": "high"},
        {"timeout_seconds": -1},
        {"capabilities": {"gpu": 0}},
        {"retry_on": int},
    ],
)
def test_options_that_cannot_be_are_refused(client: Client, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        client.submit_verbose(double, (1,), **options)


def test_profiling_tells_how_a_task_ran(client: Client) -> None:
    def work() -> int:
        return len(bytearray(20_000_000)) + sum(range(300_000))

    future = client.submit(work, profiling=True)
    future.result(20)
    info = future.profiling_info()
    assert info.duration_us > 0
    assert info.duration_s == pytest.approx(info.duration_us / 1e6)
    assert info.cpu_time_s > 0
    assert info.peak_memory > 0
    assert client.submit(double, 1, profiling=False).task_id != future.task_id


# -- futures


def test_futures_work_with_concurrent_futures(client: Client) -> None:
    futures = [client.submit(double, number) for number in range(100)]
    assert sorted(future.result() for future in concurrent.futures.as_completed(futures, timeout=20)) == [
        2 * number for number in range(100)
    ]
    done, not_done = concurrent.futures.wait([client.submit(fail, 1), client.submit(double, 1)], timeout=20)
    assert len(done) == 2
    assert not not_done
    assert all(isinstance(future, ScalerFuture) and future.done() for future in done)


def test_callbacks_are_called_once_and_may_submit(client: Client) -> None:
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


def test_a_wait_in_a_callback_is_refused_and_not_a_deadlock(client: Client, tmp_path: Path) -> None:
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


def test_futures_can_be_awaited(client: Client) -> None:
    async def both() -> Any:
        return await asyncio.gather(client.submit(double, 1), client.submit(double, 2))

    assert asyncio.run(both()) == [2, 4]


def test_a_timeout_leaves_the_future_as_it_is(client: Client) -> None:
    future = client.submit(time.sleep, 0.3)
    with pytest.raises(TimeoutError):
        future.result(0.01)
    assert future.result(20) is None


def test_queued_and_running_tasks_are_cancelled(client: Client) -> None:
    running = [client.submit(time.sleep, 60) for _ in range(2)]
    queued = [client.submit(time.sleep, 60) for _ in range(20)]
    assert all(future.cancel() for future in queued + running)
    assert all(future.cancelled() and future.cancel() for future in queued + running)
    with pytest.raises(concurrent.futures.CancelledError):
        running[0].result()
    ended = client.submit(double, 1)
    assert ended.result(20) == 2
    assert not ended.cancel()


# -- large things


def test_large_arguments_and_results_go_through_the_storage_and_can_be_written_to(client: Client) -> None:
    array = np.arange(500_000.0)
    result = client.submit(double, array).result(20)
    assert (result == 2 * array).all()
    result[0] = 1.0
    text = "x" * 100_000
    assert client.submit(double, text).result(20) == 2 * text


def add_in_place(array: Any) -> float:
    array += 1
    return float(array.sum())


def test_a_task_may_write_to_its_arguments_whatever_their_size(client: Client) -> None:
    for size in (10, 100_000):
        array = np.zeros(size)
        assert [future.result(20) for future in [client.submit(add_in_place, array) for _ in range(3)]] == [size] * 3


def test_a_large_argument_may_be_changed_after_submit(client: Client) -> None:
    array = np.ones(1_000_000)
    futures = []
    for value in range(4):
        array[:] = value
        futures.append(client.submit(np.sum, array))
    assert [future.result(20) for future in futures] == [0.0, 1e6, 2e6, 3e6]


def test_large_results_are_dependencies_without_coming_here(client: Client) -> None:
    big = client.submit(np.ones, 300_000)
    early = client.submit(np.sum, big)
    assert early.result(20) == 300_000
    assert big.result(20).shape == (300_000,)
    assert client.submit(np.sum, [big, big]).result(20) == 600_000


def test_a_large_exception_arrives(client: Client) -> None:
    def fail_large() -> None:
        raise ValueError("x" * 100_000)

    with pytest.raises(ValueError, match="xxx"):
        client.submit(fail_large).result(20)


def test_a_function_that_carries_much_is_sent_once(client: Client) -> None:
    table = tuple(range(50_000))

    def look_up(index: int) -> int:
        return table[index]

    assert [future.result(20) for future in [client.submit(look_up, index) for index in range(3)]] == [0, 1, 2]


def test_an_object_is_sent_once_and_used_by_many(client: Client) -> None:
    array = np.ones(200_000)
    reference = client.send_object(array, name="ones")
    assert "ones" in repr(reference)
    futures = [client.submit(lambda a, k: a.sum() * k[0], reference, [number]) for number in range(5)]
    nested = client.submit(lambda d: d["a"].sum(), {"a": reference})
    assert [future.result(20) for future in futures] == [200_000.0 * number for number in range(5)]
    assert nested.result(20) == 200_000.0


def test_references_are_void_after_clear_and_futures_keep_their_values(cluster: SchedulerClusterCombo) -> None:
    with Client(cluster.get_address()) as client:
        reference = client.send_object([1, 2])
        big = client.submit(np.ones, 100_000)
        big.result(20)
        unfinished = client.submit(time.sleep, 60)
        client.clear()
        assert unfinished.cancelled()
        with pytest.raises(ObjectLostError, match="cleared"):
            client.submit(len, reference).result()
        assert client.submit(np.sum, big).result(20) == 100_000
        assert client.submit(len, client.send_object([1, 2])).result(20) == 2


# -- get


def test_a_graph_computes_what_its_keys_need(client: Client) -> None:
    graph = {
        "a": 2,
        "b": 2,
        "c": (double, "a"),
        "d": (add, "a", "b"),
        "e": (add, "d", "c"),
        "f": double,
        "bad": (fail, 1),
    }
    assert client.get(graph, ["e", "a", "f"]) == {"e": 8, "a": 2, "f": double}
    futures = client.get(graph, ["c", "b"], block=False)
    assert {key: future.result(20) for key, future in futures.items()} == {"c": 4, "b": 2}
    assert client.get({"x": (add, "y", "y"), "y": client.submit(double, 4)}, ["x", "y"]) == {"x": 16, "y": 8}
    assert client.get({}, []) == {}


def test_a_graph_shares_large_values_and_takes_references(client: Client) -> None:
    graph = {
        "big": np.ones(100_000),
        "ref": client.send_object(list(range(10))),
        "s": (np.sum, "big"),
        "m": (np.mean, "big"),
        "n": (len, "ref"),
        "all": (sum, ["s", "m", "n"]),
    }
    assert client.get(graph, ["all", "ref"]) == {"all": 100_011.0, "ref": list(range(10))}


def test_a_failing_node_raises_and_the_client_lives_on(client: Client) -> None:
    with pytest.raises(ValueError, match="bad 3"):
        client.get({"x": 3, "a": (fail, "x"), "b": (double, "a"), "c": (double, "b")}, ["c"])
    assert client.submit(double, 1).result(20) == 2


def test_layers_of_a_graph_run_in_order(client: Client) -> None:
    graph: dict[Any, Any] = {(0, column): column for column in range(20)}
    for layer in range(1, 30):
        for column in range(20):
            graph[layer, column] = (add, (layer - 1, column), (layer - 1, (column + 1) % 20))
    expected = list(range(20))
    for _ in range(1, 30):
        expected = [expected[column] + expected[(column + 1) % 20] for column in range(20)]
    keys = [(29, column) for column in range(20)]
    assert client.get(graph, keys) == dict(zip(keys, expected, strict=True))


# -- nested


def fibonacci(client: Client, n: int) -> int:
    if n < 2:
        return n
    one, two = client.submit(fibonacci, client, n - 1), client.submit(fibonacci, client, n - 2)
    return int(one.result() + two.result())


def nested_work(n: int) -> Any:
    with Client() as inner:
        futures = [inner.submit(double, number) for number in range(n)]
        concurrent.futures.wait(futures)
        graph = {"a": n, "b": (double, "a")}
        return sum(future.result() for future in futures), inner.map(double, [n]), inner.get(graph, ["b"])["b"]


def test_tasks_submit_tasks_deeper_than_there_are_workers(client: Client) -> None:
    assert client.submit(fibonacci, client, 5).result(30) == 5


def test_a_client_without_an_address_is_that_of_the_task_inside_tasks(client: Client) -> None:
    futures = [client.submit(nested_work, 5) for _ in range(4)]
    assert [future.result(30) for future in futures] == [(20, [10], 10)] * 4


def test_a_client_may_stand_anywhere_in_the_arguments(client: Client) -> None:
    assert client.submit(lambda d: d["c"][0].submit(double, 3).result(), {"c": [client]}).result(30) == 6


# -- serializers


@pytest.mark.parametrize("serializer", [OnlyNumbers, OnlyNumbers()])
def test_a_users_serializer_is_used_for_everything(cluster: SchedulerClusterCombo, serializer: Any) -> None:
    with Client(cluster.get_address(), serializer=serializer) as client:
        future = client.submit(add, 2, 3)
        assert future.result(20) == 5
        assert client.submit(add, future, b=1).result(20) == 6
        assert client.submit(sum, [future, client.submit(double, 4)]).result(20) == 13
        assert client.submit(np.sum, np.ones(100_000)).result(20) == 100_000
        assert client.map(double, range(100)) == [2 * number for number in range(100)]
        assert client.map(double, range(5), chunk_size=2) == [0, 2, 4, 6, 8]
        assert client.get({"a": 1, "b": (add, "a", "a")}, ["b"]) == {"b": 2}
        assert client.submit(len, client.send_object("four")).result(20) == 4
        assert client.submit(fibonacci, client, 4).result(30) == 3
        with pytest.raises(ValueError, match="bad"):
            client.submit(fail, 1).result(20)


# -- clients


def test_clients_do_not_see_each_others_tasks(client: Client, cluster: SchedulerClusterCombo) -> None:
    with Client(cluster.get_address()) as other:
        mine, theirs = client.submit(time.sleep, 0.2), other.submit(double, 2)
        with pytest.raises(UsageError, match="another client"):
            other.submit(double, mine)
        assert theirs.result(20) == 4
        assert client.submit(double, theirs).result(20) == 8
    assert mine.result(20) is None


def test_threads_share_a_client(client: Client) -> None:
    def work(number: int) -> int:
        return sum(client.submit(add, number, other).result(20) for other in range(20))

    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        assert list(pool.map(work, range(32))) == [20 * number + 190 for number in range(32)]


def test_a_disconnected_client_says_so_and_its_futures_end(cluster: SchedulerClusterCombo) -> None:
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


def test_a_protected_scheduler_is_not_shut_down_by_a_client(client: Client) -> None:
    with pytest.raises(ProtectedError, match="protected") as caught:
        client.shutdown()
    assert isinstance(caught.value, ValueError)
    assert client.submit(double, 1).result(20) == 2
