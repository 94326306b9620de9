"""Every option in every way to submit, on a real cluster of two workers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scaler import Client, Exponential, ScalerExecutor, SchedulerClusterCombo, Serializer
from scaler.client.options import Options, options_of
from scaler.client.task_calls import TemplateTable
from scaler.errors import ProcessorDiedError, TaskTimeoutError
from scaler.serialization import dump_value, load_value
from scaler.worker.processor import context
from tests.short_forms import short_form
from tests.waiting import wait_for_file

SECONDS = 20.0
Way = Callable[..., Any]


def executor_of(client: Client, options: dict[str, Any]) -> ScalerExecutor:
    return ScalerExecutor(client, task_options=options)  # type: ignore[arg-type]


WAYS: dict[str, Way] = {
    "submit_verbose": lambda client, fn, x, **options: client.submit_verbose(fn, (x,), **options).result(SECONDS),
    "view.submit": lambda client, fn, x, **options: client.options(**options).submit(fn, x).result(SECONDS),
    "map": lambda client, fn, x, **options: client.map(fn, [x], **options)[0],
    "items": lambda client, fn, x, **options: client.map(fn, [None, x, None], **options)[1],
    "chunk": lambda client, fn, x, **options: client.map(fn, [None, x, None], chunk_size=3, **options)[1],
    "starmap": lambda client, fn, x, **options: client.starmap(fn, [(x,)], **options)[0],
    "imap": lambda client, fn, x, **options: next(client.imap(fn, [x], **options)),
    "imap_unordered": lambda client, fn, x, **options: next(client.imap_unordered(fn, [x], **options)),
    "get": lambda client, fn, x, **options: client.get({"x": x, "y": (fn, "x")}, ["y"], **options)["y"],
    "node": lambda client, fn, x, **options: client.get({"x": x, "y": (fn, "x")}, ["y"], node_options={"y": options})[
        "y"
    ],
    "view.map": lambda client, fn, x, **options: client.options(**options).map(fn, [x])[0],
    "view.starmap": lambda client, fn, x, **options: client.options(**options).starmap(fn, [(x,)])[0],
    "view.imap": lambda client, fn, x, **options: next(client.options(**options).imap(fn, [x])),
    "view.imap_unordered": lambda client, fn, x, **options: next(client.options(**options).imap_unordered(fn, [x])),
    "view.get": lambda client, fn, x, **options: client.options(**options).get({"x": x, "y": (fn, "x")}, ["y"])["y"],
    "view.view": lambda client, fn, x, **options: client.options(retries=1).options(**options).map(fn, [x])[0],
    "executor.submit": lambda client, fn, x, **options: executor_of(client, options).submit(fn, x).result(SECONDS),
    "executor.map": lambda client, fn, x, **options: next(client.executor(**options).map(fn, [x])),
    "view.executor": lambda client, fn, x, **options: next(client.options(**options).executor().map(fn, [x])),
}
KINDS = ("submit_verbose", "items", "imap_unordered", "node", "executor.map")
"""Ways that implement options differently."""
VALUES: dict[str, Any] = {
    "priority": 7,
    "retries": 2,
    "retry_on": (KeyError, OSError),
    "retry_delay": Exponential(0.5, 2.0, 0.25),
    "losses": 5,
    "timeout_seconds": 17.0,
    "capabilities": {"cpus": 0.5},
    "memory": 1_000_000,
    "cpus": 0.25,
    "gpu": None,
    "near": "a model",
    "name": "a name",
    "tags": ("one", "two"),
    "profiling": True,
    "stream_output": True,
    "expected_seconds": 3.0,
}


@pytest.fixture(scope="module")
def client(cluster: SchedulerClusterCombo) -> Iterator[Client]:
    with Client(cluster.get_address(), timeout_seconds=SECONDS) as connected:
        connected.submit(int).result(SECONDS)
        yield connected


def same(x: Any) -> Any:
    return x


def calls(folder: str) -> int:
    return len(os.listdir(folder))  # noqa: PTH208 (a task does it, and needs no Path)


def fails_once(folder: str | None) -> int:
    """Raise ValueError at the first call with a folder; return the number of calls."""
    if folder is None:
        return 0
    (Path(folder) / str(time.time_ns())).touch()
    if calls(folder) < 2:
        raise ValueError("it is busy")
    return calls(folder)


def dies_then_fails(folder: str | None) -> int:
    """Kill the process at the first call with a folder, and raise ValueError at the second."""
    if folder is None:
        return 0
    (Path(folder) / str(time.time_ns())).touch()
    if calls(folder) == 1:
        os._exit(3)
    if calls(folder) == 2:
        raise ValueError("it is busy")
    return calls(folder)


def name_here(_x: Any) -> str:
    current = context.current()
    assert current is not None
    return current.function


def hangs(folder: str | None) -> int:
    if folder is not None:
        (Path(folder) / str(time.time_ns())).touch()
        wait_for_file(Path(folder) / "never")
    return 0


# -- each option reaches the tasks, in each way


def passed(client: Client, monkeypatch: pytest.MonkeyPatch, way: str, **given: Any) -> list[Options]:
    """Return the options of the tasks created by a call with some options."""
    made: list[Options] = []
    template = TemplateTable.template

    def noting(self: TemplateTable, function: Any, options: Options, parent: bytes) -> Any:
        made.append(options)
        return template(self, function, options, parent)

    monkeypatch.setattr(TemplateTable, "template", noting)
    assert WAYS[way](client, same, 5, **given) == 5
    return made


@pytest.mark.parametrize("option", short_form([*VALUES], 6))
def test_option_reaches_the_tasks(client: Client, monkeypatch: pytest.MonkeyPatch, option: str) -> None:
    wanted = options_of({option: VALUES[option]}, "options")  # type: ignore[misc]
    assert wanted != Options() or VALUES[option] is None
    assert passed(client, monkeypatch, "submit_verbose", **{option: VALUES[option]}) == [wanted]


@pytest.mark.parametrize("way", WAYS)
def test_every_submit_method_passes_its_options_on(client: Client, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    given: dict[str, Any] = {"losses": 5, "name": "a name", "tags": ("one", "two"), "expected_seconds": 3.0}
    wanted = options_of(given, "options")  # type: ignore[arg-type]
    if way == "chunk":  # of three items, which leaves half of its attempts to single items
        wanted = wanted._replace(expected_seconds=3 * wanted.expected_seconds, losses=3)
    names = ("losses", "name", "tags", "expected_seconds")
    found = [[getattr(each, name) for name in names] for each in passed(client, monkeypatch, way, **given)]
    assert [getattr(wanted, name) for name in names] in found


# -- effects


@pytest.mark.parametrize("way", short_form(KINDS, 2))
def test_retries_a_call_that_raises(client: Client, tmp_path: Path, way: str) -> None:
    assert WAYS[way](client, fails_once, str(tmp_path), retry_on=ValueError, retry_delay=0.0) == 2


@pytest.mark.parametrize("way", short_form(KINDS, 2))
def test_predicate_decides_what_is_retried(client: Client, tmp_path: Path, way: str) -> None:
    with pytest.raises(ValueError, match="it is busy"):
        WAYS[way](client, fails_once, str(tmp_path), retry_on=lambda error: "idle" in str(error))
    assert calls(str(tmp_path)) == 1


@pytest.mark.parametrize("way", short_form(["submit_verbose", "items", "map", "get", "executor.map"], 2))
def test_losses_and_retries_are_counted_separately(client: Client, tmp_path: Path, way: str) -> None:
    assert WAYS[way](client, dies_then_fails, str(tmp_path), retries=1, retry_on=ValueError, retry_delay=0.0) >= 3


@pytest.mark.parametrize("way", short_form(["submit_verbose", "map", "get", "executor.map"], 2))
def test_retries_a_call_after_exceptions_but_not_after_a_loss(client: Client, tmp_path: Path, way: str) -> None:
    with pytest.raises(ProcessorDiedError, match="losses=0; it may have run"):
        WAYS[way](client, dies_then_fails, str(tmp_path), losses=0, retry_on=ValueError)
    assert calls(str(tmp_path)) == 1


@pytest.mark.parametrize("way", short_form(KINDS, 2))
def test_call_waits_before_a_retry(client: Client, tmp_path: Path, way: str) -> None:
    WAYS[way](client, fails_once, str(tmp_path), retry_on=ValueError, retry_delay=lambda attempt: attempt * 0.3)
    first, second = sorted(int(each.name) for each in tmp_path.iterdir())
    assert second - first > 0.25e9


@pytest.mark.parametrize("way", short_form(KINDS, 2))
def test_stops_a_call_that_takes_too_long(client: Client, tmp_path: Path, way: str) -> None:
    with pytest.raises(TaskTimeoutError, match=r"longer than its time limit of 0\.3 s"):
        WAYS[way](client, hangs, str(tmp_path), timeout_seconds=0.3)


@pytest.mark.parametrize("way", short_form(KINDS, 2))
def test_call_has_the_given_name(client: Client, way: str) -> None:
    assert WAYS[way](client, name_here, 1, name="my name") == "my name"


def test_all_tasks_with_a_tag_are_cancelled_together(client: Client, tmp_path: Path) -> None:
    view = client.options(tags=("sweep", "first"))
    futures = [view.submit(wait_for_file, tmp_path / "never") for _ in range(3)]
    other = client.options(tags="other").submit(wait_for_file, tmp_path / "go")
    assert client.cancel(tag="sweep") == 3
    assert all(future.cancelled() for future in futures)
    assert client.cancel(tag="sweep") == 0
    (tmp_path / "go").touch()
    other.result(SECONDS)


def test_option_of_a_call_overrides_its_view(client: Client) -> None:
    view = client.options(name="outer")
    assert view.map(name_here, [1], name="inner") == ["inner"]
    assert view.options(name="inner").map(name_here, [1]) == ["inner"]
    assert view.map(name_here, [1]) == ["outer"]
    assert client.map(name_here, [1]) == ["name_here"]


def test_keywords_of_submit_are_passed_to_the_function(client: Client) -> None:
    found = client.options(retries=5).submit(dict, retries=1, name="x", profiling=2).result(SECONDS)
    assert found == {"retries": 1, "name": "x", "profiling": 2}


def test_view_can_be_sent_to_a_task(client: Client) -> None:
    assert (
        client.submit(lambda view: view.submit(name_here, 1).result(), client.options(name="x")).result(SECONDS) == "x"
    )


# -- inside chunks


def mixed(item: tuple[int, str]) -> int:
    """Record the call; fail at the first call for every fifth number, always for 13, and hang for 19."""
    number, folder = item
    (Path(folder) / f"{number}-{time.time_ns()}").touch()
    count = len([each for each in os.listdir(folder) if each.startswith(f"{number}-")])  # noqa: PTH208
    if number == 19:
        wait_for_file(Path(folder) / "never")
    if number == 13 or (number % 5 == 0 and count < 2):
        raise ValueError(f"{number} is busy")
    return number


def called(folder: Path) -> dict[int, int]:
    found: dict[int, int] = {}
    for each in folder.iterdir():
        number = int(each.name.partition("-")[0])
        found[number] = found.get(number, 0) + 1
    return found


class Pickled(Serializer):
    @staticmethod
    def serialize(obj: Any) -> bytes:
        return bytes(dump_value(obj)[0])

    @staticmethod
    def deserialize(payload: bytes) -> Any:
        return load_value([payload])


@pytest.mark.parametrize("is_plain", short_form([True, False], 2))
def test_items_fail_and_are_retried_individually(
    client: Client, cluster: SchedulerClusterCombo, tmp_path: Path, is_plain: bool
) -> None:
    items = [(number, str(tmp_path)) for number in range(20)]
    options: dict[str, Any] = {"retries": 2, "retry_on": ValueError, "retry_delay": 0.01, "timeout_seconds": 4.0}
    with Client(cluster.get_address(), serializer=None if is_plain else Pickled) as own:
        found = own.map(mixed, items, return_exceptions=True, **options)
    assert [each for each in found if isinstance(each, int)] == [each for each in range(20) if each not in (13, 19)]
    assert (type(found[13]), type(found[19])) == (ValueError, TaskTimeoutError)
    assert (found[13].item_index, found[19].item_index) == (13, 19)
    counts = called(tmp_path)
    assert counts == {number: 3 if number == 13 else 2 if number % 5 == 0 else 1 for number in range(20)}


def test_retried_item_does_not_delay_other_items(client: Client, tmp_path: Path) -> None:
    items = [(number, str(tmp_path)) for number in range(1, 10)]
    results = client.imap_unordered(mixed, items, retry_on=ValueError, retry_delay=60.0)
    assert sorted(next(results) for _ in range(8)) == [1, 2, 3, 4, 6, 7, 8, 9]
    results.close()
