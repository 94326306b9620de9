"""When a call that Symphony refuses is given up, and the order in which calls are tried."""

from __future__ import annotations

from scaler.offload.call import Call
from scaler.worker_manager.symphony.executor import MAX_REFUSALS_OF_ONE, CallRefusal, RefusalCounts

TAKEN = None
NO = CallRefusal("no")


def calls(*names: str) -> list[Call]:
    return [Call(task=name.encode(), attempt=1, function=b"", arguments=b"") for name in names]


def tried(**outcomes: CallRefusal | None) -> dict[tuple[bytes, int], CallRefusal | None]:
    return {(name.encode(), 1): outcome for name, outcome in outcomes.items()}


def names(found: list[Call]) -> str:
    return " ".join(call.task.decode() for call in found)


def test_repeatedly_refused_call_fails_while_later_ones_are_accepted() -> None:
    refusals = RefusalCounts()
    for _ in range(MAX_REFUSALS_OF_ONE - 1):
        assert refusals.note(calls("a", "b"), tried(a=NO, b=TAKEN)) == {}
    assert refusals.note(calls("a", "b"), tried(a=NO, b=TAKEN)) == {
        (b"a", 1): "no (3 times, while other tasks were accepted)"
    }
    assert refusals.note(calls("a", "b"), tried(a=NO, b=TAKEN)) == {}, "the refusal is forgotten"


def test_full_or_unavailable_service_fails_no_call() -> None:
    refusals = RefusalCounts()
    for _ in range(100):
        assert refusals.note(calls("a", "b"), tried(a=TAKEN, b=NO)) == {}
        assert refusals.note(calls("a", "b"), tried(a=NO, b=NO)) == {}


def test_refused_call_is_retried_before_new_ones_in_turn() -> None:
    refusals = RefusalCounts()
    refusals.note(calls("a", "b", "c"), tried(a=NO, b=NO, c=NO))
    assert names(refusals.order(calls("a", "b", "c", "d", "e"))) == "a d e b c"
    refusals.note(calls("a", "b", "c", "d"), tried(a=NO, d=NO))
    assert names(refusals.order(calls("a", "b", "c", "d"))) == "b c a d"
