"""Ctrl-C in programs that wait for a cluster: they exit at once, and leave nothing behind on it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from scaler import Client, SchedulerClusterCombo
from tests.waiting import until, wait_for_file

SECONDS = 30.0

BEGINNING = """
import signal, sys
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background processes ignore it
folder, address = Path(sys.argv[1]), sys.argv[2]

def endless(number):
    (folder / "began").touch()
    signal.pause()

def double(number):
    return 2 * number
"""
WITH_JOBLIB = """
import joblib, scaler.joblib
joblib.parallel_config("scaler", address=address, n_jobs=-1).__enter__()
calls = [joblib.delayed(endless)(number) for number in range(20)]
"""
WAITS = {
    "a list": "joblib.Parallel(batch_size=1)(calls)",
    "an unordered generator": "next(joblib.Parallel(batch_size=1, return_as='generator_unordered')(calls))",
}


@contextmanager
def program(folder: Path, address: str, text: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program in a separate process group, like a terminal."""
    script = folder / "program.py"
    script.write_text(BEGINNING + textwrap.dedent(text))
    command = [sys.executable, str(script), str(folder), address]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, process_group=0, env=dict(os.environ))
    with process:
        try:
            yield process
        finally:
            process.kill()


def interrupt(process: subprocess.Popen[str], began: Path) -> tuple[str, str]:
    """Press Ctrl-C once the file exists; return the program's output after its exit."""
    wait_for_file(began)
    os.killpg(process.pid, signal.SIGINT)
    return process.communicate(timeout=SECONDS)


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_ctrl_c_in_joblib_cancels_its_calls_and_later_calls_run(
    cluster: SchedulerClusterCombo, tmp_path: Path, wait: str
) -> None:
    text = f"""
    try:
        {wait}
    except KeyboardInterrupt:
        print(joblib.Parallel()(joblib.delayed(double)(number) for number in range(4)))
    """
    with program(tmp_path, cluster.get_address(), WITH_JOBLIB + textwrap.dedent(text)) as running:
        printed, errors = interrupt(running, tmp_path / "began")
    assert (printed, errors, running.returncode) == ("[0, 2, 4, 6]\n", "", 0)


def test_program_interrupted_by_ctrl_c_ends_with_its_tasks(cluster: SchedulerClusterCombo, tmp_path: Path) -> None:
    with program(tmp_path, cluster.get_address(), WITH_JOBLIB + WAITS["a list"]) as running:
        printed, errors = interrupt(running, tmp_path / "began")
    assert (printed, running.returncode == 0) == ("", False)
    assert errors.splitlines()[-1] == "KeyboardInterrupt"
    with Client(cluster.get_address()) as client:
        assert client.submit(len, "free").result(SECONDS) == 4, "the workers are free"
        assert until(lambda: not [row for row in client.tasks(state="running") if row.function == "endless"])
