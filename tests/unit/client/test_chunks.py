"""How map cuts its items, and what a chunk does with them."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import pytest

from scaler.client.chunks import (
    MAX_CHUNK_ITEMS,
    MAX_FAILED_BYTES,
    PROBE_TIMEOUT_SECONDS,
    TARGET_SECONDS,
    UNPROVEN_CHUNKS,
    Chunking,
    ChunkResults,
    ItemsFailedError,
    SerializedChunkFunction,
    call_each,
    run_chunk,
)
from scaler.protocol.messages import Outcome
from scaler.serialization import Serializer, dump_function, dump_value
from scaler.serialization.exceptions import dump_exception, failure_texts, load_exception


class Bytes(Serializer):
    @staticmethod
    def serialize(obj: Any) -> bytes:
        return b"B" + pickle.dumps(obj)

    @staticmethod
    def deserialize(payload: bytes) -> Any:
        return pickle.loads(payload[1:])


def simulate(seconds_per_item: float, items: int) -> list[int]:
    """Send chunks to one worker that is as fast as that; return their sizes."""
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


def test_an_explicit_size_is_kept() -> None:
    chunking = Chunking(7, 0.0)
    for _ in range(100):
        assert chunking.next_size(0.0) == 7
        chunking.sent()


def test_slow_items_travel_alone() -> None:
    assert set(simulate(0.1, 500)) == {1}


def test_tiny_items_travel_by_the_thousand_after_few_steps() -> None:
    sizes = simulate(1e-7, 50_000)
    assert max(sizes) == MAX_CHUNK_ITEMS
    assert len(sizes) < 8 * UNPROVEN_CHUNKS


def test_a_chunk_takes_about_the_target_time() -> None:
    assert max(simulate(1e-4, 50_000)) == pytest.approx(TARGET_SECONDS / 1e-4, abs=1)


def test_one_quick_item_does_not_put_many_slow_ones_in_a_chunk() -> None:
    chunking = Chunking(None, 0.0)
    chunking.next_size(0.0)
    chunking.sent()
    chunking.ended(1, 1e-6, 0.0)
    assert chunking.next_size(0.0) <= 8
    chunking.sent()
    chunking.ended(8, 8.0, 8.0)
    assert chunking.next_size(8.0) == 1


def test_few_are_out_while_nothing_is_known_and_more_when_nothing_comes_back() -> None:
    chunking = Chunking(None, 0.0)
    for _ in range(UNPROVEN_CHUNKS):
        assert chunking.next_size(0.0) == 1
        chunking.sent()
    assert chunking.next_size(0.0) == 0
    assert chunking.wake_at == PROBE_TIMEOUT_SECONDS
    assert chunking.next_size(PROBE_TIMEOUT_SECONDS) == 1


def test_chunks_that_failed_do_not_count_as_out() -> None:
    chunking = Chunking(None, 0.0)
    for _ in range(10 * UNPROVEN_CHUNKS):
        assert chunking.next_size(0.0) == 1
        chunking.sent()
        chunking.ended(1, None, 0.0)


def test_a_chunk_calls_with_every_item() -> None:
    assert call_each(abs, False, [-1, -2]) == [1, 2]
    assert call_each(pow, True, [(2, 3), (2, 3, 5)]) == [8, 3]


@pytest.mark.parametrize("error", [ZeroDivisionError, StopIteration, SystemExit, KeyboardInterrupt])
def test_items_that_raise_whatever_harm_no_others_and_are_called_once(error: type[BaseException]) -> None:
    calls = []

    def inverse(x: int) -> float:
        calls.append(x)
        if not x:
            raise error("zero")
        return 1 / x

    returned = call_each(inverse, False, [1, 0, 2, 0])
    assert calls == [1, 0, 2, 0]
    results = pickle.loads(pickle.dumps(returned))
    assert isinstance(results, ChunkResults)
    assert results == [1.0, None, 0.5, None]
    assert set(results.failures) == {1, 3}
    exception = load_exception(results.failures[1])
    assert type(exception) is error
    assert "in inverse" in str(exception.__cause__)


def test_a_chunk_with_failed_items_fails_as_the_first_of_them_and_carries_the_results_of_all() -> None:
    with pytest.raises(ItemsFailedError) as raised:
        run_chunk(int, False, ["1", "x", "3", "y"])
    payload = dump_exception(raised.value, "")
    text, traceback = failure_texts(Outcome.EXCEPTION, payload)
    assert text == "ValueError: invalid literal for int() with base 10: 'x' (2 of 4 items failed)"
    assert traceback.startswith("item: 'x'\n")
    loaded = load_exception(payload)
    assert isinstance(loaded, ItemsFailedError)
    assert (loaded.results, set(loaded.results.failures)) == ([1, None, 3, None], {1, 3})


def test_a_chunk_with_failed_items_and_large_results_does_not_fail() -> None:
    results = run_chunk(lambda x: bytes(x) if x else x[0], False, [MAX_FAILED_BYTES, 0])
    assert (len(results[0]), set(results.failures)) == (MAX_FAILED_BYTES, {1})


def test_a_result_that_cannot_be_pickled_takes_no_other_with_it() -> None:
    parts = dump_value(call_each(lambda x: x or threading.Lock(), False, [1, 0, 2]))
    results = pickle.loads(parts[0])
    assert results == [1, None, 2]
    assert "lock" in str(load_exception(results.failures[1]))


def test_a_users_serializer_makes_each_argument_and_each_result() -> None:
    function = bytes(dump_function(divmod, Bytes())[0])
    chunk = pickle.loads(pickle.dumps(SerializedChunkFunction(function, Bytes())))
    with pytest.raises(ItemsFailedError) as raised:
        chunk([[Bytes.serialize(7), Bytes.serialize(2)], [Bytes.serialize(1), Bytes.serialize(0)]])
    results = raised.value.results
    assert Bytes.deserialize(results[0]) == (3, 1)
    assert isinstance(load_exception(results.failures[1]), ZeroDivisionError)
