"""The supervisor with real processes: small shell scripts as components."""

from __future__ import annotations

import os
import re
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from scaler.cluster.supervision import ComponentProcess, ReportLine
from scaler.cluster.supervisor import Supervisor

READY = (
    """echo '{"component": "x", "pid": 1, "addresses": {"address": "ipc://x"}}' > /proc/self/fd/$SCALER_READY_FD; """
)


def script(name: str, text: str, tier: int = 0) -> ComponentProcess:
    return ComponentProcess(name, ("/bin/sh", "-c", text), tier)


def service(name: str, tier: int = 0) -> ComponentProcess:
    return script(name, READY + "exec sleep 60", tier)


class Run:
    """A supervisor running in a thread, and its reports."""

    def __init__(self, *components: ComponentProcess) -> None:
        self.progress: list[str] = []
        self.failures: list[str] = []
        self._reported = threading.Condition()
        self.supervisor = Supervisor(components, report=self._report)
        self.exit_code: int | None = None
        self.thread = threading.Thread(target=self._run)

    def _report(self, line: ReportLine) -> None:
        with self._reported:
            (self.failures if line.is_failure else self.progress).append(line.text)
            self._reported.notify_all()

    def _run(self) -> None:
        self.exit_code = self.supervisor.run()

    def wait_for_lines(self, beginning: str, count: int) -> None:
        """Wait until this many reports begin with the text."""
        with self._reported:
            assert self._reported.wait_for(
                lambda: sum(line.startswith(beginning) for line in [*self.progress, *self.failures]) >= count, 10
            )

    def end(self) -> int | None:
        self.thread.join(20)
        assert not self.thread.is_alive()
        return self.exit_code


@contextmanager
def running(*components: ComponentProcess) -> Iterator[Run]:
    run = Run(*components)
    run.thread.start()
    try:
        run.supervisor.settled.wait()
        yield run
    finally:
        run.supervisor.stop(hurry=True)
        run.end()


def pids_of(run: Run, *names: str) -> list[int]:
    found = dict(re.findall(r"^(\w+) is ready: .* \(pid (\d+)\)$", "\n".join(run.progress), re.MULTILINE))
    return [int(found[name]) for name in names]


def test_components_start_report_readiness_and_stop_in_reverse() -> None:
    with running(service("storage"), service("scheduler", 1)) as run:
        storage, scheduler = pids_of(run, "storage", "scheduler")
        assert run.supervisor.supervision.addresses["scheduler"] == {"address": "ipc://x"}
        run.supervisor.stop()
        assert run.end() == 0
    assert run.progress == [
        f"storage is ready: address ipc://x (pid {storage})",
        f"scheduler is ready: address ipc://x (pid {scheduler})",
        "all components are ready; press Ctrl-C to stop",
        "stopping",
        "scheduler has ended",
        "storage has ended",
    ]
    assert not psutil.pid_exists(storage)
    assert not psutil.pid_exists(scheduler)


def test_exit_of_a_component_is_explained_with_its_last_lines(capfd: pytest.CaptureFixture[str]) -> None:
    crash = script("scheduler", "echo one; echo two >&2; exit 3", 1)
    with running(service("storage"), crash) as run:
        assert run.end() == 1
    (failure,) = run.failures
    assert re.fullmatch(r"scheduler \(pid \d+\) ended before it was ready: exit code 3", failure)
    assert run.supervisor.supervision.failure is not None
    headline, *lines = run.supervisor.supervision.failure.splitlines()
    assert headline == f"{failure}; its last lines:"
    assert sorted(lines) == ["    one", "    two"]
    assert capfd.readouterr() == ("one\n", "two\n"), "output of components goes to the same stream"


def test_killed_component_restarts_and_others_keep_running() -> None:
    with running(service("storage"), service("scheduler", 1)) as run:
        storage, scheduler = pids_of(run, "storage", "scheduler")
        os.kill(storage, 9)
        run.wait_for_lines("storage is ready", 2)
        (again,) = pids_of(run, "storage")
        assert psutil.pid_exists(scheduler)
        run.supervisor.stop()
        assert run.end() == 0
    assert run.failures == [
        f"storage ended unexpectedly and is being restarted: signal=SIGKILL pid={storage} restarts=1 delay_seconds=0"
    ]
    assert not psutil.pid_exists(again)


def test_each_process_of_a_component_inherits_its_listening_socket() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        number = listening.fileno()
        text = f"test -S /proc/self/fd/{number} || exit 2; {READY}exec sleep 60"
        page = ComponentProcess("page", ("/bin/sh", "-c", text), optional=True, listening=listening)
        with running(service("scheduler"), page) as run:
            run.wait_for_lines("page is ready", 1)
            (pid,) = pids_of(run, "page")
            os.kill(pid, 9)
            run.wait_for_lines("page is ready", 2)


def test_kills_processes_left_in_a_components_process_group(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    parent = script("scheduler", f"sleep 60 & echo $! > {note}; " + READY + "exec sleep 60")
    with running(parent) as run:
        left = os.pidfd_open(int(note.read_text()))
        run.supervisor.stop()
        assert run.end() == 0
    ended, _, _ = select.select([left], [], [], 10)
    os.close(left)
    assert ended


def test_names_a_missing_program() -> None:
    with running(ComponentProcess("scheduler", ("/does/not/exist",))) as run:
        assert run.end() == 1
    (failure,) = run.failures
    assert failure.startswith("scheduler could not be started: ")
