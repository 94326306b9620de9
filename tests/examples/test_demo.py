"""The programs of `make demo`: their results, and that they leave nothing behind in any case."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
PORTS = (8516, 8517, 8518)
END_SECONDS = 15.0


@contextmanager
def demo() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "examples" / "run_demo.py")],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=END_SECONDS)


def read_until(process: subprocess.Popen[str], start: str) -> None:
    assert process.stdout is not None
    assert any(line.startswith(start) for line in process.stdout), f"{start!r} never came"


def test_demo_shows_results_progress_and_speed_on_free_ports(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", PORTS[1]))
        other.listen()
        with demo() as process:
            output, _ = process.communicate(timeout=50)
            assert process.returncode == 0
    assert f"used by other programs: {PORTS[1]}; the demo uses ports from " in output
    lines = {line.partition(":")[0]: line for line in output.splitlines()}
    assert lines["submit"].endswith("= 144")
    assert lines["map"].endswith("primes below 400,000 = 33860")
    assert lines["starmap"].endswith("[1, 2, 4, 8, 16, 32, 64, 128, 256, 512]")
    assert lines["graph"].endswith("= 90")
    assert lines["speed"].endswith("tasks/s")
    assert "100%" in capfd.readouterr().err, "the progress of the map is shown"
    assert_nothing_is_left([])


def assert_nothing_is_left(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=END_SECONDS)
    assert not alive
    for port in PORTS:
        with socket.socket() as taker:
            taker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taker.bind(("127.0.0.1", port))


@pytest.mark.parametrize(
    ("line", "number"),
    [
        ("scaler: object storage server", signal.SIGINT),
        ("scaler: all components", signal.SIGTERM),
        ("submit:", signal.SIGINT),
    ],
)
def test_demo_leaves_nothing_behind_in_any_phase(line: str, number: int) -> None:
    with demo() as process:
        read_until(process, line)
        processes = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(number)
        process.communicate(timeout=END_SECONDS)
        assert process.returncode == 130
    assert_nothing_is_left(processes)


def test_killing_an_agent_in_the_middle_of_work_loses_nothing() -> None:
    with demo() as process:
        read_until(process, "submit:")
        family = psutil.Process(process.pid).children(recursive=True)
        workers = [child for child in family if child.cmdline()[-2:] == ["-m", "scaler.worker"]]
        min(workers, key=lambda child: len(child.parents())).kill()
        output, _ = process.communicate(timeout=50)
        assert process.returncode == 0
    assert "primes below 400,000 = 33860" in output
