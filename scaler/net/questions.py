"""Questions to a scheduler and their answers: why a task waits, what it printed, which tasks there are."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager

from scaler.errors import LimitError
from scaler.protocol.messages import (
    CostsFound,
    EndSession,
    Explain,
    Explained,
    FailedTask,
    FindCosts,
    FindHistory,
    FindObjects,
    FindTasks,
    FindWorkerLogs,
    HistoryFound,
    ListSessions,
    ListSessionTasks,
    ObjectsFound,
    Profiled,
    ReadFailure,
    ReadLog,
    ReadProfile,
    RestartWorkers,
    SessionEnded,
    SessionsListed,
    SessionTasks,
    ShutdownCluster,
    ShutdownReply,
    TaskLog,
    TasksFound,
    WorkerLogsFound,
    WorkersRestarted,
)

MAX_QUESTIONS = 1_000
"""Questions of one peer that wait for their answers; beyond it, asking raises."""

OfTasks = Explain | ReadLog | ReadFailure | FindTasks | FindObjects | FindCosts | FindHistory | ReadProfile
OfCluster = FindWorkerLogs | RestartWorkers | ShutdownCluster
Question = OfTasks | OfCluster | ListSessions | ListSessionTasks | EndSession
AboutTasks = Explained | TaskLog | FailedTask | TasksFound | ObjectsFound | CostsFound | HistoryFound | Profiled
AboutCluster = WorkerLogsFound | WorkersRestarted | ShutdownReply
Answer = AboutTasks | AboutCluster | SessionsListed | SessionTasks | SessionEnded
_ANSWERS: dict[type[Question], type[Answer]] = {
    Explain: Explained,
    ReadLog: TaskLog,
    ReadFailure: FailedTask,
    FindTasks: TasksFound,
    FindObjects: ObjectsFound,
    ReadProfile: Profiled,
    FindCosts: CostsFound,
    FindHistory: HistoryFound,
    FindWorkerLogs: WorkerLogsFound,
    ShutdownCluster: ShutdownReply,
    RestartWorkers: WorkersRestarted,
    ListSessions: SessionsListed,
    ListSessionTasks: SessionTasks,
    EndSession: SessionEnded,
}

_SUBJECT = ("task", "search", "session", "first", "named", "most", "since", "until")
"""Fields that a question and its answer share."""


class Questions:
    """The questions that wait for their answers. Safe to use from any thread; an answer is for all that asked it."""

    def __init__(self, send: Callable[[Question], object]) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._waiting: list[tuple[Question, Future[Answer]]] = []
        self._closed: Exception | None = None

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @contextmanager
    def asking(self, question: Question) -> Iterator[Future[Answer]]:
        """Send a question, and give the future of its answer; at the end of the context it is no longer asked.

        Raises LimitError, or the error with which the questions were closed. Do not cancel the future.
        """
        asked = question, Future[Answer]()
        with self._lock:
            if self._closed is not None:
                raise self._closed
            if len(self._waiting) >= MAX_QUESTIONS:
                raise LimitError(f"MAX_QUESTIONS is {MAX_QUESTIONS}, and as many wait for the scheduler's answer")
            self._waiting.append(asked)
        try:
            self._send(question)
            yield asked[1]
        finally:
            self._take(lambda each: each is asked)

    def answered(self, answer: Answer) -> None:
        kind, subject = type(answer), _subject_of(answer)
        for _, future in self._take(lambda each: _ANSWERS[type(each[0])] is kind and _subject_of(each[0]) == subject):
            future.set_result(answer)

    def ask_again(self) -> None:
        """Send all questions again: the scheduler has forgotten everything."""
        with self._lock:
            waiting = list(self._waiting)
        for question, _ in waiting:
            self._send(question)

    def close(self, error: Exception) -> None:
        """Answer all questions, and those that are asked from now on, with an error. Harmless when repeated."""
        with self._lock:
            self._closed = self._closed or error
        for _, future in self._take(lambda _: True):
            future.set_exception(error)

    def _take(self, chosen: Callable[[tuple[Question, Future[Answer]]], bool]) -> list[tuple[Question, Future[Answer]]]:
        """Return the chosen questions, which no longer wait."""
        with self._lock:
            taken = [each for each in self._waiting if chosen(each)]
            self._waiting = [each for each in self._waiting if not chosen(each)]
        return taken


def _subject_of(message: Question | Answer) -> object:
    return tuple(getattr(message, name, None) for name in _SUBJECT)
