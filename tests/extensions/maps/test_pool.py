"""The `multiprocessing.Pool` interface on a cluster of two workers."""

from __future__ import annotations

import inspect
import multiprocessing
import multiprocessing.pool
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import pytest

from scaler import Client, Pool, SchedulerClusterCombo
from scaler.errors import UsageError
from scaler.worker.processor import context
from tests.waiting import until, wait_for_file

SECONDS = 20


@pytest.fixture(scope="module")
def client(cluster: SchedulerClusterCombo) -> Iterator[Client]:
    with Client(cluster.get_address(), timeout_seconds=SECONDS) as connected:
        yield connected


@pytest.fixture
def pool(client: Client) -> Iterator[Pool]:
    with Pool(client=client) as made:
        yield made


def double(x: Any) -> Any:
    return x * 2


def touch(path: str) -> None:
    Path(path).touch()


def begin_and_wait(began: Path, gate: Path) -> str:
    began.touch()
    wait_for_file(gate)
    return "done"


def name_of_task(_: int = 0) -> str:
    current = context.current()
    assert current is not None
    return current.function


def fail_at_first(path: Path) -> str:
    if not path.exists():
        path.touch()
        raise OSError("busy")
    return path.name


# -- options


def test_pool_calls_have_the_options_of_the_pool(client: Client, tmp_path: Path) -> None:
    with Pool(client=client, name="of the pool", retries=1, retry_on=OSError, priority=3) as pool:
        assert pool.apply(name_of_task) == "of the pool"
        assert pool.map(name_of_task, range(2)) == ["of the pool"] * 2
        assert list(pool.imap(name_of_task, range(2))) == ["of the pool"] * 2
        assert pool.apply(fail_at_first, (tmp_path / "a",)) == "a"
        assert pool.map(fail_at_first, [tmp_path / "b", tmp_path / "c"]) == ["b", "c"]
        assert list(pool.imap_unordered(fail_at_first, [tmp_path / "d"])) == ["d"]
    with Pool(client=client) as pool, pytest.raises(OSError, match="busy"):
        pool.map(fail_at_first, [tmp_path / "e"])


# -- calls


def test_methods_accept_the_parameters_of_the_standard_library() -> None:
    theirs = multiprocessing.pool.Pool
    names = [name for name in vars(theirs) if not name.startswith("_") and name != "Process"]
    assert set(names) == {name for name in vars(Pool) if not name.startswith("_")}
    for name in names:
        ours = [*inspect.signature(getattr(Pool, name)).parameters]
        assert ours == [*inspect.signature(getattr(theirs, name)).parameters]
    assert [*inspect.signature(Pool).parameters][:4] == [*inspect.signature(theirs).parameters][:4]


def test_map_runs_all_items_despite_errors_and_raises_the_first(pool: Pool, tmp_path: Path) -> None:
    def fail_or_touch(number: int) -> None:
        if number < 2:
            raise ValueError(number)
        touch(str(tmp_path / str(number)))

    with pytest.raises(ValueError, match="0") as caught:
        pool.map(fail_or_touch, range(10), chunksize=2)
    assert caught.value.args == (0,)
    assert sorted(path.name for path in tmp_path.iterdir()) == [str(number) for number in range(2, 10)]


# -- the initializer


table: dict[str, int] = {}


def load(path: Path, values: dict[str, int]) -> None:
    table.update(values)
    with path.open("a") as file:
        file.write(f"{os.getpid()}\n")


def look_up(name: str) -> int:
    return table[name]


def test_initializer_runs_once_per_process_before_its_first_call(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "pids"
    with Pool(None, load, [path, {"a": 1, "b": 2}], client=client) as pool:
        assert pool.map(look_up, ["a", "b"] * 10, chunksize=1) == [1, 2] * 10
        assert pool.apply(look_up, ("b",)) == 2
        assert list(pool.imap_unordered(look_up, ["a"])) == [1]
        assert pool.starmap(look_up, [("a",), ("b",)]) == [1, 2]
        assert pool.apply(look_up, kwds={"name": "a"}) == 1
    pids = path.read_text().split()
    assert len(pids) == len(set(pids))
    with Pool(None, load, [path, {"a": 3}], client=client) as other:
        assert other.apply(look_up, ("a",)) == 3, "each pool has its own initializer"


def test_failing_initializer_fails_the_calls(client: Client) -> None:
    with Pool(None, divmod, (1, 0), client=client) as pool, pytest.raises(ZeroDivisionError):
        pool.apply(double, (1,))
    with pytest.raises(TypeError, match="initializer is 3"):
        Pool(initializer=3, client=client)  # type: ignore[arg-type]


# -- the end


def test_join_waits_for_all_calls_and_leaves_the_callers_client_open(client: Client, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    pool = Pool(client=client)
    with pytest.raises(ValueError, match="still running"):
        pool.join()
    results = [pool.apply_async(wait_for_file, (gate,)), pool.map_async(wait_for_file, [gate] * 3)]
    each = pool.imap(wait_for_file, [gate])
    pool.close()
    calls: list[Callable[..., Any]] = [pool.apply, pool.map, pool.imap, pool.starmap_async]
    for call in calls:
        with pytest.raises(ValueError, match="was closed"):
            call(double, [1])
    with pytest.raises(ValueError, match="was closed"), pool:
        pass
    assert "state=CLOSE, 3 unfinished" in repr(pool)
    threading.Timer(0.05, gate.touch).start()
    pool.join()
    assert all(result.ready() for result in results)
    assert next(each) is None
    assert client.submit(double, 1).result(SECONDS) == 2


def test_terminate_cancels_queued_and_running_calls(client: Client, tmp_path: Path) -> None:
    began, never = tmp_path / "began", tmp_path / "never"
    called: list[Any] = []
    with Pool(client=client) as pool:
        single = pool.apply_async(begin_and_wait, (began, never), callback=called.append, error_callback=called.append)
        many = pool.map_async(wait_for_file, [never] * 1000, 1)
        each = pool.imap(wait_for_file, [never] * 10)
        until(began.exists)
    pool.join()
    for get in (single.get, many.get, each.next):
        with pytest.raises(CancelledError):
            get(SECONDS)
    with pytest.raises(StopIteration):
        next(each)
    assert called == []
    assert client.submit(double, 1).result(SECONDS) == 2, "the workers are free"


def test_pool_connects_to_an_address_and_closes_its_client(cluster: SchedulerClusterCombo) -> None:
    threads = set(threading.enumerate())
    with Pool(address=cluster.get_address()) as pool:
        assert pool.apply(double, (2,)) == 4
        assert pool.map(double, range(3)) == [0, 2, 4]
    assert until(lambda: set(threading.enumerate()) <= threads)


def pid(_: int) -> int:
    return os.getpid()


def test_processes_argument_starts_a_cluster_owned_by_the_pool() -> None:
    with Pool(1, maxtasksperchild=1) as pool:
        pids = pool.map(pid, range(3), chunksize=1)
        assert os.getpid() not in pids
        assert len(set(pids)) == 3, "each task has its own process"
        pool.close()
        pool.join()
        assert "disconnected" in repr(pool)


def test_rejects_invalid_pool_arguments(client: Client) -> None:
    for number in (0, -1, 0.5, "12"):
        with pytest.raises(ValueError, match="processes is"):
            Pool(number)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="maxtasksperchild is"):
            Pool(1, maxtasksperchild=number)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="not both"):
        Pool(client=client, address="tcp://127.0.0.1:1")
    for wrong in ({"processes": 2}, {"maxtasksperchild": 2}):
        with pytest.raises(UsageError, match="pool's own cluster"):
            Pool(client=client, **wrong)  # type: ignore[arg-type]
    with Pool(client=client) as pool, pytest.raises(UsageError, match="in the task"):
        pickle.dumps(pool)
