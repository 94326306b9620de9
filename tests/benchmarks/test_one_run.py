"""One run of a row: its figures or the reason for their absence, without leftovers."""

from __future__ import annotations

from benchmarks.one_run import run_once
from tests.conftest import Run, marked_processes


def test_run_returns_its_figures(run: Run) -> None:
    answer = run_once("submit", "executor", {"tasks": 10}, 30.0)
    assert answer.figures["tasks/s"] > 0
    assert list(run.temporary.glob("sb-*")) == []


def test_hanging_run_is_killed_with_all_its_processes(run: Run) -> None:
    # Includes a whole cluster, whose components are in separate sessions.
    answer = run_once("idle", "scaler", {"seconds": 600}, 3.0)
    assert answer.problem == "> 3 s"
    assert marked_processes(run.mark) == []
    assert list(run.temporary.glob("sb-*")) == []


def test_failed_run_explains_why() -> None:
    answer = run_once("submit", "executor", {"no_such_argument": 10}, 30.0)
    assert answer.problem == "failed"
    assert "no_such_argument" in answer.detail
