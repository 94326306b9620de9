"""AsyncClient on a real cluster: its results, and that the event loop keeps running."""

from __future__ import annotations

import asyncio
import functools
import os
import pickle
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from scaler import AsyncClient, Client, SchedulerClusterCombo
from scaler.errors import ClientClosedError, UnreachableError, UsageError
from scaler.worker.processor import context
from tests.waiting import wait_for_file

SECONDS = 20


@pytest.fixture(scope="module")
def address(cluster: SchedulerClusterCombo) -> str:
    return cluster.get_address()


@pytest.fixture(scope="module")
def narrow() -> Iterator[str]:
    """A scheduler that accepts one waiting task."""
    with SchedulerClusterCombo(n_workers=1, max_number_of_tasks_waiting=1) as combo:
        yield combo.get_address()


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        asyncio.run(test(**fixtures))

    return run


def double(number: int) -> int:
    return 2 * number


def inverse(number: int) -> float:
    return 1 / number


def gated(gate: Path, number: int) -> int:
    wait_for_file(gate)
    return number


@on_a_loop
async def test_futures_are_awaited_alone_and_together(address: str) -> None:
    async with AsyncClient(address, name="async") as client:
        future = client.submit(double, 4)
        assert await future == 8
        named = client.submit_verbose(double, (future,), name="named")
        assert await client.gather({"a": [named], "b": 3}) == {"a": [16], "b": 3}
        reference = await client.send_object([1, 2, 3])
        assert await client.get({"r": reference, "n": (len, "r"), "m": (double, "n")}, ["m", "n"]) == {"m": 6, "n": 3}
        futures = await client.get({"n": (double, 4)}, ["n"], block=False)
        assert await futures["n"] == 8
        assert "ended" in await client.explain(named)
        assert await client.ask(Client.map, double, [1, 2], cache=True) == [2, 4]
        bad = client.submit(inverse, 0)
        with pytest.raises(ZeroDivisionError):
            await client.gather([bad])
        good, error = await client.gather([future, bad], return_exceptions=True)
        assert good == 8
        assert isinstance(error, ZeroDivisionError)
        with pytest.raises(ZeroDivisionError):
            await client.get({"a": (inverse, 0)}, ["a"])
    with pytest.raises(ClientClosedError, match="async with"):
        client.submit(double, 1)


@on_a_loop
async def test_results_are_taken_one_by_one_or_all_at_once(address: str) -> None:
    async with AsyncClient(address) as client:
        assert await client.map(double, range(500)) == [2 * number for number in range(500)]
        assert [result async for result in client.imap(double, range(100))] == [2 * number for number in range(100)]
        assert sorted([result async for result in client.imap_unordered(double, range(9))]) == list(range(0, 18, 2))
        assert await client.map(double, []) == []
        assert await client.starmap(pow, [(2, 3), (3, 2)]) == [8, 9]
        assert [result async for result in client.starmap(divmod, [(7, 2)], name="pairs")] == [(3, 1)]
        results = client.imap(inverse, [1, 0, 2])
        assert await anext(results) == 1.0
        with pytest.raises(ZeroDivisionError):
            await anext(results)
        assert await anext(results) == 0.5
        with pytest.raises(StopAsyncIteration):
            await anext(results)
        await results.aclose()
        with pytest.raises(ZeroDivisionError):
            await client.map(inverse, [1, 0, 2])
        with pytest.raises(UsageError, match="window"):
            await client.imap(double, [1], window=0)


@on_a_loop
async def test_cancelling_an_iteration_cancels_its_tasks(address: str, tmp_path: Path) -> None:
    async with AsyncClient(address) as client:
        waiting = asyncio.create_task(anext(client.imap(gated, [tmp_path / "never"] * 4, range(4))))
        running = client.submit(double, 1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await running == 2  # would wait behind those


@on_a_loop
async def test_yields_futures_as_they_end_while_more_are_added(address: str, tmp_path: Path) -> None:
    async with AsyncClient(address) as client:
        late = client.submit(gated, tmp_path / "gate", 0)
        ending = client.as_completed([late, client.submit(double, 1)])
        found = []
        async for future in ending:
            found.append(await future)
            if 0 < found[-1] < 8:
                ending.add(client.submit(double, found[-1]), future)
            else:
                (tmp_path / "gate").touch()
        assert found == [2, 4, 8, 0]
        endless = client.submit(gated, tmp_path / "never", 0)
        with pytest.raises(TimeoutError, match="1 future did not end in time"):
            await anext(client.as_completed([endless], timeout=0.05))
        with pytest.raises(UsageError, match="7 is not a future of a client"):
            ending.add(7)  # type: ignore[arg-type]
        assert endless.cancel()


@on_a_loop
async def test_one_await_returns_the_value_with_both_clients(address: str) -> None:
    with Client(address) as plain:
        async with AsyncClient(address) as client:
            clients: list[Any] = [plain, client, client.options(retries=5)]
            for each in clients:
                assert await each.submit(double, 4) == 8
                assert await each.submit(double, each.submit(double, each.submit(double, 1))) == 8
                assert await each.submit_verbose(double, (5,)) == 10
                assert await each.submit_verbose(double, (6,), cache=True) == 12
                assert await each.cache(double, 7) == 14
                future = each.submit(double, 8)
                assert [await future, await future] == [16, 16]


@on_a_loop
async def test_futures_work_with_asyncio_functions(address: str, tmp_path: Path) -> None:
    asyncio.get_running_loop().set_debug(True)  # rejects calls from other threads, which do not wake it
    with Client(address) as plain:
        async with AsyncClient(address) as client:
            clients: list[Any] = [plain, client]
            for number, each in enumerate(clients):
                gate = tmp_path / f"gate{number}"
                late = each.submit(gated, gate, 7)
                quick = [each.submit(double, number) for number in range(3)]
                assert await asyncio.gather(*quick) == [0, 2, 4]
                assert {await each for each in asyncio.as_completed(quick)} == {0, 2, 4}
                done, pending = await asyncio.wait([late, *quick], return_when=asyncio.FIRST_COMPLETED)
                assert (done, pending) == ({*quick}, {late})
                assert await asyncio.wait([late], timeout=0.01) == (set(), {late})
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(asyncio.shield(late), 0.01)
                waiting = asyncio.create_task(asyncio.wait([late, *quick]))
                await asyncio.sleep(0)
                gate.touch()
                async with asyncio.timeout(SECONDS):
                    assert await waiting == ({late, *quick}, set())
                assert await asyncio.ensure_future(late) == 7
                never = each.submit(gated, tmp_path / "never", 0)
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(never, 0.01)
                assert never.cancelled()
                with pytest.raises(asyncio.CancelledError):
                    await never


@on_a_loop
async def test_call_uses_its_arguments_as_of_submission(address: str) -> None:
    async with AsyncClient(address) as client:
        numbers, large = [1], bytearray(3 << 20)
        futures = client.submit(len, numbers), client.submit(max, pickle.PickleBuffer(large))
        numbers.append(2)
        large[:] = b"x" * len(large)
        assert await client.gather(futures) == (1, 0)


def noted(log: Path, number: int) -> int:
    with log.open("a") as file:
        file.write(f"{number} ")
    return number


@on_a_loop
async def test_submits_do_not_block_and_run_in_call_order(narrow: str, tmp_path: Path) -> None:
    log, gate = tmp_path / "log", tmp_path / "gate"
    async with AsyncClient(narrow, timeout_seconds=SECONDS) as client:
        first = client.submit(gated, gate, 1)
        cancelled, *noting = [client.submit(noted, log, number) for number in range(20)]
        last = client.submit(double, noting[-1])
        needing = client.submit(double, cancelled)
        assert "to be sent" in await client.explain(last)
        assert cancelled.cancel()
        gate.touch()
        assert await first == 1
        assert await client.gather(noting) == [*range(1, 20)]
        assert await last == 38
        with pytest.raises(asyncio.CancelledError):
            await needing
    assert log.read_text().split() == [*map(str, range(1, 20))]


def test_callbacks_may_submit_more_than_the_scheduler_accepts_at_once(narrow: str) -> None:
    with Client(narrow, timeout_seconds=SECONDS) as client:
        submitted: Future[list[Any]] = Future()
        first = client.submit(double, 1)
        first.add_done_callback(lambda _: submitted.set_result([client.submit(double, number) for number in range(20)]))
        assert client.gather(submitted.result(SECONDS)) == [2 * number for number in range(20)]


@on_a_loop
async def test_event_loop_runs_while_it_connects() -> None:
    connecting = asyncio.create_task(AsyncClient("tcp://127.0.0.1:1", timeout_seconds=0.2).__aenter__())
    await asyncio.sleep(0)
    assert not connecting.done()
    with pytest.raises(UnreachableError):
        await connecting


def named_here(_number: int) -> str:
    current = context.current()
    assert current is not None
    return current.function


@on_a_loop
async def test_client_view_submits_with_its_options(address: str) -> None:
    async with AsyncClient(address) as client:
        view = client.options(name="of the view", retries=5)
        inner = view.options(name="of the inner one")
        assert await view.submit(named_here, 1) == "of the view"
        assert await inner.submit_verbose(named_here, (1,)) == "of the inner one"
        assert await view.map(named_here, [1, 2]) == ["of the view"] * 2
        assert await view.starmap(named_here, [(1,)]) == ["of the view"]
        assert await view.cache(named_here, 7) == "of the view"
        with view.executor() as executor:
            assert await asyncio.get_running_loop().run_in_executor(executor, named_here, 1) == "of the view"
        assert [each async for each in inner.imap(named_here, [1])] == ["of the inner one"]
        assert [each async for each in view.imap_unordered(named_here, [1], name="of the call")] == ["of the call"]
        assert await view.get({"n": 1, "m": (named_here, "n")}, ["m"]) == {"m": "of the view"}
        with pytest.raises(UsageError, match="retries is -1"):
            client.options(retries=-1)
    with pytest.raises(ClientClosedError):
        view.submit(named_here, 1)


def prefixed(number: int) -> str:
    return f"{number} {os.environ['SCALER_TEST_PREFIX']}"


@on_a_loop
async def test_every_client_method_can_be_awaited(address: str, tmp_path: Path) -> None:
    async with AsyncClient(address, name="telling") as client:
        await client.wait_for_workers(1)
        (worker,) = (await client.cluster()).workers
        assert list(await client.run(double, 4)) == [worker.id]
        failed = client.submit_verbose(prefixed, (1,), name="telling", tags="prefix")
        with pytest.raises(KeyError):
            await failed
        assert [row.name for row in (await client.cluster()).clients if row.id == client.identity.hex()] == ["telling"]
        assert [row.state for row in await client.tasks(tag="prefix")] == ["exception"]
        assert str(await client.logs(failed)) == ""
        assert (await client.bundle(failed, tmp_path / "bundle")).is_file()
        with pytest.raises(KeyError):
            await client.replay(failed)
        large = await client.send_object(bytes(2 << 20))
        assert len(await client.who_has(large)) == 1
        waiting = [client.submit(gated, tmp_path / "never", number) for number in range(3)]
        assert await client.cancel("gated") == 3
        assert all(future.cancelled() for future in waiting)
        waiting = [client.submit(gated, tmp_path / "never", number) for number in range(3)]
        await client.clear()
        assert all(future.cancelled() for future in waiting)
