"""Evaluation of a table's figures: the worst row, met aims, and gross losses."""

from __future__ import annotations

import pytest

from benchmarks.all import README, with_table
from benchmarks.frame import gross_losses
from benchmarks.one_run import Answer
from benchmarks.rows import ROWS, SYSTEMS, Figure, Row, load
from benchmarks.table import table

FAST = Row("fast", (Figure("tasks/s", 300, of_executor=3.0),), full={}, short={})
SMALL = Row("small", (Figure("MB", 100, is_higher_better=False),), full={}, short={})
BOTH = Row("both", (Figure("tasks/s", 300, of_executor=3.0, is_ratio_aimed=True),), full={}, short={})


def answers(name: str, ours: float, executor: float) -> dict[str, Answer]:
    return {"scaler": Answer({name: ours}), "executor": Answer({name: executor})}


def lines(*measured: tuple[Row, dict[str, Answer]]) -> list[str]:
    text = table([(row.title, row, found) for row, found in measured], ["scaler", "executor"])
    return text.splitlines()[2:]


def test_row_furthest_from_its_aim_is_first() -> None:
    met, missed = (FAST, answers("tasks/s", 310, 100)), (SMALL, answers("MB", 200, 10))
    assert lines(met, missed) == [
        "| small | 200 | 10 | 20 x | 100 | no: 50 % of it |",
        "| fast | 310 | 100 | 3.10 x | 300 | yes |",
    ]


def test_aim_with_a_ratio_requires_both() -> None:
    assert lines((BOTH, answers("tasks/s", 400, 200)))[0].endswith("| 300, 3 x | no: 66 % of it |")


def test_system_that_did_not_finish_is_shown_with_its_limit() -> None:
    found = {"scaler": Answer({"MB": 90}), "executor": Answer({}, "> 120 s")}
    assert lines((SMALL, found)) == ["| small | 90 | > 120 s | - | 100 | yes |"]


def test_failed_row_is_the_worst() -> None:
    met, failed = (SMALL, answers("MB", 1_000, 10)), (FAST, {"scaler": Answer({}, "failed")})
    assert lines(met, failed)[0] == "| fast | failed | - | - | 300 | no: 0 % of it |"


@pytest.mark.parametrize(
    ("row", "name", "ours", "is_loss"),
    [
        (FAST, "tasks/s", 101, False),
        (FAST, "tasks/s", 99, True),  # the ratio to the executor has a limit of a third of the aim
        (SMALL, "MB", 999, False),
        (SMALL, "MB", 1_001, True),
    ],
)
def test_gross_loss_is_below_a_third_of_the_ratio_or_a_tenth_of_the_aim(
    row: Row, name: str, ours: float, is_loss: bool
) -> None:
    assert bool(gross_losses(row, answers(name, ours, 100))) is is_loss


def test_gross_loss_fails_immediately_on_any_machine() -> None:
    row = Row("right", (Figure("%", 100, must_hold=True),), full={}, short={})
    assert gross_losses(row, answers("%", 99.9, 25))
    assert not gross_losses(row, answers("%", 100, 25))


@pytest.mark.parametrize("name", ROWS)
def test_row_measures_scaler_and_existing_systems(name: str) -> None:
    row = load(name)
    assert row.systems[0] == "scaler"
    assert set(row.systems) <= set(SYSTEMS)
    assert row.title.format_map(row.full)
    assert set(row.full) == set(row.short)


def test_table_replaces_the_previous_one() -> None:
    page = README.read_text()
    once = with_table(page, "| one |\n")
    assert "| one |" in once
    assert with_table(once, "| two |\n") == with_table(page, "| two |\n")
    assert once.splitlines()[-1] == page.splitlines()[-1]
