"""The summary of a test run: second attempts are listed, and more than a few fail the run."""

from __future__ import annotations

import pytest

from tests.run import Result, report

CLEAN = Result(0, 999, 0, ())


def run_with(failed: int, passed: int = 5000) -> int:
    names = tuple(f"test_{number}" for number in range(failed))
    first = Result(1 if failed else 0, passed, 0, names)
    again = [Result(0, failed, 0, ())] if failed else []
    return report([first, *again, CLEAN], names)


def test_run_without_failures_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_with(0) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "5999 passed, 0 failed, 0 skipped"


def test_few_second_attempts_pass_and_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_with(10) == 0
    out = capsys.readouterr().out
    assert "10 of 6009 tests needed a second attempt" in out
    assert "test_9" in out


def test_more_second_attempts_than_the_limit_fail_the_run() -> None:
    assert run_with(13) == 1


def test_test_failing_twice_fails_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    first = Result(1, 5000, 2, ("test_a", "test_b"))
    assert report([first, Result(1, 1, 0, ("test_b",))], first.failed) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "5001 passed, 1 failed, 2 skipped"


def test_failing_measurement_fails_the_run() -> None:
    assert report([CLEAN, Result(1, 1, 0, ("test_fast",))], ()) == 1
