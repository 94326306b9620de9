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
from collections.abc import Iterator
from types import FrameType
from typing import NamedTuple

from scaler.client.chunk_calls import ChunkCalls, ChunkResults
from scaler.errors import TaskTimeoutError
from scaler.serialization import load_retry_on
from scaler.serialization.exceptions import dump_exception
from scaler.serialization.separate import ValuePacker
from scaler.serialization.tracebacks import user_traceback
from scaler.worker.processor.calling import asks_to_retry, finish

REPEAT_SECONDS = 1.0
"""A call that goes on after it was interrupted is interrupted again after this time."""


class ItemLimits(NamedTuple):
    """Options of each call of a chunk. retry_on: as in a Spec."""

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


def call_limited(calls: ChunkCalls, limits: ItemLimits) -> ChunkResults:
    """Make all calls of a chunk, as `call_each` does, within the limits of each call."""
    left: dict[int, bool] = {}
    results = ChunkResults(ValuePacker(), {}, left)
    seconds, retry_on = limits.timeout_seconds, limits.retry_on
    began = time.monotonic()
    with _alarm(seconds) as alarm:
        for position in range(len(calls.items)):
            if seconds and limits.leaves and time.monotonic() - began >= seconds:
                for later in range(position, len(calls.items)):
                    left[later] = False
                    results.add(None)
                break
            try:
                function, arguments = calls.prepare(position)
                try:
                    alarm.start()
                    value = finish(function(*arguments))
                finally:
                    alarm.stop()
                value = calls.returned(value)
            except BaseException as error:  # noqa: BLE001 (whatever an item raises is that item's outcome)
                if limits.leaves and asks_to_retry(error, lambda error: load_retry_on(retry_on)(error)):  # noqa: PLW0108
                    left[position] = True
                    results.add(None)
                else:
                    results.fail(_failure(error, calls.show(position), seconds))
            else:
                results.add(value)
    return results


def _failure(error: BaseException, shown_item: str, seconds: float) -> bytes:
    shown: BaseException = error
    if isinstance(error, _Interrupted):
        shown = TaskTimeoutError(f"the call ran longer than its time limit of {seconds:g} s and was interrupted")
    return dump_exception(shown, f"item: {shown_item}\n{user_traceback(error)}")
