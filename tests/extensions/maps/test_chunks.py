"""How map splits its items, and how a chunk runs them."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import numpy
import pytest

from scaler.extensions.maps.chunks import ChunkResults, ItemsFailedError, MapFunction, call_each
from scaler.extensions.maps.values import Items
from scaler.extensions.maps.window import MAX_CHUNK_ITEMS, PROBE_TIMEOUT_SECONDS, UNPROVEN_CHUNKS, Chunking
from scaler.protocol.failures import failure_texts
from scaler.protocol.messages import Outcome
from scaler.serialization import dump_function, dump_value, load, size_of
from scaler.serialization.exceptions import dump_exception, load_exception
from scaler.worker.processor.calling import failure_of


def chunk(function: Any, spread: bool = False) -> MapFunction:
    """Return the callable of a chunk's task, as unpickled on a worker."""
    made = MapFunction(dump_function(function), "function", spread)
    loaded = arrived(made)
    assert isinstance(loaded, MapFunction)
    return loaded


def arrived(value: Any) -> Any:
    return load(dump_value(value))


def simulate(seconds_per_item: float, items: int) -> list[int]:
    """Send chunks to one worker of this speed; return their sizes."""
    chunking = Chunking(None, 0.0)
    sizes: list[int] = []
    waiting: list[int] = []
    now = 0.0
    while items > 0:
        size = chunking.next_size(now)
        if size:
            size = min(size, items)
            items -= size
            chunking.sent()
            sizes.append(size)
            waiting.append(size)
        elif waiting and now + waiting[0] * seconds_per_item < chunking.wake_at:
            ended = waiting.pop(0)
            now += ended * seconds_per_item
            chunking.ended(ended, ended * seconds_per_item, now)
        else:
            now = chunking.wake_at
    return sizes


def test_slow_items_are_sent_alone() -> None:
    assert set(simulate(0.1, 500)) == {1}


def test_tiny_items_are_soon_batched_by_the_thousand() -> None:
    sizes = simulate(1e-7, 50_000)
    assert max(sizes) == MAX_CHUNK_ITEMS
    assert len(sizes) < 8 * UNPROVEN_CHUNKS


def test_few_calls_are_in_flight_until_measured_and_more_if_none_return() -> None:
    chunking = Chunking(None, 0.0)
    for _ in range(UNPROVEN_CHUNKS):
        assert chunking.next_size(0.0) == 1
        chunking.sent()
    assert chunking.next_size(0.0) == 0
    assert chunking.wake_at == PROBE_TIMEOUT_SECONDS
    assert chunking.next_size(PROBE_TIMEOUT_SECONDS) == 1


@pytest.mark.parametrize("items", [[1, 0, 2, 0], Items([1, 0, 2, 0]), Items([1, 0, 2, 0, []])])
@pytest.mark.parametrize("error", [ZeroDivisionError, StopIteration, SystemExit, KeyboardInterrupt])
def test_items_raising_anything_harm_no_others_and_run_once(
    error: type[BaseException], items: Any, tmp_path: Path
) -> None:
    calls = tmp_path / "calls"

    def inverse(x: Any) -> Any:
        with calls.open("a") as file:
            file.write(f"{x} ")
        if x == []:
            return x
        if not x:
            raise error("zero")
        return 1 / x

    returned = call_each(chunk(inverse), arrived(items))
    assert calls.read_text().startswith("1 0 2 0 ")
    results = arrived(returned)
    assert isinstance(results, ChunkResults)
    assert results[:4] == [1.0, None, 0.5, None]
    assert set(results.failures) == {1, 3}
    exception = load_exception(results.failures[1])
    assert type(exception) is error
    assert "in inverse" in str(exception.__cause__)


def test_chunk_fails_with_its_first_error_and_keeps_all_results() -> None:
    with pytest.raises(ItemsFailedError) as raised:
        chunk(int)(["1", "x", "3", "y"])
    payload = dump_exception(raised.value, "")
    text, traceback = failure_texts(Outcome.EXCEPTION, payload)
    assert text == "ValueError: invalid literal for int() with base 10: 'x' (2 of 4 items failed)"
    assert traceback.startswith("item: 'x'\n")
    loaded = load_exception(payload)
    assert isinstance(loaded, ItemsFailedError)
    assert list(loaded.results) == [1, None, 3, None]
    assert set(loaded.results.failures) == {1, 3}


def test_unloadable_item_affects_no_other_item() -> None:
    results = arrived(call_each(chunk(type), arrived(Items([[1], Unloadable(), 2]))))
    assert list(results) == [list, None, int]
    assert str(load_exception(results.failures[1])).startswith("the arguments cannot be loaded: KeyError")


def late_error(item: int) -> int:
    """Make the chunk raise as if a signal handler ran after the call of item 1."""
    frame = sys._getframe()  # noqa: SLF001
    while frame.f_code.co_name != "call_each":
        assert frame.f_back is not None
        frame = frame.f_back

    def fail(frame: FrameType, *_: Any) -> Any:
        if len(frame.f_locals["results"]) == 2:
            sys.settrace(None)
            raise TimeoutError("late")
        return fail

    if item == 1:
        frame.f_trace = fail
        sys.settrace(lambda *_: None)
    return item


def test_exception_between_calls_fails_the_whole_chunk() -> None:
    with pytest.raises(TimeoutError, match="late"):
        call_each(chunk(late_error), arrived(Items([0, 1, 2, 3])))


class Account:
    """Pickled by the name of its class, and its attributes."""

    def __init__(self, *values: Any) -> None:
        self.values: Any = values

    @staticmethod
    def of(values: Any) -> Account:
        made = Account()
        made.values = values
        return made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Account) and self.values == other.values

    __hash__ = None  # type: ignore[assignment]


class Unloadable:
    """Is pickled without an error, and raises one when unpickled."""

    def __reduce__(self) -> Any:
        return {}.__getitem__, ("missing",)


def push(seen: list[Any]) -> Any:
    seen.append(1)
    return seen


class Counter:
    def __init__(self) -> None:
        self.count = 0

    def add(self, _: Any) -> int:
        self.count += 1
        return self.count


SHARED: list[Any] = []


@pytest.mark.parametrize(
    ("function", "items", "result"),
    [
        (push, [SHARED] * 9, [[1]] * 9),
        (lambda pair: len(push(pair[0])), [(SHARED, each) for each in range(9)], [1] * 9),
        (Counter().add, range(9), [1] * 9),
        (functools.partial(lambda seen, _: push(seen), []), range(9), [[1]] * 9),
        (lambda pair: push(pair[0][0]), [((SHARED,), each) for each in range(9)], [[1]] * 9),
        (lambda pair: push(pair[0]["list"]), [({"list": SHARED}, []) for _ in range(9)], [[1]] * 9),
        (lambda account: push(account.values[0]), [Account(SHARED, each) for each in range(9)], [[1]] * 9),
        (lambda account: push(account.values[0]), [Account(SHARED)] * 9, [[1]] * 9),
        (lambda account: push(account.values), [Account.of(SHARED), Account.of(SHARED)] * 9, [[1]] * 18),
        (lambda array: array.fill(1) or int(array.sum()), [numpy.zeros(3, int)] * 9, [3] * 9),
        (lambda array: int((array := array.__iadd__(1)).sum()), [numpy.zeros(50_000, int)] * 9, [50_000] * 9),
    ],
)
def test_calls_of_a_chunk_share_nothing(function: Any, items: Any, result: list[Any]) -> None:
    results = list(arrived(call_each(chunk(function), arrived(Items(list(items))))))
    assert results == result
    lists = [id(each) for each in results if type(each) is list]
    assert len(set(lists)) == len(lists)
    assert SHARED == []


def grow_list(x: Any) -> Any:
    KEPT.append(x)
    return KEPT


def grow_dict(x: Any) -> Any:
    TABLE[x] = x
    return TABLE


def grow_nested(x: Any) -> Any:
    KEPT.append(x)
    return [KEPT]


def grow_account(x: Any) -> Any:
    ACCOUNT.values = ACCOUNT.values + x
    return ACCOUNT


KEPT: list[Any] = []
TABLE: dict[Any, Any] = {}
ACCOUNT = Account()
ACCOUNT.values = 0


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (grow_list, [[1], [1, 2], [1, 2, 3]]),
        (grow_dict, [{1: 1}, {1: 1, 2: 2}, {1: 1, 2: 2, 3: 3}]),
        (grow_nested, [[[1]], [[1, 2]], [[1, 2, 3]]]),
        (grow_account, [Account.of(1), Account.of(3), Account.of(6)]),
    ],
)
def test_result_is_captured_when_its_call_returns(function: Any, expected: list[Any]) -> None:
    KEPT.clear()
    assert list(arrived(call_each(chunk(function), arrived(Items([1, 2, 3]))))) == expected


def test_large_buffer_shared_by_items_is_sent_once() -> None:
    array = numpy.zeros(50_000)
    one, many = (size_of(dump_value(Items([array] * count))) for count in (2, 20))
    assert many < one + 20 * 500


def test_predicate_exception_becomes_a_note_without_a_retry() -> None:
    def predicate(error: BaseException) -> bool:
        raise KeyError(str(error))

    error = ValueError("no luck")
    outcome, payload = failure_of(error, predicate)
    assert outcome is Outcome.EXCEPTION
    notes = load_exception(payload).__notes__
    assert notes == ["not retried, because retry_on raised KeyError: 'no luck'"]
