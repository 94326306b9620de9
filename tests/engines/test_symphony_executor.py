"""The symphony executor with the fake soamapi and the shipped service."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from scaler.errors import ConfigError
from scaler.ids import IdFactory
from scaler.offload.call import (
    Call,
    CallFailed,
    CallFinished,
    CallKey,
    CallResult,
    CallStarted,
    ExecutorError,
    Report,
    unpack_result,
)
from scaler.protocol.messages import Outcome
from scaler.serialization import dump_function, load_value, to_payload
from scaler.serialization.arguments import dump_arguments
from scaler.serialization.exceptions import load_exception
from scaler.testing.soamapi import Fault, StandIn, api
from scaler.worker_manager.offload import OffloadConfig
from scaler.worker_manager.symphony import SymphonyConfig
from scaler.worker_manager.symphony.executor import EXECUTOR, MOST_TASKS, SymphonyExecutor, make_backend
from tests.engines.soamapi_rig import DEADLINE_SECONDS, use
from tests.waiting import until

IDS = IdFactory(b"client--")
SETTINGS: dict[str, Any] = {
    "scheduler_address": "tcp://127.0.0.1:1",
    "worker_manager_id": "m",
    "service_name": "app",
    "session_name": "test",
}


def call(function: Callable[..., Any], *args: Any) -> Call:
    return Call(
        task=IDS.task(),
        attempt=1,
        function=to_payload(dump_function(function)),
        arguments=to_payload(dump_arguments(args, {})[0]),
    )


class Rig:
    """An executor and its reports."""

    def __init__(self, **settings: Any) -> None:
        config = OffloadConfig(
            scheduler_address="tcp://127.0.0.1:1",
            worker_manager_id="m",
            unit_id="m-1",
            executor=EXECUTOR,
            executor_settings={**SETTINGS, **settings},
        )
        self.executor = SymphonyExecutor(config)
        self._changed = threading.Condition()
        self.reports: list[Report] = []
        self.executor.start(self._report)

    def _report(self, report: Report) -> None:
        with self._changed:
            self.reports.append(report)
            self._changed.notify_all()

    def run(self, *calls: Call) -> None:
        self.executor.run(calls)

    def refused(self, *calls: Call) -> ExecutorError:
        with pytest.raises(ExecutorError) as caught:
            self.executor.run(calls)
        return caught.value

    def until(self, condition: Callable[[], Any]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, DEADLINE_SECONDS), self.reports

    def ends(self) -> dict[CallKey, CallFinished | CallFailed]:
        found = [report for report in self.reports if isinstance(report, CallFinished | CallFailed)]
        assert len({(end.task, end.attempt) for end in found}) == len(found), "a call ended twice"
        return {(end.task, end.attempt): end for end in found}

    def results(self, calls: Sequence[Call]) -> list[CallResult]:
        """Wait until these calls have finished, and return their outcomes."""
        self.until(lambda: all(each.key in self.ends() for each in calls))
        ends = [self.ends()[each.key] for each in calls]
        return [unpack_result(end.data) for end in ends if isinstance(end, CallFinished)]

    def values(self, *calls: Call) -> list[Any]:
        return [load_value(result.parts, None, "") for result in self.results(calls)]

    def failure(self, failed: Call) -> tuple[Outcome, str]:
        """Wait until this call has failed, and return its outcome."""
        self.until(lambda: failed.key in self.ends())
        end = self.ends()[failed.key]
        assert isinstance(end, CallFailed), end
        return end.outcome, end.text


Begin = Callable[..., Rig]


@pytest.fixture
def begin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Begin]:
    """Starts an executor on a fake with these faults and settings."""
    rigs: list[Rig] = []

    def start(*faults: Fault, settings: dict[str, Any] | None = None, **stand_in: Any) -> Rig:
        use(StandIn(**{"slots": 1, "faults": faults, **stand_in}), monkeypatch)
        rigs.append(Rig(**(settings or {})))
        return rigs[-1]

    yield start
    for rig in rigs:
        rig.executor.close()
    assert api.reset(None) == [], "nothing is raised into the library"


class Hang:
    """A task that hangs, and its process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.call = call(_hang, str(path))

    def process(self) -> psutil.Process:
        until(lambda: self._path.exists() and self._path.read_text())
        return psutil.Process(int(self._path.read_text()))


def _hang(path: str) -> None:
    Path(path).write_text(str(os.getpid()))
    signal.pause()


@pytest.fixture
def hang(tmp_path: Path) -> Hang:
    return Hang(tmp_path / "hang")


def square(value: int) -> int:
    return value * value


def look_up() -> int:
    table: dict[str, int] = {}
    return table["x"]


def gone(process: psutil.Process) -> bool:
    psutil.wait_procs([process], DEADLINE_SECONDS)
    return not process.is_running()


# -- results


def test_every_call_starts_and_ends_once_with_its_value(begin: Begin) -> None:
    rig = begin(slots=2)
    calls = [call(square, number) for number in range(200)]
    rig.run(*calls[:100])
    rig.run(*calls[100:])
    assert rig.values(*calls) == [number**2 for number in range(200)]
    started = {(report.task, report.attempt) for report in rig.reports if isinstance(report, CallStarted)}
    assert started == {each.key for each in calls}


def test_large_arguments_and_results_arrive_whole(begin: Begin) -> None:
    rig = begin()
    data = os.urandom(1_500_000)
    reverse = call(lambda value: value[::-1], data)
    rig.run(reverse)
    assert rig.values(reverse) == [data[::-1]]


def test_exceptions_of_task_and_service_are_results(begin: Begin) -> None:
    rig = begin(Fault("invoke", "fail", 2, text="no disk"), task_retry_limit=0)
    raising, thrown = call(look_up), call(square, 1)
    rig.run(raising, thrown)
    first, second = rig.results([raising, thrown])
    assert first.outcome is second.outcome is Outcome.EXCEPTION
    assert isinstance(load_exception(bytes(first.parts[0])), KeyError)
    error = load_exception(bytes(second.parts[0]))
    assert (type(error), str(error)) == (RuntimeError, "no disk")


def test_task_whose_processes_keep_dying_is_charged_and_the_next_one_runs(begin: Begin) -> None:
    rig = begin(task_retry_limit=1)
    dying, next_one = call(os._exit, 9), call(square, 3)
    rig.run(dying, next_one)
    outcome, text = rig.failure(dying)
    assert outcome is Outcome.PROCESSOR_DIED
    assert "retry limit of 1" in text
    assert "exit code 9" in text
    assert rig.values(next_one) == [9]


# -- responses that go wrong


def test_duplicate_or_late_response_counts_once(begin: Begin) -> None:
    rig = begin(Fault("response", "twice", 1), Fault("response", "late", 2, seconds=0.2))
    calls = [call(square, number) for number in range(4)]
    rig.run(*calls)
    assert rig.values(*calls) == [0, 1, 4, 9]


def test_unreadable_response_fails_only_its_call(begin: Begin) -> None:
    rig = begin(Fault("response", "unreadable", 1, text="torn"))
    torn, whole = call(square, 1), call(square, 2)
    rig.run(torn, whole)
    assert rig.failure(torn) == (Outcome.WORKER_LOST, "Symphony ran the task, but its result cannot be read: torn")
    assert rig.values(whole) == [4]


# -- cancelling


def test_cancelled_call_is_killed_without_a_report(begin: Begin, hang: Hang) -> None:
    rig = begin()
    pending, last = call(square, 5), call(square, 6)
    rig.run(hang.call, pending, last)
    process = hang.process()
    rig.executor.cancel([hang.call.key, pending.key])
    assert gone(process)
    rig.until(lambda: last.key in rig.ends())
    assert rig.ends().keys() == {last.key}


@pytest.fixture
def soamcontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Puts a soamcontrol command on PATH, which writes its arguments to a file and then acts as configured."""

    def make(then: str) -> Path:
        directory = tmp_path / "bin"
        directory.mkdir()
        notes = tmp_path / "notes"
        (directory / "soamcontrol").write_text(f'#!/bin/sh\necho "$@" >> {notes}\n{then}\n')
        (directory / "soamcontrol").chmod(0o755)
        monkeypatch.setenv("PATH", f"{directory}{os.pathsep}{os.environ['PATH']}")
        return notes

    return make


def test_soamcontrol_kills_tasks_that_the_library_cannot(
    begin: Begin, hang: Hang, soamcontrol: Callable[[str], Path]
) -> None:
    notes = soamcontrol("exit 0")
    rig = begin(can_kill=False)
    pending = call(square, 5)
    rig.run(hang.call, pending)
    hang.process()
    rig.executor.cancel([hang.call.key, pending.key])
    assert notes.read_text() == "task kill app:1:1,2\n"


# -- sessions that go away


@pytest.mark.parametrize("how", ["abort", "disconnect"])
def test_calls_of_a_lost_session_are_returned_and_a_new_one_continues(begin: Begin, hang: Hang, how: Any) -> None:
    rig = begin(Fault("send", how, 3, text="by hand"))
    pending, refused, unsent = call(square, 1), call(square, 2), call(square, 3)
    rig.run(hang.call, pending)
    process = hang.process()
    assert rig.refused(refused, unsent).taken == ()
    for lost in (hang.call, pending):
        outcome, text = rig.failure(lost)
        assert outcome is Outcome.NOT_STARTED
        assert text.startswith("Symphony's session was lost: ")
        assert "by hand" in text
    assert gone(process)
    again = replace(refused, attempt=2)
    rig.run(again, unsent)
    assert rig.values(again, unsent) == [4, 9]
    assert len(api.grid().sessions()) == 1


# -- refusals


def test_skips_the_rest_after_ten_refusals_in_a_row(begin: Begin, hang: Hang) -> None:
    rig = begin(Fault("send", "refuse", 2, times=10, text="busy"))
    calls = [hang.call, *(call(square, number) for number in range(12))]
    assert rig.refused(*calls).taken == (hang.call.key,)
    rig.run(*calls[1:])
    hang.process().kill()


@pytest.mark.parametrize("event", ["connect", "create_session"])
def test_retries_a_session_that_cannot_be_opened(begin: Begin, event: Any) -> None:
    rig = begin(Fault("send", "refuse", 1), Fault(event, "refuse", 2, text="master is down"))
    one = call(square, 4)
    rig.refused(one)
    assert "master is down" in str(rig.refused(one))
    rig.run(one)
    assert rig.values(one) == [16]


# -- the session


def test_session_has_the_configured_name_and_priority(begin: Begin, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("secret\nsecond line\n")
    password.chmod(0o600)
    login = {"symphony_user": "ann", "symphony_password_file": str(password), "session_priority": 77}
    begin(users={"ann": "secret"}, applications=("app",), settings=login)
    assert [(session.name, session.priority) for session in api.grid().sessions()] == [("test", 77)]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"symphony_user": "eve"}, "to Symphony's application 'app': user eve could not be authenticated"),
        ({"service_name": "other"}, "to Symphony's application 'other': application other is not"),
    ],
    ids=["user", "application"],
)
def test_refused_executor_explains_why(begin: Begin, settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ExecutorError, match=f"cannot connect {text}"):
        begin(users={"Guest": ""}, applications=("app",), settings=settings)


def test_closing_leaves_nothing_running_even_after_a_failed_start(begin: Begin, hang: Hang) -> None:
    rig = begin(slots=2)
    rig.run(hang.call, call(square, 1))
    process = hang.process()
    rig.executor.close()
    assert not process.is_running()
    assert api.grid().sessions() == []
    rig.executor.close()


# -- the backend


def config(**settings: Any) -> SymphonyConfig:
    return SymphonyConfig(
        scheduler_address="tcp://127.0.0.1:1", worker_manager_id="grid", service_name="app", **settings
    )


def test_backend_is_one_agent_with_the_sessions_task_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    use(StandIn(), monkeypatch)
    limits = {5: 5, -1: MOST_TASKS}
    for limit, slots in limits.items():
        backend = make_backend(config(max_task_concurrency=limit))
        assert (backend.capacity.max_units, backend.capacity.unit_slots, backend.capacity.max_slots) == (
            1,
            slots,
            slots,
        )
        backend.close()


@pytest.mark.parametrize(
    ("content", "mode", "text"),
    [
        (b"secret\n", 0o640, r"other users can open .*password \(mode 0640\): chmod 600 "),
        (b"secret\n", 0o604, "other users can open"),
        (b"\nsecret\n", 0o600, "contains no password on its first line"),
        (b"\xff\n", 0o600, "is not UTF-8"),
        (None, 0, "cannot read .*: No such file or directory"),
    ],
    ids=["group", "others", "empty", "binary", "missing"],
)
def test_rejects_a_password_file_that_is_not_private(
    content: bytes | None, mode: int, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(StandIn(), monkeypatch)
    path = tmp_path / "password"
    if content is not None:
        path.write_bytes(content)
        path.chmod(mode)
    with pytest.raises(ConfigError, match=text):
        make_backend(config(symphony_password_file=str(path)))


# -- the library


def run_service(**environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, "-m", "scaler.worker_manager.symphony.service"],
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_service_without_its_library_says_what_to_install() -> None:
    done = run_service()
    assert done.returncode == 2
    assert done.stderr.startswith("soamapi, the Python library of IBM Spectrum Symphony, cannot be imported")
