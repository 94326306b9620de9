"""Streams on a real cluster: values arrive while the generator runs, and the task ends with the stream."""

from __future__ import annotations

import asyncio
import functools
import gc
import os
import signal
import threading
from collections.abc import Generator, Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy
import pytest

from scaler import AsyncClient, Client, SchedulerClusterCombo
from scaler.errors import ClientClosedError, SerializationError, UsageError, WorkerLostError
from scaler.extensions.streams.client import Stream
from scaler.extensions.streams.messages import StreamValue
from scaler.serialization import dump_value, to_payload
from tests.integration.test_scheduler_restart import running
from tests.waiting import until, wait_for_file

SECONDS = 20


@pytest.fixture(scope="module")
def client(cluster: SchedulerClusterCombo) -> Iterator[Client]:
    with Client(cluster.get_address()) as client:
        yield client


def count(most: int, size: int = 0) -> Generator[Any, None, str]:
    """Yield numbers, or arrays of so many bytes that contain them."""
    for number in range(most):
        yield numpy.full(size, number, numpy.uint8) if size else number
    return "the end"


def note(notes: Path, most: int, size: int = 0) -> Iterator[Any]:
    """Yield numbers, and write how many have been made."""
    for number in range(most):
        (notes / "made").write_text(str(number + 1))
        yield bytes(size) if size else number


def made(notes: Path) -> int:
    text = (notes / "made").read_text() if (notes / "made").exists() else ""
    return int(text or 0)


def wait_between(go: Path, pid: Path | None = None) -> Iterator[int]:
    """Yield 1 and 2, and 3 once a file exists."""
    if pid is not None:
        pid.write_text(str(os.getppid()))
    yield 1
    yield 2
    wait_for_file(go)
    yield 3


def fail_after(number: int) -> Iterator[int]:
    yield from range(number)
    raise KeyError(number)


def test_stream_yields_all_values_in_order(client: Client) -> None:
    stream = client.stream(count, 1_000)
    assert list(stream) == list(range(1_000))
    assert list(stream) == []
    assert stream.future.result(SECONDS) == "the end"


def test_value_arrives_while_the_generator_runs(client: Client, tmp_path: Path) -> None:
    stream = client.stream(wait_between, tmp_path / "go")
    assert (next(stream), next(stream)) == (1, 2)
    assert not stream.future.done()
    (tmp_path / "go").touch()
    assert list(stream) == [3]


def test_monitors_list_the_stream_as_a_call(client: Client, tmp_path: Path) -> None:
    with client.stream(wait_between, tmp_path / "go"):
        (row,) = until(lambda: [each for each in client.table("calls") if each.call == "stream" and each.live])
        assert row.name == "wait_between"


def test_large_values_arrive_in_pieces(client: Client) -> None:
    found = list(client.stream(count, 3, 9_000_000))
    assert [(each.size, each[0], each[-1]) for each in found] == [(9_000_000, at, at) for at in range(3)]


def test_exception_follows_the_values_before_it(client: Client) -> None:
    stream = client.stream(fail_after, 100)
    assert [next(stream) for _ in range(100)] == list(range(100))
    with pytest.raises(KeyError, match="100"):
        next(stream)


def test_generator_is_at_most_a_window_ahead(client: Client, tmp_path: Path) -> None:
    with client.stream(note, tmp_path, 100, window=8) as stream:
        assert next(stream) == 0
        until(lambda: made(tmp_path) >= 9)
        until(lambda: "until its values are consumed" in stream.future.explain())
        assert made(tmp_path) <= 10
        assert list(stream) == list(range(1, 100))


def test_bytes_ahead_are_limited(client: Client, tmp_path: Path) -> None:
    with client.stream(note, tmp_path, 30, 10 * 1024 * 1024) as stream:
        until(lambda: made(tmp_path) >= 4)
        until(lambda: "until its values are consumed" in stream.future.explain())
        assert made(tmp_path) <= 6
        assert sum(map(len, stream)) == 30 * 10 * 1024 * 1024


def test_waiting_generator_lends_its_slot(tmp_path: Path) -> None:
    with SchedulerClusterCombo(n_workers=1) as combo, Client(combo.get_address()) as client:
        stream = client.stream(note, tmp_path, 10, window=1)
        assert client.submit(abs, -5).result(SECONDS) == 5
        assert list(stream) == list(range(10))


@pytest.mark.parametrize("how", ["close", "drop", "leave"])
def test_ended_iteration_stops_the_task(client: Client, tmp_path: Path, how: str) -> None:
    stream = client.stream(wait_between, tmp_path / "go", tmp_path / "pid")
    future = stream.future
    assert next(stream) == 1
    if how == "close":
        stream.close()
        assert list(stream) == []
    elif how == "leave":
        with stream:
            pass
    else:
        del stream
        gc.collect()
    with pytest.raises(CancelledError):
        future.result(SECONDS)


def test_cancelled_task_ends_a_waiting_iteration(client: Client, tmp_path: Path) -> None:
    stream = client.stream(wait_between, tmp_path / "go")
    assert (next(stream), next(stream)) == (1, 2)
    canceller = threading.Timer(0.1, stream.future.cancel)
    canceller.start()
    with pytest.raises(CancelledError):
        next(stream)
    canceller.join()


def test_close_ends_an_iteration_of_another_thread(client: Client, tmp_path: Path) -> None:
    stream = client.stream(wait_between, tmp_path / "go")
    assert (next(stream), next(stream)) == (1, 2)
    closer = threading.Timer(0.1, stream.close)
    closer.start()
    assert list(stream) == []
    closer.join()


def test_lost_worker_ends_the_stream_with_an_error(tmp_path: Path) -> None:
    with running(tmp_path, slots=1) as (cluster, client):
        stream = client.stream(wait_between, tmp_path / "go")
        assert (next(stream), next(stream)) == (1, 2)
        for agent in cluster.agents():
            agent.kill()
        with pytest.raises(WorkerLostError):
            next(stream)


def count_starts(starts: Path, go: Path) -> Iterator[int]:
    with starts.open("a") as file:
        file.write("started\n")
    yield from wait_between(go)


def test_streams_without_restart_start_only_once_if_their_worker_is_lost(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    with running(tmp_path, slots=2) as (cluster, client):
        streams = [client.stream(count_starts, starts, tmp_path / "go") for _ in range(2)]
        assert [next(stream) for stream in streams] == [1, 1]
        for agent in cluster.agents():
            agent.kill()
        for stream in streams:
            with pytest.raises(WorkerLostError):
                list(stream)
    assert len(starts.read_text().splitlines()) == 2


def test_restarted_stream_continues_after_the_values_taken(tmp_path: Path) -> None:
    with running(tmp_path, slots=1) as (cluster, client):
        stream = client.stream(wait_between, tmp_path / "go", restart=True)
        assert (next(stream), next(stream)) == (1, 2)
        for agent in cluster.agents():
            agent.kill()
        (tmp_path / "go").touch()
        assert list(stream) == [3]


def yield_less_after_a_loss(marker: Path, go: Path) -> Iterator[int]:
    is_first = not marker.exists()
    marker.touch()
    yield from range(10 if is_first else 3)
    if is_first:
        wait_for_file(go)
        os.kill(os.getpid(), signal.SIGKILL)


def test_restarted_stream_ends_although_the_generator_yields_fewer_values(client: Client, tmp_path: Path) -> None:
    stream = client.stream(yield_less_after_a_loss, tmp_path / "marker", tmp_path / "go", restart=True)
    assert [next(stream) for _ in range(10)] == list(range(10))
    (tmp_path / "go").touch()
    assert list(stream) == []
    assert stream.future.result(SECONDS) is None


@pytest.mark.parametrize("window", [1, 64])
def test_stream_survives_a_restart_of_the_scheduler(tmp_path: Path, window: int) -> None:
    with running(tmp_path, slots=1) as (cluster, client):
        stream = client.stream(count, 2_000, window=window)
        assert [next(stream) for _ in range(500)] == list(range(500))
        cluster.restart()
        assert list(stream) == list(range(500, 2_000))


def fail_first(marker: Path) -> Iterator[int]:
    yield from range(3)
    if not marker.exists():
        marker.touch()
        raise OSError
    yield from range(3, 6)


def test_retried_generator_continues_after_the_values_before_its_exception(client: Client, tmp_path: Path) -> None:
    retrying = client.options(retry_on=OSError, retries=1)
    assert list(retrying.stream(fail_first, tmp_path / "marker", restart=True)) == list(range(6))


def stop(error: type[Exception]) -> Iterator[int]:
    raise error


@pytest.mark.parametrize("error", [StopIteration, StopAsyncIteration])
def test_function_that_raises_stop_iteration_is_an_error(
    cluster: SchedulerClusterCombo, error: type[Exception]
) -> None:
    async def run() -> None:
        async with AsyncClient(cluster.get_address()) as client:
            [value async for value in client.stream(stop, error)]

    with pytest.raises(RuntimeError, match=error.__name__):
        asyncio.run(run())
    with Client(cluster.get_address()) as client, pytest.raises(RuntimeError, match=error.__name__):
        list(client.stream(stop, error))


def test_streams_run_side_by_side(client: Client) -> None:
    streams = [client.stream(count, 200) for _ in range(10)]
    assert list(zip(*streams, strict=True)) == [(number,) * 10 for number in range(200)]


def stream_inside(most: int) -> int:
    with Client() as client:
        return sum(client.stream(count, most))


async def stream_inside_coroutine(most: int) -> int:
    async with AsyncClient() as client:
        return sum([value async for value in client.stream(count, most)])


@pytest.mark.parametrize("function", [stream_inside, stream_inside_coroutine])
def test_task_iterates_over_a_stream_in_its_own_slot(function: Any) -> None:
    with SchedulerClusterCombo(n_workers=1) as combo, Client(combo.get_address()) as client:
        assert client.submit(function, 300).result(SECONDS) == sum(range(300))


def test_futures_and_keyword_arguments_reach_the_generator(client: Client) -> None:
    size = client.submit(abs, -4)
    assert [each.tolist() for each in client.stream(functools.partial(count, size=2), client.submit(abs, -1))] == [
        [0, 0]
    ]
    assert list(client.stream(count, size)) == [0, 1, 2, 3]


def test_function_may_return_any_iterable(client: Client) -> None:
    assert list(client.stream(range, 5)) == [0, 1, 2, 3, 4]
    assert list(client.options(name="letters").stream(sorted, "cab")) == ["a", "b", "c"]


def test_asyncio_client_streams(cluster: SchedulerClusterCombo) -> None:
    async def run() -> None:
        async with AsyncClient(cluster.get_address()) as client:
            assert [value async for value in client.stream(count, 500)] == list(range(500))
            async with client.stream(count, 10**9) as stream:
                assert await anext(stream) == 0
            with pytest.raises(StopAsyncIteration):
                await anext(stream)
            with pytest.raises(KeyError):
                [value async for value in client.stream(fail_after, 3)]
            ended = client.stream(count, 3)
            assert [value async for value in ended] == [0, 1, 2]
            assert await ended.future == "the end"
            with pytest.raises(UsageError, match="window is 0"):
                client.stream(count, 3, window=0)
            threads, streams = threading.active_count(), [client.stream(count, 10**9) for _ in range(20)]
            assert await asyncio.gather(*map(anext, streams)) == [0] * 20
            assert threading.active_count() == threads

    asyncio.run(run())


def test_asyncio_stream_continues_after_a_timeout(cluster: SchedulerClusterCombo, tmp_path: Path) -> None:
    async def run() -> None:
        async with AsyncClient(cluster.get_address()) as client:
            stream = client.stream(wait_between, tmp_path / "go")
            assert [await anext(stream), await anext(stream)] == [1, 2]
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(stream), 0.01)
            (tmp_path / "go").touch()
            assert [value async for value in stream] == [3]

    asyncio.run(run())


def test_closed_asyncio_stream_ends_an_iteration_of_another_coroutine(
    cluster: SchedulerClusterCombo, tmp_path: Path
) -> None:
    async def run() -> None:
        async with AsyncClient(cluster.get_address()) as client:
            stream = client.stream(wait_between, tmp_path / "go")
            assert [await anext(stream), await anext(stream)] == [1, 2]
            waiting = asyncio.create_task(anext(stream, "ended"))
            await asyncio.sleep(0)
            await stream.aclose()
            assert await waiting == "ended"
            dropped = client.stream(wait_between, tmp_path / "go")
            future = dropped.future
            assert await anext(dropped) == 1
            del dropped
            with pytest.raises(asyncio.CancelledError):
                await future

    asyncio.run(run())


def test_asyncio_client_without_processes_streams() -> None:
    async def run() -> None:
        async with AsyncClient(processes=False) as client:
            assert [value async for value in client.stream(count, 3)] == [0, 1, 2]

    asyncio.run(run())


def test_client_without_processes_makes_values_on_demand() -> None:
    with Client(processes=False) as client:
        stream = client.stream(count, 10**9)
        assert [next(stream) for _ in range(3)] == [0, 1, 2]
        assert not hasattr(stream, "future")
        stream.close()
        assert list(stream) == []


def append(values: list[int]) -> Iterator[list[int]]:
    values.append(3)
    yield values


def test_client_without_processes_passes_copies_and_values_of_futures() -> None:
    with Client(processes=False) as client:
        values = [1]
        assert list(client.stream(append, values)) == [[1, 3]]
        assert values == [1]
        stream = client.stream(count, client.submit(abs, -2))
        assert list(stream) == [0, 1]
        assert stream.future.result() == "the end"
        failing = client.stream(fail_after, 1)
        assert next(failing) == 0
        with pytest.raises(KeyError):
            next(failing)
        assert isinstance(failing.future.exception(), KeyError)


def test_submitted_generator_is_an_error_that_names_stream(client: Client) -> None:
    with pytest.raises(SerializationError, match=r"the result is a generator: client\.stream"):
        client.submit(count, 3).result(SECONDS)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda client: client.stream(count, 3, window=0), "window is 0, but must be an integer of at least 1"),
        (lambda client: client.stream(count, 3, retry_on=OSError), "retry_on reruns a generator"),
        (lambda client: client.stream(count, 3, preemptible=True), "preemptible reruns a generator"),
    ],
)
def test_wrong_option_is_an_error(client: Client, call: Any, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        call(client)


def test_stream_as_an_argument_is_an_error(client: Client) -> None:
    with pytest.raises(SerializationError, match="a stream cannot be sent: pass its values"):
        client.submit(list, client.stream(count, 3))


def test_function_without_values_is_an_error(client: Client) -> None:
    with pytest.raises(TypeError, match=r"abs returned int, but client\.stream needs a generator function"):
        list(client.stream(abs, 3))


def test_value_that_cannot_be_pickled_follows_the_values_before_it(client: Client) -> None:
    def locks() -> Iterator[object]:
        yield 1
        yield threading.Lock()

    stream = client.stream(locks)
    assert next(stream) == 1
    with pytest.raises(SerializationError, match=r"a value of the stream \(_thread\.lock\)"):
        next(stream)


def test_stream_names_the_mistake_if_the_scheduler_lacks_streams() -> None:
    with (
        SchedulerClusterCombo(n_workers=1, extensions=("-http", "-streams")) as combo,
        Client(combo.get_address()) as client,
        pytest.raises(ClientClosedError, match="number 106 is unknown"),
    ):
        next(client.stream(count, 3))


def delivered(client: Client, restart: bool, *messages: tuple[bytes, int, object]) -> tuple[Stream, list[object]]:
    """Deliver messages to a stream: run, number, and value. Returns the stream and its cancellations."""
    futures, cancels = client._loop.futures, list[object]()  # noqa: SLF001 (no other way to deliver messages)
    call_later = lambda _, cancel: cancels.append(cancel)  # noqa: E731
    loop = SimpleNamespace(futures=futures, on_message={}, call_later=call_later, _call=print, _answer=None)
    stream = Stream(cast("Any", loop), 4, restart, None)._start(lambda _: client.submit(abs, 1))  # noqa: SLF001
    for run, number, value in messages:
        payload = to_payload(dump_value(value)) if value is not None else b""
        stream._take(StreamValue(bytes(16), bytes(16), run, number, 0, False, payload))  # noqa: SLF001
    return stream, cancels


def test_task_that_starts_again_ends_a_stream_without_restart() -> None:
    with Client(processes=False) as client:
        stream, cancels = delivered(client, False, (b"run    1", 0, "first"), (b"run    2", 0, "first"))
        assert next(stream) == "first"
        with pytest.raises(WorkerLostError, match="restarted"):
            next(stream)
        assert len(cancels) == 1


def test_late_messages_of_a_lost_run_are_ignored() -> None:
    first, second = b"run    1", b"run    2"
    with Client(processes=False) as client:
        values = [(first, 0, "a"), (second, 0, "a"), (first, 1, "late"), (second, 1, "b"), (second, 2, None)]
        stream, _ = delivered(client, True, *values, (first, 2, "late"))
        assert list(stream) == ["a", "b"]
