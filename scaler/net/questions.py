"""Questions to a scheduler and their answers: why a task is waiting, its output, the list of tasks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from itertools import count

from scaler.errors import LimitError, RefusedError
from scaler.protocol.messages import Inquiry, Reply, Unanswered

MAX_QUESTIONS = 1_000


class Questions:
    def __init__(self, send: Callable[[Inquiry], object]) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._waiting: dict[int, tuple[Inquiry, Future[Reply]]] = {}
        self._numbers = count(1)
        self._closed: Exception | None = None

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @contextmanager
    def asking(self, question: Inquiry) -> Iterator[Future[Reply]]:
        """Send a question, and yield a future for its answer or RefusedError. The question is dropped when the context
        ends. Raises LimitError, or the error passed to `close`."""
        with self._lock:
            if self._closed is not None:
                raise self._closed
            if len(self._waiting) >= MAX_QUESTIONS:
                raise LimitError(f"MAX_QUESTIONS = {MAX_QUESTIONS} questions already wait for the scheduler's answer")
            number = question.number = next(self._numbers)
            future: Future[Reply] = Future()
            self._waiting[number] = question, future
        try:
            self._send(question)
            yield future
        finally:
            with self._lock:
                self._waiting.pop(number, None)

    def answered(self, answer: Reply) -> None:
        with self._lock:
            _, future = self._waiting.pop(answer.number, (None, None))
        if future is None or not future.set_running_or_notify_cancel():
            return
        if isinstance(answer, Unanswered):
            future.set_exception(RefusedError(answer.text))
        else:
            future.set_result(answer)

    def ask_again(self) -> None:
        with self._lock:
            waiting = list(self._waiting.values())
        for question, _ in waiting:
            self._send(question)

    def close(self, error: Exception) -> None:
        """Fail all present and later questions with an error. Idempotent."""
        with self._lock:
            self._closed = self._closed or error
            waiting = list(self._waiting.values())
            self._waiting.clear()
        for _, future in waiting:
            if future.set_running_or_notify_cancel():
                future.set_exception(error)
