"""The test runner ends when a pytest process hangs, and names the hanging test."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import run
from tests.run import INTERRUPTED, Result, run_pytest

AT_ONCE = ("-n", "2", "--max-worker-restart", "0")

Start = Callable[..., Result]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Run a test file like `make test`. limit_seconds: of each test."""
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    monkeypatch.setattr(run, "GRACE_SECONDS", 1.0)

    def start(code: str, *options: str, limit_seconds: float = 0.5) -> Result:
        (tmp_path / "pytest.ini").write_text(f"[pytest]\ntimeout = {limit_seconds}\n")
        file = tmp_path / "test_it.py"
        file.write_text(f"import os, signal\n\ndef test_good(): pass\n\ndef test_bad():\n    {code}\n")
        places = f"--rootdir={tmp_path}", f"-c={tmp_path / 'pytest.ini'}", f"--basetemp={tmp_path / 'temporary'}"
        return run_pytest(*options, *places, str(file))

    return start


@pytest.mark.parametrize("options", [pytest.param((), marks=pytest.mark.full, id="alone"), AT_ONCE])
def test_crashing_process_ends_the_run_and_names_its_test(
    start: Start, options: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    result = start("os.kill(os.getpid(), signal.SIGKILL)", *options)
    assert result.exit_code == INTERRUPTED
    out = capfd.readouterr().out
    assert "the process of this test died" in out
    assert "test_it.py::test_bad" in out


@pytest.mark.parametrize("options", [pytest.param((), marks=pytest.mark.full, id="alone"), AT_ONCE])
def test_test_ignoring_its_time_limit_ends_the_run_with_stacks(
    start: Start, options: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    result = start(
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM, signal.SIGINT]); signal.pause()", *options
    )
    assert result.exit_code == INTERRUPTED
    out, err = capfd.readouterr()
    assert "this test did not end" in out
    assert "test_it.py::test_bad" in out
    assert "in test_bad" in err


def test_finished_run_has_the_results_of_all_tests(start: Start) -> None:
    result = start("assert False", limit_seconds=30.0)  # on a busy machine, a short limit ends pytest itself
    assert (result.exit_code, result.passed) == (1, 1)
    (failed,) = result.failed
    assert failed.endswith("test_bad")


def test_process_that_exits_after_its_last_test_has_not_died_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    readings = [[run.Note(ended.pid, "test_last", math.inf)], []]
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as pytest_process:

        def read(_directory: Path) -> list[run.Note]:
            if len(readings) == 1:
                pytest_process.stdin.close()  # type: ignore[union-attr]
            return readings.pop(0) if readings else []

        monkeypatch.setattr(run, "read_notes", read)
        assert run.supervise(pytest_process, tmp_path) == 0
