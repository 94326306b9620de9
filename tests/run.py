"""Runs the tests, or those below the given paths: `python tests/run.py --jobs 4 [--full] [PATH...]`.

Without `--full`, the directories in `ONLY_IN_FULL` are skipped: clouds and batch systems with their emulators, other
environments, the browser, code blocks in pages, examples, and the tools for chaos and fuzzing. Tests marked `full` are
also skipped: most seeds of the simulations, full tables of comparisons, and rare environments. A short form of them
remains (`tests.short_forms`). `make check` runs all tests.

A failed test gets a second attempt, which is listed and limited.

Most tests wait for processes rather than the CPU, so several run at once. On a busy machine, a process can exceed a
test's timeout. Such a test runs a second time, alone. The run fails if more than the share `MAX_SECOND_ATTEMPTS` of all
tests need this. Tests marked `alone` measure something, and run one at a time at the end.

If a pytest process dies or exceeds its test's time limit by `GRACE_SECONDS`, the run fails at once. The runner prints
the running tests and the stacks of a hanging process. `-p tests.run` loads this file as the pytest plugin that records
which test each process runs.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from xml.etree import ElementTree

import psutil
import pytest

TESTS = Path(__file__).parent
MAX_SECOND_ATTEMPTS = 0.002
"""Share of all tests that may need a second attempt."""
INTERRUPTED = 2
"""pytest's exit code when not all tests have run."""
NO_TESTS = 5
"""pytest's exit code when it selected none."""
POLL_SECONDS = 1.0
GRACE_SECONDS = 60.0
"""Time for a test to end after its limit, and for pytest after an interrupt."""
IDLE_SECONDS = 300.0
"""Maximum time of pytest without a test, for collecting and exiting."""
BUILD = TESTS.parent / "build"
ONLY_IN_FULL = ("engines", "browser", "chaos", "fuzz", "benchmarks", "environments", "examples", "rooms")
BY_MAKE_LINT = ("lint",)
LAST = ("extensions", "properties", "scenarios", "unit")
AT_ONCE = ("--dist", "loadfile", "--no-loadscope-reorder", "--max-worker-restart", "0")
"""Files in the order of `directories`. xdist would start with the files that have the most tests, which are short."""
CPU = "cpu_seconds"
"""Property of a test in the report: the CPU time of its process."""
NOTES = "TEST_RUNNER_NOTES"
"""Environment variable: the directory of the notes."""


@dataclass(frozen=True)
class Result:
    """The report of one pytest call. failed: names as printed by pytest. seconds: by test file."""

    exit_code: int
    passed: int
    skipped: int
    failed: tuple[str, ...]
    seconds: Mapping[str, float] = field(default_factory=dict)
    unit_cpu_seconds: float = 0.0


# -- records of running tests


@dataclass(frozen=True)
class Note:
    """A pytest process runs a test. until: monotonic time at which the test must have ended."""

    pid: int
    test: str
    until: float


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Maintain a note for this process while a test or its fixtures run."""
    directory = os.environ.get(NOTES)
    if directory is None:
        return (yield)
    marker = item.get_closest_marker("timeout")
    limit = marker.args[0] if marker else item.config.getini("timeout")
    note = Path(directory, str(os.getpid()))
    note.write_text(f"{time.monotonic() + float(limit)} {item.nodeid}")
    try:
        return (yield)
    finally:
        note.unlink()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Add the CPU time of a test to its report."""
    began = time.process_time()
    try:
        return (yield)
    finally:
        item.user_properties.append((CPU, round(time.process_time() - began, 4)))


def read_notes(directory: Path) -> list[Note]:
    """Return the running tests, and the tests whose process has died."""
    notes = []
    for path in directory.iterdir():
        try:
            until, _, test = path.read_text().partition(" ")
        except FileNotFoundError:
            continue  # the test has ended
        if test:
            notes.append(Note(int(path.name), test, float(until)))
    return notes


def complaints(notes: Sequence[Note], now: float) -> list[str]:
    """Return a line for each problem of the running tests."""
    found = []
    for note in notes:
        if not _is_alive(note.pid):
            found.append(f"the process of this test died (pid {note.pid}): {note.test}")
        elif now > note.until + GRACE_SECONDS:
            found.append(f"this test did not end {GRACE_SECONDS:.0f} s after its limit (pid {note.pid}): {note.test}")
    return found


def _is_alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def supervise(process: subprocess.Popen[bytes], directory: Path) -> int:
    """Return the exit code of pytest, interrupting it when a process has died or hangs."""
    tested_at = time.monotonic()
    while True:
        with suppress(subprocess.TimeoutExpired):
            process.wait(POLL_SECONDS)
        returncode, notes, now = process.returncode, read_notes(directory), time.monotonic()
        tested_at = now if notes else tested_at
        # A process that exits after its last test removes its note first, perhaps since the notes were read.
        found = complaints(read_notes(directory), now) if complaints(notes, now) else []
        if now > tested_at + IDLE_SECONDS:
            found.append(f"no test has run for {IDLE_SECONDS:.0f} s")
        if returncode is not None and not notes:
            return returncode
        if returncode is not None or found:
            running = [f"  {note.test}" for note in notes]
            print("\nthe run has ended early", *found, "the tests that were running:", *running, sep="\n", flush=True)
            _end(process, [note.pid for note in notes if now > note.until + GRACE_SECONDS])
            return INTERRUPTED


def _end(process: subprocess.Popen[bytes], stuck: Sequence[int]) -> None:
    """Stop pytest. stuck: processes that first print their stacks."""
    for pid in stuck:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGABRT)
    for number in (signal.SIGINT, signal.SIGABRT, signal.SIGKILL):  # its summary; its stacks
        process.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)
            return


# -- the run


def run_pytest(*arguments: str) -> Result:
    """Run pytest and read its report."""
    with tempfile.TemporaryDirectory() as directory, tempfile.TemporaryDirectory() as notes:
        report = Path(directory, "report.xml")
        command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", "-p", "tests.run", *arguments]
        # With cached bytecode, thousands of processes need not compile.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        process = subprocess.Popen(command, env={**environment, NOTES: notes})
        try:
            exit_code = supervise(process, Path(notes))
        except KeyboardInterrupt:  # the terminal also sends it to pytest
            process.wait()
            raise
        cases = list(ElementTree.parse(report).iter("testcase")) if report.exists() else []
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = [case for case in cases if case.find("skipped") is not None]
    names = dict.fromkeys(f"{case.get('classname')}::{case.get('name')}" for case in failed)
    seconds: dict[str, float] = defaultdict(float)
    for case in cases:
        seconds[case.get("classname", "")] += float(case.get("time", 0))
    units = [case for case in cases if case.get("classname", "").startswith("tests.unit.")]
    cpu = sum(
        float(each.get("value", 0)) for case in units for each in case.iter("property") if each.get("name") == CPU
    )
    return Result(exit_code, len(cases) - len(failed) - len(skipped), len(skipped), tuple(names), seconds, cpu)


def directories(left_out: Sequence[str]) -> list[str]:
    """Return the test directories. Those with short files come last, which lets all processes finish together."""
    names = {path.relative_to(TESTS).parts[0] for path in TESTS.rglob("test_*.py")} - set(left_out)
    return [str(TESTS / name) for name in sorted(names, key=lambda name: (name in LAST, name))]


def files_with(text: str, left_out: Sequence[str]) -> list[str]:
    """Return test files outside some directories that contain a text. Collecting all files would take too long."""
    paths = (path for path in sorted(TESTS.rglob("test_*.py")) if path.relative_to(TESTS).parts[0] not in left_out)
    return [str(path) for path in paths if text in path.read_text()]


def main() -> int:
    """Return 0 if all tests passed and few enough needed a second attempt."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=4, help="parallel tests (default: 4)")
    parser.add_argument("--full", action="store_true", help=f"also {', '.join(ONLY_IN_FULL)}")
    parser.add_argument("paths", nargs="*", help="files and directories with tests (default: all)")
    arguments = parser.parse_args()
    left_out = BY_MAKE_LINT if arguments.full else (*BY_MAKE_LINT, *ONLY_IN_FULL)
    short = "" if arguments.full else " and not full"
    paths = arguments.paths or directories(left_out)
    # nohup, background jobs, and some CI systems make their children ignore it, but tests send it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    began = time.monotonic()
    at_once = (*AT_ONCE, "-n", str(arguments.jobs))
    first = run_pytest(*at_once, "-m", f"not alone{short}", *paths)
    results = [first]
    if first.exit_code not in (0, NO_TESTS) and not (first.exit_code == 1 and first.failed):  # a crash, a usage error
        return first.exit_code
    second = first.failed
    if second:
        again = ("--last-failed", "--last-failed-no-failures", "none")
        results.append(run_pytest(*again, "-m", f"not alone{short}", *paths))
    results.append(run_pytest("-m", f"alone{short}", *(arguments.paths or files_with("mark.alone", left_out))))
    if not arguments.paths:
        record(results, time.monotonic() - began, "check" if arguments.full else "test")
    return report(results, second)


def record(results: Sequence[Result], seconds: float, command: str) -> None:
    """Write the duration of each file and the run's values for the ratchets. command: the make command."""
    BUILD.mkdir(exist_ok=True)
    values = {
        f"{command}.cases": sum(result.passed + result.skipped for result in results),
        f"{command}.seconds": round(seconds),
        "unit_cpu_seconds": round(results[0].unit_cpu_seconds, 1),
    }
    (BUILD / "tests.json").write_text(json.dumps(values))
    total: dict[str, float] = defaultdict(float)
    for result in results:
        for name, each in result.seconds.items():
            total[name] += each
    slowest = sorted(total.items(), key=itemgetter(1), reverse=True)
    (BUILD / "durations.txt").write_text("".join(f"{each:8.1f} {name}\n" for name, each in slowest))


def report(results: list[Result], second: tuple[str, ...]) -> int:
    """Print a summary and return the exit code. results: per pytest call; second: tests that failed at first."""
    failed = [test for result in results[1:] for test in result.failed]
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
