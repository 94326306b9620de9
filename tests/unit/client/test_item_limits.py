"""Chunks whose calls have their own limits."""

from __future__ import annotations

import signal
import threading
from typing import Any

import pytest

from scaler.client.chunks import ChunkResults, ItemLimits, ItemsFailedError
from scaler.errors import TaskTimeoutError
from scaler.protocol.failures import failure_texts
from scaler.protocol.messages import Outcome
from scaler.serialization import dump_retry_on
from scaler.serialization.exceptions import load_exception
from scaler.worker.processor.calling import failure_of
from tests.unit.client.test_chunks import arrived, chunk

ON_VALUE_ERRORS = dump_retry_on(ValueError)
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


def test_calls_to_retry_are_kept_and_the_rest_has_ended() -> None:
    results = run_limited(inverse, [1, -1, 2, -2], ItemLimits(0.0, ON_VALUE_ERRORS))
    assert (list(results), results.failures, dict(results.left)) == ([1, None, 0.5, None], {}, {1: True, 3: True})


def test_exception_of_a_single_item_chunk_decides_about_a_retry() -> None:
    limits = ItemLimits(LONG_SECONDS, ON_VALUE_ERRORS)
    with pytest.raises(ItemsFailedError) as caught:
        run_limited(inverse, [-1], limits)
    outcome, payload = failure_of(caught.value, lambda error: isinstance(error, ValueError))
    assert outcome is Outcome.EXCEPTION_TO_RETRY
    assert failure_texts(outcome, payload).text == "ValueError: -1 is below 0"
    assert isinstance(load_exception(payload), ItemsFailedError)


def test_predicate_exception_becomes_a_note_without_a_retry() -> None:
    def predicate(error: BaseException) -> bool:
        raise KeyError(str(error))

    error = ValueError("no luck")
    outcome, payload = failure_of(error, predicate)
    assert outcome is Outcome.EXCEPTION
    notes = load_exception(payload).__notes__
    assert notes == ["retry_on could not be asked, so that it was not tried again: KeyError: 'no luck'"]


def test_interrupts_a_slow_call_and_skips_the_rest() -> None:
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
