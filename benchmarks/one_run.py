"""Runs a row once on one system: in a new process, with a time limit, and with a complete cleanup."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.peers import ADAPTORS, interpreter

MARK = "SCALER_BENCHMARK_RUN"
"""Environment variable that marks all processes of a run, including those whose parents have ended."""
END_SECONDS = 5.0
"""Grace period for the processes of a run after its client has ended."""


@dataclass(frozen=True)
class Answer:
    """The figures of a run, or the reason for having none."""

    figures: Mapping[str, float]
    problem: str = ""
    """Text that the table shows instead of figures."""
    detail: str = ""


def run_once(row: str, system: str, arguments: Mapping[str, int], limit_seconds: float) -> Answer:
    """Run a scenario once on an installed system."""
    python = interpreter(system)
    assert python is not None
    mark = uuid.uuid4().hex
    with tempfile.TemporaryDirectory(prefix="sb-", ignore_cleanup_errors=True) as directory:
        here = Path(directory)
        # Only the benchmarks are on the path, because a peer must not import this checkout's scaler.
        (here / "path").mkdir()
        (here / "path" / "benchmarks").symlink_to(Path(__file__).parent)
        answer, log = here / "answer", here / "log"
        temporary = here / "t"
        temporary.mkdir()
        environment = {**os.environ, "PYTHONPATH": str(here / "path"), "TMPDIR": str(temporary), MARK: mark}
        # Installed packages have cached bytecode, so a checkout may cache it too.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        command = [
            str(python),
            "-m",
            "benchmarks.child",
            row,
            ADAPTORS[system],
            json.dumps(dict(arguments)),
            str(answer),
        ]
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, env=environment, cwd=here, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
            try:
                status = process.wait(limit_seconds)
            except subprocess.TimeoutExpired:
                return Answer({}, f"> {limit_seconds:.0f} s", "killed at its time limit\n" + tail(log))
            finally:
                end(mark, 0.0 if process.returncode is None else END_SECONDS)
                process.wait()
        if status:
            return Answer({}, "failed", f"status {status}\n" + tail(log))
        return Answer(json.loads(answer.read_text()))


def tail(log: Path, size: int = 2_000) -> str:
    return log.read_bytes()[-size:].decode(errors="replace")


def of_run(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark:
                found.append(process)
        except psutil.Error:
            continue
    return found


def end(mark: str, patience_seconds: float) -> None:
    """Wait for the processes of a run to exit, and kill the remaining ones."""
    deadline = time.monotonic() + patience_seconds
    while left := of_run(mark):
        if time.monotonic() < deadline:
            psutil.wait_procs(left, 0.1)
            continue
        for process in left:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(left, 1.0)
