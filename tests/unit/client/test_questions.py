"""What a client asks about its tasks, when several threads ask the same."""

from __future__ import annotations

import threading

import pytest

from scaler.client.questions import Questions
from scaler.errors import UnreachableError
from scaler.protocol.messages import Explain, Explained

TASK = bytes(16)
ANSWER = Explained(TASK, "it waits")


def test_who_asks_the_same_is_answered_though_the_first_one_has_given_up() -> None:
    is_asked = threading.Event()
    questions = Questions(lambda _: is_asked.set())
    answers: list[object] = []
    patient = threading.Thread(
        target=lambda: answers.append(questions.ask(Explain(TASK), Explained, 4.0, "here")), daemon=True
    )
    patient.start()
    assert is_asked.wait(4)
    with pytest.raises(UnreachableError, match="did not answer"):
        questions.ask(Explain(TASK), Explained, 0.0, "here")
    questions.answered(ANSWER)
    patient.join(4)
    assert answers == [ANSWER]


def test_what_nobody_waits_for_any_more_is_not_asked_again() -> None:
    asked: list[object] = []
    questions = Questions(asked.append)
    with pytest.raises(UnreachableError):
        questions.ask(Explain(TASK), Explained, 0.0, "here")
    questions.say_again()
    assert asked == [Explain(TASK)]
