"""Typical uses of map, starmap, imap, and imap_unordered on a real cluster of two workers."""

from __future__ import annotations

import gc
import importlib
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from scaler import Client, SchedulerClusterCombo
from scaler.errors import (
    ClientClosedError,
    ClientDisconnectedError,
    ProcessorDiedError,
    RemoteTraceback,
    SerializationError,
    UsageError,
)
from scaler.worker.processor import context
from tests.short_forms import short_form
from tests.waiting import until, wait_for_file

SECONDS = 20.0


@pytest.fixture(scope="module")
def client(cluster: SchedulerClusterCombo) -> Iterator[Client]:
    with Client(cluster.get_address(), timeout_seconds=SECONDS) as connected:
        connected.submit(int).result(SECONDS)
        yield connected


def double(x: Any) -> Any:
    return x * 2


def add(a: Any, b: Any) -> Any:
    return a + b


def inverse(x: float) -> float:
    return 1 / x


def task_of(_item: Any) -> bytes:
    """Return the id of the running task: that of the chunk."""
    current = context.current()
    assert current is not None
    return current.task_id


def wait_for_first_file(directory: Path) -> None:
    """Wait for an item to start. Any may be first, because a new processor must import this module first."""
    until(lambda: any(directory.iterdir()))


def note_and_hang(directory: Path, item: int) -> int:
    """Return the first item at once, and block on all other items."""
    if item:
        (directory / str(item)).touch()
        signal.pause()
    return item


class TwoArgumentsError(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{text} ({code})")
        self.code = code


# -- map and starmap


def test_map_keeps_order_over_any_iterables(client: Client) -> None:
    assert client.map(double, range(1000)) == [2 * number for number in range(1000)]
    assert client.map(add, [1, 2, 3], (number for number in (10, 20))) == [11, 22]
    assert client.map(double, []) == []
    assert client.starmap(add, ([number, 1] for number in range(10))) == list(range(1, 11))
    assert client.map(lambda x: x, "abc") == ["a", "b", "c"]


def test_tiny_calls_are_batched_and_chunk_size_overrides_it(client: Client) -> None:
    client.map(task_of, range(5000))  # the first chunks are small, because nothing is measured yet
    assert len(set(client.map(task_of, range(5000)))) < 1000
    tasks = client.map(task_of, range(10), chunk_size=4)
    assert [len(list(same)) for _, same in itertools.groupby(tasks)] == [4, 4, 2]
    assert len(set(client.map(task_of, range(100), chunk_size=1))) == 100


def test_first_failing_item_identifies_itself_and_harms_nothing_else(client: Client) -> None:
    other = client.submit(double, 21)
    with pytest.raises(ZeroDivisionError) as caught:
        client.map(lambda x: 1 / (x - 700), range(10_000))
    assert caught.value.item_index == 700  # type: ignore[attr-defined]
    assert "in item 700 of map over" in caught.value.__notes__[0]
    assert isinstance(caught.value.__cause__, RemoteTraceback)
    assert other.result(SECONDS) == 42
    assert client.map(double, [1]) == [2]


@pytest.mark.parametrize(
    ("kind", "args"),
    [(StopIteration, ("x",)), (SystemExit, (3,)), (KeyboardInterrupt, ()), (TwoArgumentsError, (4, "no"))],
)
def test_any_exception_of_an_item_is_raised(client: Client, kind: type[BaseException], args: tuple[Any, ...]) -> None:
    def fail(item: int) -> int:
        if item == 2:
            raise kind(*args)
        return item

    with pytest.raises(kind) as caught:
        client.map(fail, range(4), chunk_size=4)
    assert caught.value.args == kind(*args).args
    assert caught.value.item_index == 2  # type: ignore[attr-defined]
    if isinstance(caught.value, TwoArgumentsError):
        assert caught.value.code == 4


def test_unsendable_item_is_named_with_its_argument(client: Client) -> None:
    items = [1, 2, threading.Lock(), 4]
    future = client.submit(double, 1)
    with pytest.raises(SerializationError, match=r"argument 1 of double at \[1\] \(_thread\.lock\) cannot be"):
        client.map(double, [[future, threading.Lock()]])
    with pytest.raises(SerializationError, match=r"argument 2 of add \(_thread\.lock\) cannot be") as caught:
        client.map(add, range(4), items, chunk_size=4)
    assert caught.value.item_index == 2  # type: ignore[attr-defined]
    results = client.map(double, items, chunk_size=4, return_exceptions=True)
    assert [result for result in results if isinstance(result, int)] == [2, 4, 8]
    assert isinstance(results[2], SerializationError)


@pytest.mark.parametrize("lives", [0, 1])
def test_process_killed_by_an_item_affects_no_other_item(client: Client, tmp_path: Path, lives: int) -> None:
    def deadly(item: int) -> int:
        if item == 3:
            died = len(list(tmp_path.iterdir()))
            if not lives or died < lives:
                (tmp_path / str(died)).touch()
                os._exit(3)
        return item

    results = client.map(deadly, range(6), chunk_size=6, return_exceptions=True)
    assert results[:3] + results[4:] == [0, 1, 2, 4, 5]
    if lives:
        assert results[3] == 3
    else:
        assert isinstance(results[3], ProcessorDiedError)
        assert "exit code 3" in str(results[3])
        assert results[3].item_index == 3  # type: ignore[attr-defined]


@pytest.mark.parametrize("losses", [1, 2, 3])
def test_item_of_a_lost_chunk_starts_no_more_often_than_a_task(client: Client, tmp_path: Path, losses: int) -> None:
    def deadly(item: int) -> int:
        (tmp_path / f"{item}-{time.time_ns()}").touch()
        if item == 1:
            os._exit(3)
        return item

    results = client.map(deadly, range(3), chunk_size=3, return_exceptions=True, retries=losses)
    assert results[::2] == [0, 2]
    assert isinstance(results[1], ProcessorDiedError)
    assert "ended with a chunk that contained other items" in results[1].__notes__[-1]
    assert len([each for each in tmp_path.iterdir() if each.name.startswith("1-")]) == losses + 1


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"retries": 0}, "retries=0"),
        ({"losses": 0}, "losses=0"),
        ({"retry_on": ValueError}, "retry_on"),
        ({"timeout_seconds": 5.0}, "timeout_seconds"),
        ({"cache": True}, "cache"),
        ({"keys": "ab"}, "keys"),
    ],
)
def test_chunk_size_without_effect_is_refused(client: Client, options: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=f"chunk_size is 2, but with {why}, each call is a task"):
        client.map(double, [1, 2], chunk_size=2, **options)


def test_item_of_a_class_that_the_workers_lack_fails_alone(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here.py").write_text("class Point:\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    point = importlib.import_module("only_here").Point()
    results = client.map(lambda item: type(item).__name__, [1, point, "x"], chunk_size=3, return_exceptions=True)
    assert results[::2] == ["int", "str"]
    assert "only_here" in str(results[1])
    assert results[1].item_index == 1


def test_futures_may_be_items_and_a_failed_one_fails_only_its_item(client: Client) -> None:
    items = [client.submit(double, 1), client.submit(inverse, 0), 5]
    results = client.map(double, items, chunk_size=3, return_exceptions=True)
    assert results[::2] == [4, 10]
    assert isinstance(results[1], ZeroDivisionError)
    assert results[1].item_index == 1  # type: ignore[attr-defined]


def test_progress_shows_the_total_if_known(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    client.map(add, range(50), range(60), progress=True)
    assert "50/50" in capsys.readouterr().err
    client.starmap(add, ((number, 1) for number in range(50)), progress=True)
    assert "50it" in capsys.readouterr().err
    assert list(client.imap(double, range(50), progress=True)) == [2 * item for item in range(50)]
    assert "double: 100%" in capsys.readouterr().err
    assert len(list(client.imap_unordered(double, (item for item in range(50)), progress=True))) == 50
    assert "50it" in capsys.readouterr().err


def test_progress_counts_failed_items(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    client.map(inverse, [1, 0, 2, 0], return_exceptions=True, progress=True)
    shown = capsys.readouterr().err
    assert "4/4" in shown
    assert shown.rstrip().endswith("failed=2]")
    list(client.imap(inverse, [1, 0, 2, 0], chunk_size=2, return_exceptions=True, progress=True))
    assert capsys.readouterr().err.rstrip().endswith("failed=2]")


def closed_bar(capsys: pytest.CaptureFixture[str]) -> str:
    """Return the text of a closed bar, without the blanks with which tqdm overwrites a longer line."""
    shown = capsys.readouterr().err
    assert shown.endswith("\n")
    return shown.rstrip()


def test_progress_bar_is_always_closed(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise OSError("no more")

    with pytest.raises(ZeroDivisionError):
        client.map(inverse, [0], progress=True)
    assert closed_bar(capsys).endswith("failed=1]")
    with pytest.raises(OSError, match="no more"):
        client.map(inverse, broken(), progress=True)
    assert closed_bar(capsys).endswith("]")
    with pytest.raises(OSError, match="no more"):
        list(client.imap(inverse, broken(), progress=True))
    assert closed_bar(capsys).endswith("]")
    results = client.imap(double, itertools.count(), progress=True)
    assert next(results) == 0
    results.close()
    assert closed_bar(capsys).endswith("]")
    dropped = client.imap(double, itertools.count(), progress=True)
    assert next(dropped) == 0
    del dropped
    gc.collect()
    assert closed_bar(capsys).endswith("]")


@pytest.mark.parametrize("size", [0, -1, True, 1.5])
def test_rejects_invalid_sizes(client: Client, size: Any) -> None:
    with pytest.raises(UsageError, match="chunk_size"):
        client.map(double, [1], chunk_size=size)
    with pytest.raises(UsageError, match="window"):
        client.imap(double, [1], window=size)
    with pytest.raises(UsageError, match="at least 8"):
        client.imap(double, [1], window=7, chunk_size=8)


def test_rejects_memory_that_cannot_be_mapped(client: Client) -> None:
    for method in (client.map, client.imap, client.imap_unordered):
        with pytest.raises(UsageError, match="at least one iterable"):
            method(double)
        with pytest.raises(UsageError, match="needs a callable, not 3"):
            method(3, [1])  # type: ignore[arg-type]
        with pytest.raises(UsageError, match=f"iterable 1 of {method.__name__} is 3, but must be iterable"):
            method(double, 3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"item 1 of starmap is 5"):
        client.starmap(add, [(1, 2), 5])  # type: ignore[list-item]


def test_disconnecting_a_client_ends_its_maps(cluster: SchedulerClusterCombo, tmp_path: Path) -> None:
    client = Client(cluster.get_address())
    results = client.imap(note_and_hang, itertools.repeat(tmp_path), itertools.count(), window=4)
    assert next(results) == 0

    def disconnect() -> None:
        wait_for_first_file(tmp_path)
        client.disconnect()

    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(disconnect)
        with pytest.raises((ClientDisconnectedError, ClientClosedError)):
            client.starmap(note_and_hang, ((tmp_path, item) for item in range(20)))
        ended.result(SECONDS)
    errors = []
    while True:
        try:
            next(results)
        except StopIteration:
            break
        except (ClientDisconnectedError, ClientClosedError) as error:
            errors.append(error)
    assert 1 <= len(errors) <= 5
    for method in (client.map, client.imap, client.imap_unordered):
        with pytest.raises(ClientClosedError):
            method(double, [1])


# -- imap and imap_unordered


def test_imap_reads_at_most_its_window_from_an_endless_iterable(client: Client) -> None:
    pulled = []

    def items() -> Iterator[int]:
        for item in itertools.count():
            pulled.append((item, threading.current_thread()))
            yield item

    results = client.imap(double, items(), window=5)
    assert 0 < len(pulled) <= 5
    for taken in range(100):
        assert next(results) == 2 * taken
        assert len(pulled) <= taken + 1 + 5
    assert {thread for _, thread in pulled} == {threading.current_thread()}
    seen = len(pulled)
    client.submit(double, 1).result(SECONDS)
    assert len(pulled) == seen
    results.close()
    assert list(results) == []


def test_imap_yields_everything_in_order_and_imap_unordered_everything(client: Client) -> None:
    assert list(client.imap(double, range(5000))) == [2 * number for number in range(5000)]
    assert list(client.imap(add, [1, 2, 3], iter((10, 20)), chunk_size=2)) == [11, 22]
    assert sorted(client.imap_unordered(double, range(5000))) == [2 * number for number in range(5000)]
    assert list(client.imap(double, [])) == []
    assert len(set(client.imap(task_of, range(5000)))) < 2500


def test_imap_unordered_yields_whatever_is_ready(client: Client, tmp_path: Path) -> None:
    def second_first(item: int) -> int:
        if not item:
            wait_for_file(tmp_path / "go")
        return item

    results = client.imap_unordered(second_first, range(3))
    assert {next(results), next(results)} == {1, 2}
    (tmp_path / "go").touch()
    assert list(results) == [0]


@pytest.mark.parametrize("chunk_size", [None, 4])
def test_failed_item_raises_in_order_and_later_items_follow(client: Client, chunk_size: int | None) -> None:
    results = client.imap(inverse, [1, 0, 2, 0, 4], chunk_size=chunk_size)
    seen: list[Any] = []
    while True:
        try:
            seen.append(next(results))
        except ZeroDivisionError as error:
            seen.append(f"{error.item_index}: {error.__notes__}")  # type: ignore[attr-defined]
        except StopIteration:
            break
    note = "['in item {} of imap over inverse: 0']"
    assert seen == [1.0, f"1: {note.format(1)}", 0.5, f"3: {note.format(3)}", 0.25]


def test_stop_iteration_from_an_item_does_not_end_the_loop_silently(client: Client) -> None:
    def fail(item: int) -> int:
        if item == 1:
            raise StopIteration
        return item

    results = client.imap(fail, range(3))
    assert next(results) == 0
    with pytest.raises(RuntimeError, match="item 1 raised StopIteration"):
        next(results)
    assert list(results) == [2]


def test_iterable_exception_follows_the_results_before_it(client: Client) -> None:
    def items() -> Iterator[int]:
        yield from range(3)
        raise OSError("no more files")

    for method in (client.imap, client.imap_unordered):
        results = method(double, items())
        assert sorted(next(results) for _ in range(3)) == [0, 2, 4]
        with pytest.raises(OSError, match="no more files"):
            next(results)
        assert list(results) == []


def test_iterable_may_depend_on_results_with_a_window_of_one(client: Client) -> None:
    seen: list[int] = []

    def items() -> Iterator[int]:
        yield 1
        while seen[-1] < 1000:
            yield seen[-1]

    seen.extend(client.imap(double, items(), window=1))
    assert seen == [2**power for power in range(1, 11)]


def test_rejects_an_iterable_that_consumes_its_own_results(client: Client) -> None:
    def items() -> Iterator[int]:
        yield 1
        yield from results

    results = client.imap(double, items(), window=1)
    assert next(results) == 2
    with pytest.raises(UsageError, match="the same imap"):
        next(results)


def break_out(results: Any) -> None:
    for _ in results:
        break


def drop_in_a_ring(results: Any) -> None:
    next(results)
    ring = [results]
    ring.append(ring)
    del results, ring
    gc.collect()


def close(results: Any) -> None:
    next(results)
    results.close()
    results.close()


@pytest.mark.parametrize("end", short_form([break_out, drop_in_a_ring, close]))
def test_abandoned_imap_cancels_unfinished_tasks(client: Client, tmp_path: Path, end: Callable[[Any], None]) -> None:
    end(client.imap(note_and_hang, itertools.repeat(tmp_path), itertools.count()))
    assert client.submit(double, 1).result(SECONDS) == 2  # earlier tasks would have blocked for a minute
