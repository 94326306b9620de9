"""Systems without pidfds: Linux before 5.3, and containers with older seccomp profiles."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

PROGRAM = """
import os, pathlib, signal, sys, time

from scaler import Client, SchedulerClusterCombo
from scaler.errors import ProcessorDiedError
from tests.waiting import wait_for_file

def die():
    os._exit(3)

def hold(path):
    pathlib.Path(path).touch()
    signal.pause()

if __name__ == "__main__":
    cluster = SchedulerClusterCombo(n_workers=2)
    client = Client(cluster.get_address())
    assert list(client.map(abs, range(-9, 0))) == list(range(9, 0, -1))
    assert isinstance(client.options(retries=0).submit(die).exception(20), ProcessorDiedError)
    held = client.submit(hold, sys.argv[1])
    wait_for_file(sys.argv[1])
    held.cancel()
    assert client.submit(abs, -1).result(20) == 1
    if len(sys.argv) > 2:
        print("ready", flush=True)
        signal.pause()
    began = time.monotonic()
    client.disconnect()
    cluster.shutdown()
    print(time.monotonic() - began)
"""
MARK = "SCALER_TEST_WITHOUT_PIDFDS"
_PIDFD_SEND_SIGNAL, _PIDFD_OPEN = 424, 434  # of every architecture
_P_PIDFD = 3
_WAITID = {"x86_64": 247, "aarch64": 95}
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _FILTER = 22, 38, 2
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000
_NUMBER, _FIRST_ARGUMENT = 0, 16


def forbid_pidfds(error: int) -> None:
    """Make pidfd calls fail in this process and its children: `waitid` as before Linux 5.4."""
    rules = [
        (_LOAD, 0, 0, _NUMBER),
        (_JUMP_IF_EQUAL, 6, 0, _PIDFD_SEND_SIGNAL),
        (_JUMP_IF_EQUAL, 5, 0, _PIDFD_OPEN),
        (_JUMP_IF_EQUAL, 0, 2, _WAITID[platform.machine()]),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_JUMP_IF_EQUAL, 1, 0, _P_PIDFD),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _FAIL | errno.EINVAL),
        (_RETURN, 0, 0, _FAIL | error),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *rule) for rule in rules))
    program = ctypes.create_string_buffer(struct.pack("HP", len(rules), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    assert libc.prctl(_PR_SET_SECCOMP, _FILTER, program, 0, 0) == 0


def run(program: Path, error: int, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(program), *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, MARK: str(program), "PYTHONPATH": str(Path(__file__).parents[2])},
        preexec_fn=lambda: forbid_pidfds(error),  # noqa: PLW1509 (a filter cannot be set from outside)
    )


def alive(program: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == str(program):
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.fixture
def program(tmp_path: Path) -> Path:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    return file


def test_cluster_works_without_pidfds(program: Path) -> None:
    with run(program, errno.EPERM, str(program.with_name("held"))) as process:
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert float(output) < 5
    assert alive(program) == []
