"""Options of single calls inside a chunk: their timeout, and which of them run again. Runs in the chunk's task.

A call that takes too long is interrupted by a signal, which raises in it as soon as the interpreter runs again. One
that stays in C code is ended with its process, when the chunk's own time is over. A call that is to run again, and
those that the chunk has no time for, are left to the client, which sends each as a task of its own.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import FrameType
from typing import Any, NamedTuple

from scaler.client.chunks import ChunkResults, SerializedChunkFunction, checked, run_chunk, show_item
from scaler.errors import TaskTimeoutError
from scaler.serialization import load_retry_on
from scaler.serialization.exceptions import dump_exception
from scaler.serialization.tracebacks import user_traceback
from scaler.worker.processor.calling import asks_to_retry, finish

REPEAT_SECONDS = 1.0
"""A call that goes on after it was interrupted is interrupted again after this time."""


class ItemLimits(NamedTuple):
    """Of each call of a chunk. retry_on: as in a Spec."""

    timeout_seconds: float
    retry_on: bytes
    leaves: bool = True
    """The client sends again what the chunk leaves to it; otherwise every item is called, and has an outcome."""


class _Interrupted(BaseException):
    """Raised in a call that takes too long; no Exception, so that few calls catch it."""


class _Alarm:
    """Interrupts what runs in the main thread, `seconds` after each `start` that no `stop` followed."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._is_armed = False

    def start(self) -> None:
        if self._seconds:
            self._is_armed = True
            signal.setitimer(signal.ITIMER_REAL, self._seconds, REPEAT_SECONDS)

    def stop(self) -> None:
        if self._seconds:
            self._is_armed = False  # first: a signal that has come already must not raise later
            signal.setitimer(signal.ITIMER_REAL, 0.0)

    def on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self._is_armed:
            raise _Interrupted


@contextlib.contextmanager
def _alarm(seconds: float) -> Iterator[_Alarm]:
    """Give an alarm that takes signals while in this context; one without effect where no signal can be taken."""
    if not seconds or threading.current_thread() is not threading.main_thread():
        yield _Alarm(0.0)
        return
    alarm = _Alarm(seconds)
    before = signal.signal(signal.SIGALRM, alarm.on_signal)
    try:
        yield alarm
    finally:
        signal.signal(signal.SIGALRM, before)


def run_limited(
    function: Callable[..., Any],
    spread: bool,
    items: Sequence[Any],
    limits: ItemLimits,
    show: Callable[[Any], str] = show_item,
) -> ChunkResults:
    """Return the results of a chunk whose calls have limits; one call alone has those of its task."""
    if len(items) == 1:
        return run_chunk(function, spread, items, show)
    return checked(_call_each(function, spread, items, limits, show))


def without_leaving(function: Callable[..., Any]) -> Callable[..., Any] | None:
    """Return the function of a chunk whose limits leave items to the client, so that it leaves none.

    None for any other function.
    """
    if isinstance(function, SerializedChunkFunction) and function.limited is not None:
        return SerializedChunkFunction(function.function, function.serializer, _leaving_none(function.limited))
    return _leaving_none(function) if isinstance(function, partial) and function.func is run_limited else None


def _leaving_none(run: Callable[..., Any]) -> partial[ChunkResults]:
    assert isinstance(run, partial), "a client makes it with its limits"
    return partial(partial(run_limited, limits=run.keywords["limits"]._replace(leaves=False)), *run.args)


def _call_each(
    function: Callable[..., Any], spread: bool, items: Sequence[Any], limits: ItemLimits, show: Callable[[Any], str]
) -> ChunkResults:
    """Call a function with every item, as `call_each` does, within the limits of each call."""
    done: list[Any] = []
    failures: dict[int, bytes] = {}
    left: dict[int, bool] = {}
    is_to_retry = load_retry_on(limits.retry_on)
    seconds = limits.timeout_seconds
    began = time.monotonic()
    with _alarm(seconds) as alarm:
        for position, item in enumerate(items):
            if seconds and limits.leaves and time.monotonic() - began >= seconds:
                left |= dict.fromkeys(range(position, len(items)), False)
                done += [None] * (len(items) - position)
                break
            try:
                try:
                    alarm.start()
                    value = finish(function(*item) if spread else function(item))
                finally:
                    alarm.stop()
            except BaseException as error:  # noqa: BLE001 (whatever an item raises is that item's outcome)
                value = None
                if limits.leaves and asks_to_retry(error, is_to_retry):
                    left[position] = True
                else:
                    failures[position] = _failure(error, item, seconds, show)
            done.append(value)
    return ChunkResults(done, failures, left)


def _failure(error: BaseException, item: Any, seconds: float, show: Callable[[Any], str]) -> bytes:
    shown: BaseException = error
    if isinstance(error, _Interrupted):
        shown = TaskTimeoutError(f"the call ran longer than its time limit of {seconds:g} s and was interrupted")
    return dump_exception(shown, f"item: {show(item)}\n{user_traceback(error)}")
