"""Calls of a library that spreads functions over partitions of their arguments.

Prints the name of each check that has passed.
"""

import inspect
from concurrent.futures import Future
from typing import Any

import pandas as pd
import parfun
from parfun import all_arguments, dataframe, multiple_arguments, parallel, per_argument, py_list
from parfun.backend.scaler import ScalerClientPool, ScalerRemoteBackend
from parfun.functions import parallel_map, parallel_starmap

KNOWS_WORKER_CLIENTS = "use_worker_client" in inspect.signature(ScalerRemoteBackend).parameters


@parallel(split=per_argument(values=py_list.by_chunk), combine_with=py_list.concat)
def doubled(values: list[int]) -> list[int]:
    return [2 * value for value in values]


@parallel(split=all_arguments(py_list.by_chunk), combine_with=py_list.concat, fixed_partition_size=3)
def added(left: list[int], right: list[int]) -> list[int]:
    return [a + b for a, b in zip(left, right, strict=True)]


@parallel(split=multiple_arguments(("left", "right"), py_list.by_chunk), combine_with=sum, fixed_partition_size=10)
def product(left: list[int], right: list[int], scale: list[int]) -> int:
    return sum(a * b * scale[-1] for a, b in zip(left, right, strict=True))


@parallel(split=per_argument(frame=dataframe.by_row), combine_with=dataframe.concat, fixed_partition_size=50)
def with_ratio(frame: pd.DataFrame, factor: float) -> pd.DataFrame:
    return frame.assign(ratio=frame["a"] * factor / (frame["b"] + 1))


@parallel(
    split=per_argument(frame=dataframe.by_group(by="key")), combine_with=dataframe.concat, fixed_partition_size=20
)
def sums(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.groupby("key", as_index=False)["a"].sum()


@parallel(split=per_argument(values=py_list.by_chunk), combine_with=py_list.concat, fixed_partition_size=2)
def divided(values: list[int]) -> list[float]:
    return [1 / value for value in values]


@parallel(split=per_argument(values=py_list.by_chunk), combine_with=py_list.concat, fixed_partition_size=2)
def inner(values: list[int]) -> list[int]:
    return [value + 1 for value in values]


@parallel(split=per_argument(values=py_list.by_chunk), combine_with=py_list.concat, fixed_partition_size=8)
def outer(values: list[int]) -> list[int]:
    return inner(list(values))


def add(left: int, right: int) -> int:
    return left + right


def lists() -> None:
    assert doubled(list(range(3000))) == [2 * n for n in range(3000)]
    for _ in range(3):  # the library measures, and derives the next sizes
        assert doubled(list(range(100))) == [2 * n for n in range(100)]
    assert added(list(range(10)), [5] * 10) == [n + 5 for n in range(10)]


def preloaded_arguments() -> None:
    assert product(list(range(40)), [2] * 40, list(range(100_000))) == 2 * 99_999 * sum(range(40))


def dataframes() -> None:
    frame = pd.DataFrame({"a": range(200), "b": range(200), "key": [n % 7 for n in range(200)]})
    pd.testing.assert_frame_equal(
        with_ratio(frame, 2.0).reset_index(drop=True), frame.assign(ratio=frame["a"] * 2.0 / (frame["b"] + 1))
    )
    found = sums(frame).groupby("key", as_index=False)["a"].sum()
    pd.testing.assert_frame_equal(found, frame.groupby("key", as_index=False)["a"].sum())


def exceptions() -> None:
    try:
        divided([3, 2, 1, 0, 1, 2])
    except ZeroDivisionError:
        pass
    else:
        raise AssertionError("the exception of a partition is the call's")
    assert divided([1, 2, 4, 5]) == [1.0, 0.5, 0.25, 0.2]


def sessions() -> None:
    backend = parfun.get_parallel_backend()
    assert backend is not None
    with backend.session() as session:
        assert list(parallel_map(add, range(20), range(20), backend_session=session)) == [2 * n for n in range(20)]
        assert list(parallel_starmap(add, [(1, 2), (3, 4)], backend_session=session)) == [3, 7]
        future: Future[Any] = session.submit(add, session.preload_value(4), 5)
        assert future.result() == 9


def pool(address: str) -> None:
    clients = ScalerClientPool(address, {"timeout_seconds": 20})
    first, second = clients.acquire(), clients.acquire()
    assert first.submit(add, 1, 2).result() + second.submit(add, 3, 4).result() == 10
    clients.release(first)
    clients.release(second)
    assert clients.acquire() is first
    clients.disconnect_all()


def nested() -> None:
    assert outer(list(range(32))) == list(range(1, 33))


def main() -> None:
    options = {"logging_level": "WARNING", "protected": False, "name": "parfun", "timeout_seconds": 20}
    with parfun.set_parallel_backend_context("scaler_local", n_workers=2, **options):
        local = parfun.get_parallel_backend()
        assert local is not None
        for check in (lists, preloaded_arguments, dataframes, exceptions, sessions, nested):
            check()
            print(check.__name__)
        address = local.get_scheduler_address()
        with parfun.set_parallel_backend_context("scaler_remote", address, n_workers=1, timeout_seconds=20):
            lists()
            nested()
            print("remote")
        pool(address)
        print("pool")
        if KNOWS_WORKER_CLIENTS:
            with parfun.set_parallel_backend_context("scaler_remote", address, n_workers=2, use_worker_client=True):
                nested()
                print("worker_client")


if __name__ == "__main__":
    main()
