"""Histories with one planted fault each, and the checker's verdicts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.checker import check
from tests.chaos.history import (
    CallFailed,
    Cancelled,
    ClientGone,
    Delivered,
    Ended,
    History,
    Line,
    Started,
    Struck,
    Submitted,
    read,
)

GOOD: list[Line] = [
    Submitted(1.0, "a", "alice", 3, "value of a"),
    Submitted(1.0, "b", "alice", 0, "value of b"),
    Submitted(1.0, "c", "bob", 3, "ValueError: value of c"),
    Submitted(1.0, "d", "bob", 3, "value of d"),
    Started(2.0, "a", "10@2"),
    Struck(2.5, "kill", "processor"),
    Started(3.0, "a", "11@3"),
    Started(3.0, "b", "12@3"),
    Started(3.0, "c", "13@3"),
    Ended(4.0, "a", "11@3"),
    Delivered(5.0, "a", "", "value of a"),
    Delivered(5.0, "b", "", "value of b"),
    Delivered(5.0, "c", "ValueError", "value of c"),
    Cancelled(5.0, "d", True),
    Delivered(5.1, "d", "CancelledError", ""),
]


UNREPORTED = "the scheduler was restarted, and no worker has reported the task"


def lost(task: str, error: str, starts: int, retries: int) -> list[Line]:
    started: list[Line] = [Started(2.0 + number, task, f"{number}@2") for number in range(starts)]
    return [
        *GOOD,
        Submitted(1.0, task, "bob", retries, "its value"),
        *started,
        Delivered(9.0, task, error, "some words"),
    ]


def test_history_that_keeps_all_promises_has_no_violation() -> None:
    verdict = check(GOOD)
    assert verdict.violations == []
    assert verdict.figures() == {
        "faults": 1,
        "tasks": 4,
        "right": 3,
        "cancelled": 1,
        "exhausted": 0,
        "doubtful": 0,
        "excused": 0,
        "refused": 0,
        "forgotten": 0,
        "resubmitted": 0,
        "unreported": 0,
        "repeated starts": 1,
        "lost": 0,
        "duplicated": 0,
        "wrong": 0,
    }


@pytest.mark.parametrize(
    ("lines", "violation"),
    [
        (GOOD[:-5] + GOOD[-4:], "a has no outcome after 2 starts"),
        ([*GOOD, Delivered(6.0, "a", "", "value of a")], "a has 2 outcomes"),
        ([*GOOD[:-5], Delivered(5.0, "a", "", "value of b"), *GOOD[-4:]], "a has the value of b"),
        ([*GOOD[:-5], Delivered(5.0, "a", "", "valve of a"), *GOOD[-4:]], "a has a wrong value"),
        ([*GOOD[:-3], Delivered(5.0, "c", "", "value of c"), *GOOD[-2:]], "c has a wrong value"),
        ([*GOOD, Started(3.5, "b", "14@3")], "b may start once, but started 2 times: ['12@3', '14@3']"),
        ([*GOOD, Started(5.5, "a", "15@5")], "a started again 0.500 s after its outcome was delivered"),
        ([*GOOD[:-1], Delivered(5.1, "d", "", "value of d")], "d was cancelled, and then delivered a value"),
        ([*GOOD, Delivered(6.0, "e", "", "value of e")], "e was delivered and never submitted"),
        ([*GOOD, CallFailed(6.0, "bob", "shared", "OSError: away")], "shared of bob raised OSError: away"),
        (
            [*GOOD, CallFailed(6.0, "bob", "tiny", "ClientClosedError: refused"), ClientGone(7.0, "bob", "kill")],
            "tiny of bob raised ClientClosedError: refused",
        ),
        (
            [*lost("e", "RefusedError", 0, 3), ClientGone(9.5, "bob", "kill")],
            "e ended after 0 starts with RefusedError: some words",
        ),
        ([*GOOD[:-2], GOOD[-1]], "d ended after 0 starts with CancelledError: "),
        (lost("e", "SchedulerLostError", 1, 0), "e ended after 1 starts with SchedulerLostError: some words"),
        (lost("e", "LimitError", 1, 3), "e ended after 1 starts with LimitError: some words"),
        (lost("e", "WorkerLostError", 2, 3), "e with retries=3 ended after 2 starts with WorkerLostError: some words"),
        (lost("e", "PoisonTaskError", 1, 3), "e with retries=3 ended after 1 starts with PoisonTaskError: some words"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_finds_a_planted_fault(lines: list[Line], violation: str) -> None:
    assert check(lines).violations == [violation]


@pytest.mark.parametrize(
    ("lines", "figure"),
    [
        (lost("e", "WorkerLostError", 1, 0), "exhausted"),
        (lost("e", "ProcessorDiedError", 4, 3), "exhausted"),
        (lost("e", "PoisonTaskError", 3, 10), "exhausted"),
        (lost("e", "WorkerLostError", 0, 0), "doubtful"),
        (lost("e", "LimitError", 0, 3), "refused"),
        ([*GOOD, CallFailed(6.0, "bob", "shared", "LimitError: full")], "refused"),
        ([*GOOD, Submitted(1.0, "e", "eve", 3, "x"), ClientGone(2.0, "eve", "kill")], "excused"),
        ([*lost("e", "RefusedError", 0, 3), ClientGone(2.0, "bob", "revoke key")], "excused"),
    ],
)
def test_outcomes_confirmed_by_the_history_are_not_violations(lines: list[Line], figure: str) -> None:
    verdict = check(lines)
    assert verdict.violations == []
    assert verdict.figures()[figure] == 1


@pytest.mark.parametrize(
    ("text", "in_memory", "figure"),
    [(UNREPORTED, True, "unreported"), (UNREPORTED, False, "doubtful"), ("some words", True, "doubtful")],
)
def test_run_once_task_may_be_lost_with_the_memory_of_its_scheduler(text: str, in_memory: bool, figure: str) -> None:
    lines: list[Line] = [*lost("e", "WorkerLostError", 0, 0)[:-1], Struck(5.0, "kill", "scheduler")]
    verdict = check([*lines, Delivered(9.0, "e", "WorkerLostError", text)], in_memory=in_memory)
    assert verdict.violations == []
    assert verdict.figures()[figure] == 1


def test_more_doubtful_ends_than_faults_are_a_violation() -> None:
    lines = [*lost("e", "WorkerLostError", 0, 0), *lost("f", "WorkerLostError", 0, 0)[len(GOOD) :]]
    assert check(lines).violations == ["2 tasks ended as lost without enough starts, after fewer faults"]


def test_task_is_lost_only_after_attempts_of_itself_or_an_input() -> None:
    ended = [*lost("e", "WorkerLostError", 4, 3), Delivered(9.0, "f", "WorkerLostError", "some words")]
    assert check([*ended, Submitted(1.0, "f", "bob", 3, "its value", ["e"])]).violations == []
    assert check([*ended, Submitted(1.0, "f", "bob", 3, "its value", ["a"])]).violations != []


@pytest.mark.parametrize(("started_at", "violations"), [(6.5, 0), (7.5, 1)])
def test_task_reruns_only_while_its_value_is_needed(started_at: float, violations: int) -> None:
    chain: list[Line] = [
        Submitted(1.0, "made", "bob", 3, "value of made"),
        Submitted(1.1, "passed on", "bob", 3, "value of passed on", ["made"]),
        Submitted(1.2, "used", "bob", 3, "value of used", ["passed on"]),
        Started(2.0, "made", "1@2"),
        Delivered(5.0, "made", "", "value of made"),
        Delivered(6.0, "passed on", "", "value of passed on"),
        Delivered(7.0, "used", "", "value of used"),
        Started(started_at, "made", "2@6"),
    ]
    assert len(check(chain).violations) == violations


def test_history_round_trips(tmp_path: Path) -> None:
    first, second = History(tmp_path, "first"), History(tmp_path, "second")
    for number, line in enumerate(GOOD):
        (first if number % 2 else second).add(line)
    first.close()
    second.close()
    assert sorted(map(repr, read(tmp_path))) == sorted(map(repr, GOOD))
    assert [line.at for line in read(tmp_path)] == sorted(line.at for line in GOOD)


@pytest.mark.parametrize("retries", [0, 3])
@pytest.mark.parametrize(
    "killed", [("scheduler", "client"), ("scheduler and object storage", "client"), ("scheduler",)]
)
def test_in_memory_session_is_lost_only_with_scheduler_and_program(retries: int, killed: tuple[str, ...]) -> None:
    lines: list[Line] = [
        Submitted(1.0, "n", "nightly", retries, "value of n"),
        Started(2.0, "n", "10@2"),
        Delivered(3.0, "n", "", "value of n"),
        *(Struck(4.0, "kill", target) for target in killed),
        Started(5.0, "n", "11@5"),
    ]
    is_forgotten = len(killed) == 2
    verdict = check(lines, {"nightly"}, in_memory=True)
    assert verdict.forgotten == is_forgotten
    assert bool(verdict.duplicated) == (not is_forgotten)
    assert check(lines, {"nightly"}).duplicated, "a session on disk forgets nothing"


def test_restart_of_a_forgotten_task_after_its_outcome_is_a_violation() -> None:
    lines: list[Line] = [
        Submitted(1.0, "n", "nightly", 0, "value of n"),
        Started(2.0, "n", "10@2"),
        Struck(3.0, "kill", "scheduler"),
        Struck(3.5, "kill", "client"),
        Started(4.0, "n", "11@4"),
        Delivered(5.0, "n", "", "value of n"),
        Started(6.0, "n", "12@6"),
    ]
    verdict = check(lines, {"nightly"}, in_memory=True)
    assert verdict.forgotten == 1
    assert verdict.duplicated == ["n started again 1.000 s after its outcome was delivered"]


LOST_AND_SUBMITTED_AGAIN: list[Line] = [
    Submitted(1.0, "n", "nightly", 0, "value of n"),
    Started(2.0, "n", "10@2"),
    Struck(3.0, "kill", "fork server"),
    Struck(4.0, "kill", "client"),
    Started(5.0, "n", "11@5"),
    Delivered(6.0, "n", "", "value of n"),
]


def without(line: Line, *others: Line) -> list[Line]:
    return sorted([*(each for each in LOST_AND_SUBMITTED_AGAIN if each != line), *others], key=lambda each: each.at)


WORKER, PROGRAM, SUBMITTED = (LOST_AND_SUBMITTED_AGAIN[number] for number in (2, 3, 0))


@pytest.mark.parametrize(
    "lines",
    [
        LOST_AND_SUBMITTED_AGAIN,
        without(WORKER, Struck(3.0, "long stop", "agent")),
        without(WORKER, Struck(3.0, "half-open", "proxy of the scheduler")),
        without(PROGRAM, ClientGone(2.4, "alice", "kill"), Struck(2.5, "kill", "client"), PROGRAM),
    ],
)
def test_session_task_may_restart_if_no_program_learned_of_its_loss(lines: list[Line]) -> None:
    verdict = check(lines, {"nightly"})
    assert verdict.violations == []
    assert verdict.resubmitted == 1


@pytest.mark.parametrize(
    "lines",
    [
        without(WORKER),
        without(WORKER, Struck(1.5, "kill", "fork server")),
        without(WORKER, Struck(3.0, "kill", "page")),
        without(WORKER, Struck(3.0, "kill", "scheduler and object storage")),
        without(WORKER, Struck(3.0, "half-open", "proxy of the object storage")),
        without(WORKER, Struck(3.0, "delay", "proxy of the scheduler")),
        without(PROGRAM),
        without(PROGRAM, Struck(5.5, "kill", "client")),
        without(PROGRAM, Struck(4.0, "stop", "client")),
        without(PROGRAM, ClientGone(3.9, "alice", "kill"), PROGRAM),
        without(SUBMITTED, Submitted(1.0, "n", "alice", 0, "value of n")),
        without(SUBMITTED, SUBMITTED, Delivered(4.5, "n", "WorkerLostError", "some words")),
        without(SUBMITTED, SUBMITTED, Started(5.2, "n", "12@5")),
    ],
    ids=str,
)
def test_no_other_event_restarts_a_start_once_session_task(lines: list[Line]) -> None:
    assert len(check(lines, {"nightly"}).duplicated) >= 1
