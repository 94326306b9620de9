"""What a client asks the scheduler about its tasks: why one waits, what became of it, what it printed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from scaler.errors import ClientClosedError, LimitError, UnreachableError
from scaler.logs import escaped_lines
from scaler.protocol.messages import Explain, Explained, ReadLog, TaskLog

MAX_QUESTIONS = 1_000
"""Questions of one client that wait for their answers; beyond it, asking raises."""

Question = Explain | ReadLog
Answer = Explained | TaskLog
_Key = tuple[type[Answer], bytes]


@dataclass(frozen=True, slots=True)
class TaskOutput:
    """What a task printed, with its control characters shown: `str` of it is all of that, stderr apart from stdout."""

    stdout: str
    stderr: str
    cut_bytes: int = 0
    """How much was left out of the middle, because there was too much."""

    def __str__(self) -> str:
        if not self.stderr:
            return self.stdout
        before = self.stdout if not self.stdout or self.stdout.endswith("\n") else self.stdout + "\n"
        return f"{before}--- stderr ---\n{self.stderr}"


def output_of(log: TaskLog) -> TaskOutput:
    """Return what a log says as text that a terminal may be given."""
    stdout, stderr = (escaped_lines(text.decode("utf-8", "backslashreplace")) for text in (log.stdout, log.stderr))
    return TaskOutput(stdout, stderr, log.truncated_bytes)


@dataclass(slots=True, eq=False)
class _Waiting:
    question: Question
    answer: Future[Answer]
    askers: int = 0


class Questions:
    """Those that wait for their answers. Safe to use from any thread; equal ones share an answer."""

    def __init__(self, say: Callable[[Question], None]) -> None:
        """say: sends a question, from whatever thread it is called in."""
        self._say = say
        self._lock = threading.Lock()
        self._waiting: dict[_Key, _Waiting] = {}
        self._closed: str | None = None

    def ask(self, question: Question, kind: type[Answer], timeout_seconds: float, address: str) -> Answer:
        """Ask and wait. Raises UnreachableError after the timeout, ClientClosedError when the client is closed."""
        key = kind, question.task
        with self._lock:
            if self._closed is not None:
                raise ClientClosedError(self._closed)
            waiting = self._waiting.get(key)
            if waiting is None:
                if len(self._waiting) >= MAX_QUESTIONS:
                    raise LimitError(f"MAX_QUESTIONS is {MAX_QUESTIONS}, and as many wait for the scheduler's answer")
                waiting = self._waiting[key] = _Waiting(question, Future())
            waiting.askers += 1
        try:
            self._say(question)
            return waiting.answer.result(timeout_seconds)
        except TimeoutError:
            text = f"the scheduler at {address} did not answer: waited {timeout_seconds:g} s"
            raise UnreachableError(text) from None
        finally:
            with self._lock:
                waiting.askers -= 1
                if not waiting.askers and self._waiting.get(key) is waiting:
                    del self._waiting[key]

    def answered(self, answer: Answer) -> None:
        """Give an answer to who waits for it."""
        with self._lock:
            waiting = self._waiting.pop((type(answer), answer.task), None)
        if waiting is not None:
            waiting.answer.set_result(answer)

    def say_again(self) -> None:
        """The scheduler has forgotten everything: ask it again."""
        with self._lock:
            questions = [waiting.question for waiting in self._waiting.values()]
        for question in questions:
            self._say(question)

    def close(self, why: str) -> None:
        """Answer all with an error: the client is closed."""
        with self._lock:
            self._closed = why
            waiting = list(self._waiting.values())
            self._waiting.clear()
        for one in waiting:
            one.answer.set_exception(ClientClosedError(why))
