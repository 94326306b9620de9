"""The `concurrent.futures.Executor` interface on a cluster of two workers."""

from __future__ import annotations

import concurrent.futures
import importlib
import inspect
import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest

from scaler import Client, ScalerExecutor, ScalerFuture, SchedulerClusterCombo
from scaler.errors import ClientClosedError, UsageError
from tests.short_forms import short_form
from tests.waiting import within

SECONDS = 20


@pytest.fixture(scope="module")
def client(cluster: SchedulerClusterCombo) -> Iterator[Client]:
    with Client(cluster.get_address(), timeout_seconds=SECONDS) as connected:
        yield connected


@pytest.fixture(scope="module")
def executor(client: Client) -> Iterator[ScalerExecutor]:
    with ScalerExecutor(client, max_workers=2) as shared:
        yield shared


def double(x: Any) -> Any:
    return x * 2


def add(a: Any, b: Any) -> Any:
    return a + b


async def double_soon(x: int) -> int:
    return 2 * x


def wait_for_file(path: str) -> str:
    within(SECONDS, Path(path).exists)
    return path


def begin_and_wait(began: str, gate: str) -> str:
    Path(began).touch()
    return wait_for_file(gate)


def test_scaler_executor_returns_standard_futures(executor: ScalerExecutor) -> None:
    assert isinstance(executor, Executor)
    future = executor.submit(add, 1, b=2)
    assert isinstance(future, Future)
    assert isinstance(future, ScalerFuture)
    assert future.result(SECONDS) == 3
    assert executor.submit(dict, fn=1, self=2, profiling=3).result(SECONDS) == {"fn": 1, "self": 2, "profiling": 3}


def test_methods_accept_the_parameters_of_the_standard_library() -> None:
    for name in ("submit", "map", "shutdown"):
        ours, theirs = (inspect.signature(getattr(each, name)).parameters for each in (ScalerExecutor, Executor))
        newer = {"buffersize"} - theirs.keys()  # of Python 3.14
        assert [(p.name, p.kind, p.default) for p in ours.values() if p.name not in newer] == [
            (p.name, p.kind, p.default) for p in theirs.values()
        ]


@pytest.mark.parametrize("chunksize", short_form([1, 4]))
def test_map_with_a_buffer_size_limits_reads_from_an_endless_iterable(executor: ScalerExecutor, chunksize: int) -> None:
    taken: list[int] = []

    def endless() -> Iterator[int]:
        for number in itertools.count():
            taken.append(number)
            yield number

    results = executor.map(double, endless(), chunksize=chunksize, buffersize=8)
    assert list(itertools.islice(results, 20)) == [2 * number for number in range(20)]
    assert len(taken) <= 28
    with pytest.raises(UsageError, match="buffersize"):
        executor.map(double, [1], buffersize=0)


# -- map


def test_map_yields_results_in_order_and_stops_at_the_shortest(executor: ScalerExecutor) -> None:
    assert list(executor.map(add, [1, 2, 3], (n for n in (10, 20)))) == [11, 22]
    assert list(executor.map(add, range(10), range(10), chunksize=3)) == [2 * n for n in range(10)]
    for chunksize in (1, 2):
        assert list(executor.map(double_soon, range(3), chunksize=chunksize)) == [0, 2, 4]
    assert list(executor.map(double, [])) == []
    assert list(executor.map(double)) == []
    with pytest.raises(ZeroDivisionError) as caught:
        list(executor.map(divmod, [1, 2], [1, 0]))
    assert caught.value.__notes__ == ["in item 1 of map over divmod: (2, 0)"]


def test_map_submits_at_once_and_yields_results_as_they_arrive(executor: ScalerExecutor, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    taken: list[Path] = []

    def paths() -> Iterator[str]:
        for path in (tmp_path, gate):
            taken.append(path)
            yield str(path)

    results = executor.map(wait_for_file, paths())
    assert taken == [tmp_path, gate], "all are submitted before the first result is requested"
    assert next(results) == str(tmp_path), "the first does not wait for the second"
    gate.touch()
    assert list(results) == [str(gate)]


@pytest.mark.parametrize("chunksize", short_form([2, 1]))
def test_map_timeout_counts_from_the_call_and_cancels_the_rest(
    executor: ScalerExecutor, tmp_path: Path, chunksize: int
) -> None:
    never = [str(tmp_path / name) for name in "abcd"]
    results = executor.map(wait_for_file, never, timeout=0.2, chunksize=chunksize)
    with pytest.raises(TimeoutError):
        next(results)
    assert "0 unfinished" in repr(executor)


@pytest.mark.parametrize("chunksize", short_form([2, 1]))
def test_map_cancels_the_rest_after_an_error_or_an_abandoned_iteration(
    executor: ScalerExecutor, tmp_path: Path, chunksize: int
) -> None:
    never = [str(tmp_path / name) for name in "abcd"]
    failing = executor.map(wait_for_file, [1j] * chunksize + never, chunksize=chunksize)
    with pytest.raises(TypeError, match="complex"):
        next(failing)
    assert "0 unfinished" in repr(executor)
    left: Any = executor.map(wait_for_file, [str(tmp_path)] * chunksize + never, chunksize=chunksize)
    assert next(left) == str(tmp_path)
    left.close()
    assert "0 unfinished" in repr(executor)


# -- the end


def test_shutdown_waits_and_leaves_the_callers_client_open(client: Client, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    executor = ScalerExecutor(client)
    future = executor.submit(wait_for_file, str(gate))
    executor.shutdown(wait=False)
    assert not future.done()
    with pytest.raises(RuntimeError, match="executor was shut down"):
        executor.submit(double, 1)
    with pytest.raises(RuntimeError, match="executor was shut down"):
        executor.map(double, [1])
    threading.Timer(0.1, gate.touch).start()
    executor.shutdown()
    assert future.done()
    assert "shut down" in repr(executor)
    executor.shutdown()
    assert client.submit(double, 1).result(SECONDS) == 2


def test_implicit_client_closes_after_its_last_call(cluster: SchedulerClusterCombo) -> None:
    before = set(threading.enumerate())
    executor = ScalerExecutor(address=cluster.get_address())
    (thread,) = set(threading.enumerate()) - before
    future = executor.submit(double, 4)
    executor.shutdown(wait=False)
    assert future.result(SECONDS) == 8
    thread.join(SECONDS)
    assert not thread.is_alive()


def test_unstarted_calls_can_be_cancelled_at_shutdown(client: Client, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    executor = ScalerExecutor(client)
    running = [executor.submit(begin_and_wait, str(tmp_path / name), str(gate)) for name in "ab"]
    deadline = time.monotonic() + SECONDS
    while not all(future.running() for future in running) and time.monotonic() < deadline:
        concurrent.futures.wait(running, timeout=0.01)
    waiting = [executor.submit(double, number) for number in range(10)]
    executor.shutdown(wait=False, cancel_futures=True)
    assert all(future.cancelled() for future in waiting)
    gate.touch()
    assert [future.result(SECONDS) for future in running] == [str(gate)] * 2


PROGRAM = """
import sys
from scaler import ScalerExecutor

def write(path):
    import time
    time.sleep(0.3)  # a program that does not wait would end now
    open(path, "w").close()

executor = ScalerExecutor(address=sys.argv[1])
executor.submit(write, sys.argv[2])
{end}
"""


@pytest.mark.parametrize("end", short_form(["del executor", "executor.shutdown(wait=False)"]))
def test_program_exits_after_its_calls(cluster: SchedulerClusterCombo, tmp_path: Path, end: str) -> None:
    written = tmp_path / "written"
    command = [sys.executable, "-c", PROGRAM.format(end=end), cluster.get_address(), str(written)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert written.exists()


# -- wrong input


def test_rejects_invalid_executor_arguments(client: Client) -> None:
    with pytest.raises(UsageError, match=r"address=\.\.\."):
        ScalerExecutor("tcp://127.0.0.1:1")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="address, name: "):
        ScalerExecutor(client, address="tcp://127.0.0.1:1", name="x")
    for count in (0, "2"):
        with pytest.raises(UsageError, match=f"max_workers is {count!r}"):
            ScalerExecutor(client, max_workers=count)  # type: ignore[arg-type]


# -- other people's code


# -- inside tasks


def triple_sum(executor: ScalerExecutor, numbers: list[int]) -> int:
    return int(sum(executor.map(double, numbers)) + executor.submit(sum, numbers).result())


def made_inside(numbers: list[int]) -> int:
    with ScalerExecutor() as executor:
        return triple_sum(executor, numbers)


def test_executor_is_a_task_argument_and_can_be_created_inside_tasks(executor: ScalerExecutor) -> None:
    given = [executor.submit(triple_sum, executor, list(range(number))) for number in range(8)]
    made = [executor.submit(made_inside, list(range(number))) for number in range(8)]
    expected = [3 * sum(range(number)) for number in range(8)]
    assert [future.result(SECONDS) for future in given] == expected
    assert [future.result(SECONDS) for future in made] == expected


def test_forked_child_cannot_use_or_wait_for_the_executor(executor: ScalerExecutor, tmp_path: Path) -> None:
    def is_refused(use: Callable[[], object]) -> bool:
        try:
            use()
        except ClientClosedError:
            return True
        return False

    future = executor.submit(wait_for_file, str(tmp_path / "gate"))
    child = os.fork()
    if not child:
        os._exit(0 if is_refused(lambda: executor.submit(double, 1)) and is_refused(executor.shutdown) else 1)
    (tmp_path / "gate").touch()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert future.result(SECONDS) == str(tmp_path / "gate")


def test_dask_computes_on_the_executor(executor: ScalerExecutor) -> None:
    dask: Any = importlib.import_module("dask")
    more = [dask.delayed(add)(dask.delayed(double)(number), 1) for number in range(10)]
    with dask.config.set(scheduler=executor):
        assert dask.compute(dask.delayed(sum)(more), more[3]) == (100, 7)
        with pytest.raises(ZeroDivisionError):
            dask.delayed(divmod)(1, 0).compute()
    assert dask.delayed(os.getpid)().compute(scheduler=executor) != os.getpid()
