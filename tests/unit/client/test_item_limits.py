"""What a chunk does with calls that have limits of their own."""

from __future__ import annotations

import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from scaler.client.chunk_calls import ChunkResults, ItemsFailedError
from scaler.client.item_limits import ItemLimits
from scaler.errors import TaskTimeoutError
from scaler.protocol.messages import Outcome
from scaler.serialization import dump_retry_on
from scaler.serialization.exceptions import failure_texts, load_exception
from scaler.worker.processor.calling import asks_to_retry, failure_of
from tests.unit.client.test_chunks import Bytes, arrived, chunk

ON_VALUE_ERRORS = dump_retry_on(ValueError)
NO_LIMIT = ItemLimits(0.0, b"")
LONG_SECONDS = 60.0


def run_limited(function: Any, items: list[Any], limits: ItemLimits) -> ChunkResults:
    """Return the results of a chunk as they arrive."""
    results = arrived(chunk(function, limits=limits)(items))
    assert isinstance(results, ChunkResults)
    return results


def inverse(number: int) -> float:
    if number < 0:
        raise ValueError(f"{number} is below 0")
    return 1 / number


def waits(seconds: float) -> float:
    threading.Event().wait(seconds)
    return seconds


def test_calls_within_their_limits_end_as_without_any() -> None:
    assert run_limited(inverse, [1, 2], ItemLimits(LONG_SECONDS, ON_VALUE_ERRORS)) == [1, 0.5]
    with pytest.raises(ItemsFailedError, match="division by zero"):
        run_limited(inverse, [1, 0], NO_LIMIT)


def test_calls_that_are_to_be_tried_again_are_left_and_the_others_have_ended() -> None:
    results = run_limited(inverse, [1, -1, 2, -2], ItemLimits(0.0, ON_VALUE_ERRORS))
    assert (list(results), results.failures, dict(results.left)) == ([1, None, 0.5, None], {}, {1: True, 3: True})


def test_failures_beside_what_is_left_are_told() -> None:
    with pytest.raises(ItemsFailedError) as caught:
        run_limited(inverse, [-1, 0, 2], ItemLimits(0.0, ON_VALUE_ERRORS))
    results = arrived(caught.value.results)
    assert (list(results), [*results.failures], dict(results.left)) == ([None, None, 0.5], [1], {0: True})
    assert not asks_to_retry(caught.value, lambda _: True), "the client has it tried again"


def test_the_exception_of_a_chunk_of_one_decides_whether_its_task_runs_again() -> None:
    limits = ItemLimits(LONG_SECONDS, ON_VALUE_ERRORS)
    with pytest.raises(ItemsFailedError) as caught:
        run_limited(inverse, [-1], limits)
    outcome, payload = failure_of(caught.value, lambda error: isinstance(error, ValueError))
    assert outcome is Outcome.EXCEPTION_TO_RETRY
    assert failure_texts(outcome, payload).text == "ValueError: -1 is below 0"
    assert isinstance(load_exception(payload), ItemsFailedError)


def test_an_exception_of_the_predicate_is_a_note_and_no_retry() -> None:
    def predicate(error: BaseException) -> bool:
        raise KeyError(str(error))

    error = ValueError("no luck")
    outcome, payload = failure_of(error, predicate)
    assert outcome is Outcome.EXCEPTION
    notes = load_exception(payload).__notes__
    assert notes == ["retry_on could not be asked, so that it was not tried again: KeyError: 'no luck'"]


def test_a_call_that_takes_too_long_is_interrupted_and_those_after_it_are_left() -> None:
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(ItemsFailedError) as caught:
        run_limited(waits, [0.0, LONG_SECONDS, 0.0, 0.0], ItemLimits(0.5, b""))
    results = arrived(caught.value.results)
    assert (results[0], [*results.failures], dict(results.left)) == (0.0, [1], {2: False, 3: False})
    error = load_exception(results.failures[1])
    assert isinstance(error, TaskTimeoutError)
    assert str(error) == "the call ran longer than its time limit of 0.5 s and was interrupted"
    assert "threading.Event().wait" in str(error.__cause__)
    assert "on_signal" not in str(error.__cause__)
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_call_that_goes_on_is_interrupted_again() -> None:
    interrupted: list[float] = []

    def stubborn(_: int) -> int:
        while len(interrupted) < 2:
            try:
                threading.Event().wait(LONG_SECONDS)
            except BaseException:  # noqa: BLE001 (it goes on, whatever comes)
                interrupted.append(time.monotonic())
        return len(interrupted)

    results = run_limited(stubborn, [1, 2], ItemLimits(0.05, b""))
    assert (results[0], dict(results.left)) == (2, {1: False})


def test_in_another_thread_no_call_is_interrupted() -> None:
    with ThreadPoolExecutor(1) as thread:
        results = thread.submit(run_limited, waits, [0.01, 0.01], ItemLimits(0.02, b"")).result()
    assert results[0] == 0.01


@pytest.mark.parametrize("items", [[-1, 0, 2], [2, -1]])
def test_a_chunk_that_runs_again_by_itself_leaves_nothing(items: list[int]) -> None:
    again = chunk(inverse, limits=ItemLimits(LONG_SECONDS, ON_VALUE_ERRORS)).without_leaving()
    with pytest.raises(ItemsFailedError) as caught:
        again(items)
    assert len(caught.value.results.failures) == len([each for each in items if each < 1])


def test_a_chunk_of_a_serializer_leaves_nothing_either() -> None:
    limited = chunk(inverse, serializer=Bytes(), limits=ItemLimits(0.0, ON_VALUE_ERRORS))
    items: list[Any] = [[Bytes.serialize(number)] for number in (2, -1)]
    assert dict(limited(items).left) == {1: True}
    with pytest.raises(ItemsFailedError, match="-1 is below 0"):
        limited.without_leaving()(items)


def test_arguments_are_spread_as_in_any_chunk() -> None:
    assert arrived(chunk(pow, spread=True, limits=NO_LIMIT)([(2, 1), (2, 2)])) == [2, 4]
