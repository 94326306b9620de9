"""Questions to a scheduler, from several threads."""

from __future__ import annotations

import threading

import pytest

from scaler.errors import ClientClosedError
from scaler.monitor.messages import Explain, Explained, FindTasks, TasksFound
from scaler.net.questions import Questions
from scaler.protocol.messages import Inquiry

TASK = bytes(16)


def test_answers_match_questions_by_number() -> None:
    asked: list[Inquiry] = []
    questions = Questions(asked.append)
    with questions.asking(FindTasks("\0")) as first, questions.asking(FindTasks("\0")) as second:
        one, other = asked
        questions.answered(TasksFound("\\x00", b"[2]", number=other.number))
        assert second.result(0) == TasksFound("\\x00", b"[2]", number=other.number)
        assert not first.done()
        questions.answered(TasksFound("", b"[1]", number=one.number))
        assert first.done()
        questions.answered(TasksFound("", b"[3]", number=one.number))


def test_question_without_askers_is_not_repeated() -> None:
    asked: list[Inquiry] = []
    questions = Questions(asked.append)
    with questions.asking(Explain(TASK)):
        questions.ask_again()
    questions.ask_again()
    questions.answered(Explained(TASK, "it waits", number=asked[0].number))
    assert asked == [Explain(TASK, number=asked[0].number)] * 2


def test_closing_fails_pending_questions_in_every_thread() -> None:
    is_asked = threading.Event()
    questions = Questions(lambda _: is_asked.set())
    errors: list[BaseException | None] = []

    def ask() -> None:
        with questions.asking(Explain(TASK)) as answer:
            errors.append(answer.exception(20))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    assert is_asked.wait(20)
    error = ClientClosedError("closed")
    questions.close(error)
    thread.join(20)
    assert errors == [error]
    with pytest.raises(ClientClosedError), questions.asking(Explain(TASK)):
        pass
