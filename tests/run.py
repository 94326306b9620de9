"""Runs all tests, or those below the given paths: `python tests/run.py --jobs 3 [PATH...]`.

A failed test gets a second attempt, which is listed and limited.

Most tests wait for processes rather than for the processor, so several run at once. On a busy machine a process can
take longer than a test waits for it: such a test runs once more with nothing beside it. More than
`MAX_SECOND_ATTEMPTS` of all tests fail the run all the same. Tests marked `alone` measure: they run at the end, one at
a time.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

MAX_SECOND_ATTEMPTS = 0.002
"""Share of all tests that may need a second attempt."""
NO_TESTS = 5
"""pytest's exit code when it selected none."""


@dataclass(frozen=True)
class Result:
    """What one call of pytest reported. failed: names as pytest prints them."""

    exit_code: int
    passed: int
    skipped: int
    failed: tuple[str, ...]


def run_pytest(*arguments: str) -> Result:
    """Run pytest and read its report."""
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory, "report.xml")
        command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *arguments]
        exit_code = subprocess.run(command, check=False).returncode
        cases = list(ElementTree.parse(report).iter("testcase")) if report.exists() else []
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = [case for case in cases if case.find("skipped") is not None]
    names = dict.fromkeys(f"{case.get('classname')}::{case.get('name')}" for case in failed)
    return Result(exit_code, len(cases) - len(failed) - len(skipped), len(skipped), tuple(names))


def main() -> int:
    """Return 0 when all tests passed and few enough needed a second attempt."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=3, help="tests that run at once (default: 3)")
    parser.add_argument("paths", nargs="*", help="files and directories with tests (default: all)")
    arguments = parser.parse_args()
    paths = arguments.paths
    first = run_pytest("-n", str(arguments.jobs), "--dist", "loadfile", "-m", "not alone", *paths)
    results = [first]
    if first.exit_code and not first.failed:  # pytest itself failed: a usage error, a crash, Ctrl-C
        return first.exit_code
    second = first.failed
    if second:
        results.append(run_pytest("--last-failed", "--last-failed-no-failures", "none", "-m", "not alone", *paths))
    if results[-1].exit_code == 0:
        results.append(run_pytest("-m", "alone", *paths))
    return report(results, second)


def report(results: list[Result], second: tuple[str, ...]) -> int:
    """Print the summary; return the exit code. results: of each call; second: the tests that failed at first."""
    failed = results[-1].failed
    passed = sum(result.passed for result in results)
    skipped = sum(result.skipped for result in results)
    total = passed + skipped + len(failed)
    too_many = len(second) > MAX_SECOND_ATTEMPTS * total
    if second:
        share = f"{len(second)} of {total} tests needed a second attempt"
        print(f"\n{share} (at most {MAX_SECOND_ATTEMPTS:.1%} may):", *second, sep="\n  ")
    print(f"\n{passed} passed, {len(failed)} failed, {skipped} skipped")
    exit_code = next((result.exit_code for result in results[1:] if result.exit_code not in (0, NO_TESTS)), 0)
    return exit_code or int(bool(failed) or too_many)


if __name__ == "__main__":
    sys.exit(main())
