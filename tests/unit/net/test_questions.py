"""Questions to a scheduler, when several threads ask the same."""

from __future__ import annotations

import threading

import pytest

from scaler.errors import ClientClosedError
from scaler.net.questions import Questions
from scaler.protocol.messages import Explain, Explained, FindTasks, ShutdownCluster, ShutdownReply, TasksFound

TASK = bytes(16)
ANSWER = Explained(TASK, "it waits")


def test_an_equal_question_is_answered_though_the_first_asker_has_given_up() -> None:
    asked: list[object] = []
    questions = Questions(asked.append)
    with questions.asking(Explain(TASK)) as answer:
        with questions.asking(Explain(TASK)):
            pass  # and gives up
        questions.answered(ANSWER)
        assert answer.result(0) == ANSWER
    assert asked == [Explain(TASK)] * 2


def test_a_question_without_askers_is_not_asked_again() -> None:
    asked: list[object] = []
    questions = Questions(asked.append)
    with questions.asking(Explain(TASK)):
        questions.ask_again()
    questions.ask_again()
    questions.answered(ANSWER)
    assert asked == [Explain(TASK)] * 2


def test_searches_are_told_apart_by_their_texts() -> None:
    questions = Questions(lambda _: None)
    with questions.asking(FindTasks("price")) as price, questions.asking(FindTasks("load")) as load:
        questions.answered(TasksFound("load", b"{}"))
        assert load.result(0) == TasksFound("load", b"{}")
        assert not price.done()


def test_a_stop_of_the_cluster_is_a_question_like_others() -> None:
    questions = Questions(lambda _: questions.answered(ShutdownReply(False, "protected")))
    with questions.asking(ShutdownCluster()) as answer:
        assert answer.result(0) == ShutdownReply(False, "protected")


def test_closing_answers_questions_with_an_error_in_every_thread() -> None:
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
