"""Futures as known from concurrent.futures and asyncio, on one real worker."""

from __future__ import annotations

import asyncio
import concurrent.futures
import copy
import logging
import pickle
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION
from pathlib import Path
from typing import Any

import pytest

from scaler import Client, ScalerFuture, SchedulerClusterCombo
from tests.waiting import until, wait_for_file

SECONDS = 20


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with SchedulerClusterCombo(n_workers=1) as combo, Client(combo.get_address(), timeout_seconds=SECONDS) as connected:
        connected.submit(int).result(SECONDS)
        yield connected


def double(x: int) -> int:
    return 2 * x


def fail(x: Any) -> None:
    raise ValueError(f"bad {x}")


def hold(gate: str) -> int:
    wait_for_file(gate)
    return 7


def test_future_reports_where_its_task_is(client: Client, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    running, queued = client.submit(hold, str(gate)), client.submit(double, 1)
    until(running.running)
    assert (running.done(), running.cancelled(), queued.running(), queued.done()) == (False, False, False, False)
    assert repr(running) == f"<ScalerFuture {running.task_id.hex()} of hold running>"
    assert repr(queued).endswith(" pending>")
    gate.touch()
    assert running.result(SECONDS) == 7
    assert (running.done(), running.running()) == (True, False)
    assert repr(running).endswith(" finished>")
    assert queued.result(SECONDS) == 2
    assert isinstance(running.task_id, bytes)
    assert running.task_id != queued.task_id


def test_running_task_is_cancelled_and_its_worker_continues(client: Client, tmp_path: Path) -> None:
    running, queued = client.submit(hold, str(tmp_path / "never")), client.submit(hold, str(tmp_path / "never"))
    until(running.running)
    called: list[bool] = []
    running.add_done_callback(lambda future: called.append(future.cancelled()))
    assert running.cancel()
    assert queued.cancel()
    assert called == [True]
    assert (running.running(), running.cancelled(), running.done()) == (False, True, True)
    for ask in (running.result, running.exception, queued.result):
        with pytest.raises(concurrent.futures.CancelledError):
            ask(SECONDS)
    assert repr(queued).endswith(" cancelled>")
    assert client.submit(double, 1).result(SECONDS) == 2


def test_exception_and_result_show_how_a_task_ended(client: Client, tmp_path: Path) -> None:
    failed, good = client.submit(fail, 1), client.submit(double, 1)
    error = failed.exception(SECONDS)
    assert isinstance(error, ValueError)
    assert str(error) == "bad 1"
    assert repr(failed).endswith(" raised ValueError>")
    assert good.exception(SECONDS) is None
    waiting = client.submit(hold, str(tmp_path / "gate"))
    for seconds in (0, -1, 0.01):
        with pytest.raises(TimeoutError):
            waiting.result(seconds)
        with pytest.raises(TimeoutError):
            waiting.exception(seconds)
    (tmp_path / "gate").touch()
    assert waiting.result(SECONDS) == 7


@pytest.mark.parametrize("take", [pickle.dumps, copy.copy, copy.deepcopy])
def test_future_or_reference_pickled_elsewhere_explains_how_to_pass_it(client: Client, take: Any) -> None:
    for thing in (client.submit(double, 1), client.send_object([1])):
        with pytest.raises(TypeError, match="cannot be pickled directly: pass it to submit as an argument"):
            take(thing)


def test_error_in_a_callback_is_logged_without_harm(
    client: Client, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    ended = threading.Event()
    future = client.submit(hold, str(tmp_path / "gate"))
    future.add_done_callback(fail)
    future.add_done_callback(lambda _: sys.exit("a callback may not end the client's thread"))
    future.add_done_callback(lambda _: ended.set())
    (tmp_path / "gate").touch()
    assert ended.wait(SECONDS)
    assert client.submit(double, 2).result(SECONDS) == 4
    assert [type(record.exc_info[1]) for record in caplog.records if record.exc_info] == [ValueError, SystemExit]
    assert all(record.levelno == logging.ERROR and repr(future) in record.message for record in caplog.records)


def test_wait_and_as_completed_return_under_the_requested_condition(client: Client, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    good, failed = client.submit(double, 1), client.submit(fail, 1)
    held = client.submit(hold, str(gate))
    wait = concurrent.futures.wait
    assert wait([good, held], SECONDS, return_when=FIRST_COMPLETED) == ({good}, {held})
    assert wait([failed, held], SECONDS, return_when=FIRST_EXCEPTION) == ({failed}, {held})
    assert wait([held, good], 0.01, return_when=ALL_COMPLETED) == ({good}, {held})
    with pytest.raises(TimeoutError):
        list(concurrent.futures.as_completed([held], timeout=0.01))
    results = concurrent.futures.as_completed([held, good], timeout=SECONDS)
    assert next(results) is good
    gate.touch()
    assert next(results) is held
    held_too = client.submit(hold, str(tmp_path / "never"))
    other = threading.Timer(0.01, held_too.cancel)
    other.start()
    assert wait([held_too], SECONDS) == ({held_too}, set())
    other.join()


# -- await


def test_await_returns_the_value_or_raises_the_tasks_exception(client: Client) -> None:
    async def main() -> list[Any]:
        future = client.submit(double, 1)
        results = await asyncio.gather(future, client.submit(fail, 2), future, return_exceptions=True)
        later = [await each for each in asyncio.as_completed([client.submit(double, number) for number in (3, 4)])]
        return [*results, sorted(later), await future]

    one, error, two, later, again = asyncio.run(main())
    assert (one, two, later, again) == (2, 2, [6, 8], 2)
    assert isinstance(error, ValueError)


@pytest.mark.parametrize("how", ["wait_for", "cancel", "gather"])
def test_cancelling_the_await_cancels_the_task(client: Client, tmp_path: Path, how: str) -> None:
    async def stop(future: ScalerFuture) -> None:
        if how == "wait_for":
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(future, 0.01)
            return
        waiting = asyncio.ensure_future(future if how == "cancel" else asyncio.gather(future, client.submit(int)))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    async def main() -> bool:
        future = client.submit(hold, str(tmp_path / "never"))
        await stop(future)
        if how == "gather":
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await future
        return future.cancelled()

    assert asyncio.run(main())
    assert client.submit(double, 1).result(SECONDS) == 2
