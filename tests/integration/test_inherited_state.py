"""State that a program passes to child processes: signals, closed streams, a removed directory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from scaler.child_process import ChildProcess
from tests.short_forms import short_form

PROGRAM = """
import json, os, signal, sys

{before}
from scaler import Client
from scaler.errors import ProcessorDiedError

def state():
    import os, signal
    ignored = [number for number in signal.valid_signals() if signal.getsignal(number) == signal.SIG_IGN]
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    streams = [os.path.exists(f"/proc/self/fd/{{number}}") for number in range(3)]
    return [sorted(map(int, ignored)), sorted(map(int, blocked)), streams, os.path.exists(os.getcwd())]

def die():
    os._exit(3)

with Client() as client:
    found = client.submit(state).result(20)
    try:
        client.options(retries=0).submit(die).result(20)
    except ProcessorDiedError as error:
        found.append("exit code 3" in str(error))
with open(sys.argv[1], "w") as file:
    json.dump(found, file)
"""
PYTHONS_OWN = [signal.SIGPIPE, signal.SIGXFSZ]
"""Signals that every Python process ignores."""


@pytest.mark.parametrize(
    ("before", "ignored"),
    short_form(
        [
            ("signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())", PYTHONS_OWN),
            ("for number in range(2, 32): number in (9, 19) or signal.signal(number, signal.SIG_IGN)", PYTHONS_OWN),
            ("signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does", [signal.SIGHUP, *PYTHONS_OWN]),
            ("os.closerange(0, 3)", PYTHONS_OWN),
            ("os.umask(0o777)", PYTHONS_OWN),
            ("import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))", PYTHONS_OWN),
            ("os.mkdir(sys.argv[2]); os.chdir(sys.argv[2]); os.rmdir(sys.argv[2])", PYTHONS_OWN),
        ],
        2,
    ),
    ids=[
        "blocks all signals",
        "ignores all signals",
        "nohup",
        "closed streams",
        "umask",
        "few descriptors",
        "removed directory",
    ],
)
def test_cluster_survives_any_change_to_its_program(before: str, ignored: list[int], tmp_path: Path) -> None:
    answer = tmp_path / "answer"
    with (tmp_path / "errors").open("w+") as errors:
        command = [sys.executable, "-c", PROGRAM.format(before=before), str(answer), str(tmp_path / "gone")]
        subprocess.run(command, stdout=errors, stderr=errors, timeout=60, check=True)
        errors.seek(0)
        text = errors.read()
    assert "did not end in time" not in text
    assert "Traceback" not in text
    answer.chmod(0o600)
    assert json.loads(answer.read_text()) == [ignored, [], [True, True, True], True, True]


def test_starting_child_obeys_a_sigterm_ignored_by_its_parent() -> None:
    program = "import os, sys; os.read(int(sys.argv[1]), 1); from scaler.process_state import restore_signals as r; r()"
    reader, writer = os.pipe()
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = ChildProcess([sys.executable, "-c", program, str(reader)], {}, pass_fds=[reader])
    signal.signal(signal.SIGTERM, before)
    child.terminate()
    os.close(writer)
    os.close(reader)
    assert child.reap() == -signal.SIGTERM


def test_new_processors_and_workers_start_without_a_working_directory(tmp_path: Path) -> None:
    program = textwrap.dedent("""
        import os, sys
        os.mkdir(sys.argv[1])
        os.chdir(sys.argv[1])
        from scaler import Client

        with Client(n_workers=1) as client:
            client.submit(abs, -1).result(20)
            os.rmdir(sys.argv[1])
            client.options(retries=0).submit(os._exit, 0).exception(20)
            print(client.submit(os.getcwd).result(20))
            client.restart_workers()
            print(client.submit(abs, -1).result(20), client.submit(os.getcwd).result(20))
    """)
    command = [sys.executable, "-c", program, str(tmp_path / "gone")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ran.stdout, "Traceback" in ran.stderr) == ("/\n1 /\n", False), ran.stderr
