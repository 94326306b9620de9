"""Questions to a scheduler and their answers: why a task waits, what it printed, whether the cluster stops."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field

from scaler.errors import LimitError
from scaler.protocol.messages import Explain, Explained, ReadLog, ShutdownCluster, ShutdownReply, TaskLog

MAX_QUESTIONS = 1_000
"""Questions of one peer that wait for their answers; beyond it, asking raises."""

Question = Explain | ReadLog | ShutdownCluster
Answer = Explained | TaskLog | ShutdownReply
_ANSWERS: dict[type[Question], type[Answer]] = {Explain: Explained, ReadLog: TaskLog, ShutdownCluster: ShutdownReply}


@dataclass(slots=True, eq=False)
class _Pending:
    question: Question
    answer: Future[Answer] = field(default_factory=Future)
    askers: int = 0


class Questions:
    """The questions that wait for their answers. Safe to use from any thread; equal ones share an answer."""

    def __init__(self, send: Callable[[Question], object]) -> None:
        """send: sends a question, from the thread that asks it."""
        self._send = send
        self._lock = threading.Lock()
        self._pending: dict[tuple[type[Answer], bytes], _Pending] = {}
        """By the type of the answer, and the task that it is about."""
        self._closed: Exception | None = None

    @contextmanager
    def asking(self, question: Question) -> Iterator[Future[Answer]]:
        """Send a question, and give the future of its answer; at the end of the context it is no longer asked.

        Raises LimitError, or the error with which the questions were closed. Do not cancel the future: it is shared.
        """
        key = _ANSWERS[type(question)], _task_of(question)
        with self._lock:
            if self._closed is not None:
                raise self._closed
            pending = self._pending.get(key)
            if pending is None:
                if len(self._pending) >= MAX_QUESTIONS:
                    raise LimitError(f"MAX_QUESTIONS is {MAX_QUESTIONS}, and as many wait for the scheduler's answer")
                pending = self._pending[key] = _Pending(question)
            pending.askers += 1
        try:
            self._send(question)
            yield pending.answer
        finally:
            with self._lock:
                pending.askers -= 1
                if not pending.askers and self._pending.get(key) is pending:
                    del self._pending[key]

    def answered(self, answer: Answer) -> None:
        """Give an answer to all that asked its question."""
        with self._lock:
            pending = self._pending.pop((type(answer), _task_of(answer)), None)
        if pending is not None:
            pending.answer.set_result(answer)

    def ask_again(self) -> None:
        """Send all questions again: the scheduler has forgotten everything."""
        with self._lock:
            questions = [pending.question for pending in self._pending.values()]
        for question in questions:
            self._send(question)

    def close(self, error: Exception) -> None:
        """Answer all questions, and those that are asked from now on, with an error. Harmless when repeated."""
        with self._lock:
            self._closed = self._closed or error
            pending = list(self._pending.values())
            self._pending.clear()
        for each in pending:
            each.answer.set_exception(error)


def _task_of(message: Question | Answer) -> bytes:
    return getattr(message, "task", b"")
