"""How processes exit, also with their parent."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from scaler.processes import describe_exit


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (0, "exit code 0"),
        (3, "exit code 3"),
        (-9, "killed by signal 9 (SIGKILL)"),
        (-11, "killed by signal 11 (SIGSEGV)"),
        (-40, "killed by signal 40"),
    ],
)
def test_describes_an_end_in_words(code: int, text: str) -> None:
    assert describe_exit(code) == text


CHILD = """
import os, signal, sys
from scaler.processes import end_with_parent
end_with_parent(signal.SIGKILL, int(sys.argv[1]) or os.getppid())
print(os.getpid(), flush=True)
signal.pause()
"""
PARENT = f"""
import signal, subprocess, sys
subprocess.Popen([sys.executable, "-c", {CHILD!r}, "0"])
signal.pause()
"""


def test_process_exits_when_its_parent_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert int(parent.stdout.readline()) > 0
        parent.kill()
        # The child holds the other end of the pipe, which reaches its end when the child is gone.
        assert parent.stdout.read() == ""


def test_process_with_a_dead_parent_exits_at_once() -> None:
    done = subprocess.run([sys.executable, "-c", CHILD, "1"], capture_output=True, timeout=20, check=False)
    assert done.returncode == -signal.SIGKILL
