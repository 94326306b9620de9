"""When a call that Symphony does not take is given up, and in which order calls are tried."""

from __future__ import annotations

from scaler.worker.call import Call
from scaler.worker_manager.symphony.executor import MAX_REFUSALS_OF_ONE, RefusalCounts
from scaler.worker_manager.symphony.session import CallRefusal

TAKEN = None
NO = CallRefusal("no")


def calls(*names: str) -> list[Call]:
    return [Call(task=name.encode(), attempt=1, function=b"", arguments=b"") for name in names]


def tried(**outcomes: CallRefusal | None) -> dict[tuple[bytes, int], CallRefusal | None]:
    return {(name.encode(), 1): outcome for name, outcome in outcomes.items()}


def names(found: list[Call]) -> str:
    return " ".join(call.task.decode() for call in found)


def test_what_is_refused_while_a_later_one_is_taken_is_given_up_in_the_end() -> None:
    refusals = RefusalCounts()
    for _ in range(MAX_REFUSALS_OF_ONE - 1):
        assert refusals.note(calls("a", "b"), tried(a=NO, b=TAKEN)) == {}
    assert refusals.note(calls("a", "b"), tried(a=NO, b=TAKEN)) == {(b"a", 1): "no (3 times, while it accepted others)"}
    assert refusals.note(calls("a", "b"), tried(a=NO, b=TAKEN)) == {}, "it is forgotten"


def test_a_service_that_is_full_or_down_costs_no_call_its_life() -> None:
    refusals = RefusalCounts()
    for _ in range(100):
        assert refusals.note(calls("a", "b"), tried(a=TAKEN, b=NO)) == {}
        assert refusals.note(calls("a", "b"), tried(a=NO, b=NO)) == {}


def test_one_that_was_refused_is_tried_before_the_new_ones_and_each_in_turn() -> None:
    refusals = RefusalCounts()
    refusals.note(calls("a", "b", "c"), tried(a=NO, b=NO, c=NO))
    assert names(refusals.order(calls("a", "b", "c", "d", "e"))) == "a d e b c"
    refusals.note(calls("a", "b", "c", "d"), tried(a=NO, d=NO))
    assert names(refusals.order(calls("a", "b", "c", "d"))) == "b c a d"
