"""The shell of a component, in real processes."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("component_program.py")
WAIT_SECONDS = 20


@contextmanager
def component(what: str, loop: str = "builtin", **environment: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Start the program and yield its process and the descriptor on which it reports readiness."""
    ready, write = os.pipe()
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), what, loop],
        env={**os.environ, "SCALER_READY_FD": str(write), **environment},
        pass_fds=[write],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(write)
    try:
        yield process, ready
    finally:
        os.close(ready)
        process.kill()
        process.communicate()


def line_from(descriptor: int) -> str:
    assert select.select([descriptor], [], [], WAIT_SECONDS)[0], "the component did not become ready"
    return os.read(descriptor, 65536).decode()


@pytest.mark.parametrize(("loop", "number"), [("builtin", signal.SIGINT), ("uvloop", signal.SIGTERM)])
def test_component_reports_readiness_and_stops_on_request(loop: str, number: signal.Signals) -> None:
    with component("serve", loop) as (process, ready):
        assert json.loads(line_from(ready)) == {
            "component": "scheduler",
            "pid": process.pid,
            "addresses": {"scheduler": "tcp://127.0.0.1:1", "monitor": "tcp://127.0.0.1:3"},
        }
        assert line_from(ready) == "", "the descriptor is closed afterwards"
        process.send_signal(number)
        output, errors = process.communicate(timeout=WAIT_SECONDS)
    assert (process.returncode, errors) == (7, "")
    (line,) = output.splitlines()
    assert f" WARNING scheduler[{process.pid}] " in line, "readiness is logged once, by the process that waited for it"
    assert line.endswith(f"test: stopped\\x1b[31m by {'uvloop' if loop == 'uvloop' else 'asyncio.unix_events'}")


def test_second_signal_kills_even_a_stuck_component() -> None:
    with component("stuck", "uvloop") as (process, ready):
        line_from(ready)
        process.terminate()  # the first one, which it sent itself
        assert process.wait(WAIT_SECONDS) == 128 + signal.SIGTERM


@pytest.mark.parametrize(
    ("what", "code", "text"), [("usage", 2, "scheduler: that\\ncannot be\n"), ("failure", 1, "scheduler: no more\n")]
)
def test_user_errors_end_in_one_line(what: str, code: int, text: str) -> None:
    with component(what) as (process, _ready):
        _output, errors = process.communicate(timeout=WAIT_SECONDS)
    assert (process.returncode, errors) == (code, text)


def test_internal_error_prints_a_traceback_and_asks_for_a_report() -> None:
    with component("bug") as (process, _ready):
        _output, errors = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 1
    assert errors.startswith("Traceback")
    assert errors.splitlines()[-2:] == [
        "KeyError: 'ours'",
        "This is a bug in scaler; please report it with the lines above.",
    ]


def test_component_exits_with_its_parent_process() -> None:
    with subprocess.Popen(["sleep", "60"]) as parent:
        try:
            with component("serve", SCALER_PARENT_PID=str(parent.pid)) as (process, ready):
                line_from(ready)
                parent.kill()
                assert process.wait(WAIT_SECONDS) == 7
        finally:
            parent.kill()
