"""Submittable calls and their options, and the errors for everything else."""

from __future__ import annotations

import asyncio
import functools
import operator
import os
import subprocess
import sys
import threading
import traceback
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scaler import Client, ScalerExecutor, SchedulerClusterCombo
from scaler.errors import SerializationError, UsageError
from tests.waiting import wait_for_file

SECONDS = 20


@pytest.fixture(scope="module")
def one_worker() -> Iterator[SchedulerClusterCombo]:
    with SchedulerClusterCombo(n_workers=1, per_worker_capabilities={"gpu": 1, "here": None}) as combo:
        yield combo


@pytest.fixture(scope="module")
def client(one_worker: SchedulerClusterCombo) -> Iterator[Client]:
    with Client(one_worker.get_address(), timeout_seconds=SECONDS) as connected:
        yield connected


def everything(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
    return args, kwargs


def loud(function: Callable[..., str]) -> Callable[..., str]:
    @functools.wraps(function)
    def wrapped(*args: Any) -> str:
        return function(*args).upper()

    return wrapped


@loud
def greet(name: str) -> str:
    return f"hello {name}"


def countdown() -> Callable[[int], list[int]]:
    def count(n: int) -> list[int]:
        return [n, *count(n - 1)] if n else [0]

    return count


class Shelf:
    shared = "shared"

    def __init__(self, lock: bool) -> None:
        self.lock = threading.Lock() if lock else None

    def locked(self) -> bool:
        return self.lock is not None

    @classmethod
    def of_class(cls) -> str:
        return cls.shared

    @staticmethod
    def of_nobody(x: int) -> int:
        return x


async def later(x: int) -> int:
    await asyncio.sleep(0)
    if x < 0:
        raise ValueError(f"{x} is below 0")
    return x + 1


# -- supported callables


@pytest.mark.parametrize(
    ("function", "args", "expected"),
    [
        (greet, ("you",), "HELLO YOU"),
        (countdown(), (3,), [3, 2, 1, 0]),
        (functools.partial(functools.partial(everything, 1, a=1), 2, b=2), (3,), ((1, 2, 3), {"a": 1, "b": 2})),
        (Shelf(lock=False).locked, (), False),
        (Shelf.of_class, (), "shared"),
        (Shelf.of_nobody, (4,), 4),
        (operator.itemgetter(1), ("ab",), "b"),
        (str.upper, ("a",), "A"),
        (np.add, (1, 2), 3),
        (dict, ([("a", 1)],), {"a": 1}),
        (later, (1,), 2),
        (functools.partial(later, 5), (), 6),
    ],
)
def test_callables_of_every_kind_run(client: Client, function: Any, args: Any, expected: Any) -> None:
    assert client.submit(function, *args).result(SECONDS) == expected


def test_keyword_arguments_may_have_any_name(client: Client) -> None:
    future = client.submit(everything, fn=1, self=2, args=3, kwargs=4, name=5, priority=6)
    assert future.result(SECONDS) == ((), {"fn": 1, "self": 2, "args": 3, "kwargs": 4, "name": 5, "priority": 6})
    assert client.submit(everything, a=future, b=[future]).result(SECONDS)[1]["b"] == [future.result()]


PROGRAM = """
import sys
from scaler import Client
FACTOR = 3
class Point:
    def __init__(self, x): self.x = x
def times(point): return Point(scaled(point.x))
def scaled(x): return x * FACTOR
if __name__ == "__main__":
    with Client(sys.argv[1]) as client:
        print(client.submit(times, Point(2)).result(20).x, client.map(lambda x: scaled(x), [1, 2]))
        def run(source):
            scope = {"client": client, "__name__": "__main__"}
            exec(source, scope)
            return scope["result"]
        print(run("def double(x): return more(x)\\ndef more(x): return 2 * x\\n"
                  "result = client.submit(double, 4).result(20)"))
"""


@pytest.mark.parametrize("how", ["file", "-c"])
def test_functions_and_classes_of_a_program_run(one_worker: SchedulerClusterCombo, how: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    arguments = [str(tmp_path / "program.py")] if how == "file" else ["-c", PROGRAM]
    command = [sys.executable, "-W", "error", *arguments, one_worker.get_address()]
    run = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (0, "6 [3, 6]\n8\n", "")


# -- rejected calls


def test_unsendable_value_is_named_before_anything_runs(client: Client) -> None:
    with pytest.raises(SerializationError, match=r"function Shelf\.locked .*_thread\.lock"):
        client.submit(Shelf(lock=True).locked)
    with pytest.raises(SerializationError, match=r"argument 'z' of everything is a generator"):
        client.submit(everything, 1, z=(x for x in "ab"))
    with pytest.raises(SerializationError, match="Client cannot be pickled directly: pass it to submit"):
        client.submit(lambda: client.submit(abs, 1))


def test_unpicklable_result_error_names_the_value(client: Client) -> None:
    with pytest.raises(SerializationError, match=r"the result is a generator"):
        client.submit(lambda: (x for x in "ab")).result(SECONDS)
    with pytest.raises(SerializationError, match=r"the result \(scaler\.client\.future\.ScalerFuture"):
        client.submit(lambda inner: inner.submit(abs, 1), client).result(SECONDS)


def test_names_a_module_missing_on_workers(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("only_here")
    exec("def f(x): return x\nclass K: pass", module.__dict__)
    monkeypatch.setitem(sys.modules, "only_here", module)
    for future in (client.submit(module.f, 1), client.submit(type, module.K())):
        with pytest.raises(
            SerializationError,
            match=r"No module named 'only_here' here: install it, or .*client.upload\('only_here.py'\)",
        ):
            future.result(SECONDS)
        shown = "".join(traceback.format_exception(future.exception(SECONDS)))
        assert shown.count("only_here.py") == 1, "the hint is shown once"


def test_rejects_an_invalid_timeout_or_name_before_connecting() -> None:
    for seconds in ("x", None, True, 0, -1, float("nan"), float("inf")):
        with pytest.raises(UsageError, match=r"timeout_seconds is .* must be a number above 0"):
            Client("tcp://127.0.0.1:1", timeout_seconds=seconds)  # type: ignore[arg-type]
    for name in (3, "\ud800"):
        with pytest.raises(UsageError, match=r"name is .* must be a string"):
            Client("tcp://127.0.0.1:9", name=name)  # type: ignore[arg-type]


# -- options


def note(path: str, text: str) -> str:
    with Path(path).open("a") as file:
        file.write(text)
    return Path(path).read_text()


def fail_after_a_note(path: str, error: type[BaseException]) -> None:
    note(path, "x")
    raise error("again")


def test_higher_priority_runs_first(client: Client, tmp_path: Path) -> None:
    order = str(tmp_path / "order")
    first = client.submit(wait_for_file, str(tmp_path / "never"))
    while not first.running():
        os.sched_yield()
    futures = [
        client.submit_verbose(note, (order, text), priority=priority, retries=0)  # retries=0: no task is prefetched
        for text, priority in [("c", 0), ("d", 0), ("e", -1), ("b", 1), ("a", 10)]
    ]
    assert first.cancel()  # the worker is free again when this arrives, which is after all the tasks
    assert max((future.result(SECONDS) for future in futures), key=len) == "abcde"


def test_retry_on_retries_only_named_errors_up_to_the_limit(client: Client, tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in ("listed", "unlisted", "default")]
    listed = client.submit_verbose(fail_after_a_note, (paths[0], KeyError), retries=2, retry_on=(LookupError, OSError))
    unlisted = client.submit_verbose(fail_after_a_note, (paths[1], ValueError), retries=2, retry_on=LookupError)
    default = client.submit_verbose(fail_after_a_note, (paths[2], KeyError))
    assert [type(future.exception(SECONDS)) for future in (listed, unlisted, default)] == [
        KeyError,
        ValueError,
        KeyError,
    ]
    assert [Path(path).read_text() for path in paths] == ["xxx", "x", "x"]


def test_profiling_is_enabled_per_task_or_client(one_worker: SchedulerClusterCombo, client: Client) -> None:
    def work() -> int:
        return sum(range(200_000))

    with Client(one_worker.get_address(), profiling=True) as profiling:
        futures = [
            profiling.submit(work),
            client.submit_verbose(work, profiling=True),
            profiling.submit(work, profiling=False),
            client.submit(work),
        ]
        infos = [future.profiling_info() for future in futures if future.result(SECONDS)]
    assert [info.cpu_time_us > 0 for info in infos] == [True, True, False, False]
    assert [info.peak_memory > 0 for info in infos] == [True, True, False, False]
    assert all(info.duration_us > 0 for info in infos)


def test_rejects_unexpected_arguments_at_once(client: Client) -> None:
    submits: list[Callable[[], object]] = [
        lambda: client.submit(len),
        lambda: client.submit(len, "a", "b"),
        lambda: client.submit(int.bit_length, base=7),
        lambda: client.submit_verbose(len, ("a", "b")),
    ]
    for submit in submits:
        with pytest.raises(TypeError, match="does not take these arguments"):
            submit()
    with ScalerExecutor(client) as executor:  # like the standard library's executors
        assert isinstance(executor.submit(len).exception(), TypeError)
