"""Output whose reader is slow, stops reading, or goes away."""

from __future__ import annotations

import fcntl
import os
import re
import select
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from scaler.output import MAX_PENDING_BYTES, OutputStreams
from scaler.processes import PARENT_PID_VARIABLE

LINE = b"x" * 999 + b"\n"


@dataclass
class Pipe:
    """Replaces the stdout of this process."""

    reading: int
    writing: int
    output: OutputStreams

    def write(self, data: bytes) -> None:
        self.output.write(self.writing, data)

    def read_until(self, end: bytes) -> bytes:
        data = b""
        while not data.endswith(end):
            readable, _, _ = select.select([self.reading], [], [], 10)
            assert readable, data[-200:]
            data += os.read(self.reading, 1024 * 1024)
        return data


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    reading, writing = os.pipe()
    found = Pipe(reading, writing, OutputStreams({writing: "stdout"}))
    yield found
    os.close(reading)
    found.output.close()  # before the number is given to another file
    os.close(writing)


def test_output_is_read_completely_and_in_order(pipe: Pipe) -> None:
    wanted = b"".join(b"line %d\n" % number for number in range(200_000))
    pieces = [wanted[at : at + 10_000] for at in range(0, len(wanted), 10_000)] * 2

    def write() -> None:
        for piece in [*pieces, b"end"]:
            pipe.write(piece)

    writer = threading.Thread(target=write)
    writer.start()
    assert pipe.read_until(b"end") == wanted * 2 + b"end"
    writer.join()


def test_output_without_a_reader_is_dropped_and_counted(pipe: Pipe) -> None:
    room = MAX_PENDING_BYTES + fcntl.fcntl(pipe.writing, fcntl.F_GETPIPE_SZ)
    lines = 2 * room // len(LINE)
    for _ in range(lines):
        pipe.write(LINE)
    data = pipe.read_until(b" (stdout was not read)\n")
    kept, notice = data.count(LINE), data.splitlines()[-1].decode()
    found = re.fullmatch(r"scaler: output dropped: lines=(\d+) \(stdout was not read\)", notice)
    assert found
    assert kept + int(found[1]) == lines
    assert kept * len(LINE) >= MAX_PENDING_BYTES
    pipe.write(b"and on\n")
    assert pipe.read_until(b"\n") == b"and on\n"


def test_disconnected_reader_costs_nothing(pipe: Pipe) -> None:
    replaced, other = os.pipe()
    os.dup2(replaced, pipe.reading)
    os.close(replaced)
    os.close(other)
    for _ in range(3 * MAX_PENDING_BYTES // len(LINE)):
        pipe.write(LINE)
    pipe.output.close()
    pipe.write(LINE)


# -- a process and what it has started

PRINTING = """
import os, subprocess, sys
from scaler.output import OutputRelay
relay = OutputRelay()
os.write(1, b"before\\n")
with relay:
    line = b"x" * 999 + b"\\n"
    for _ in range(20):
        os.write(1, line * 1000)
    subprocess.run([sys.executable, "-c", "print('of a child')"], check=True)
    os.write(2, b"done\\n")
os.write(1, b"after\\n")
"""


def printing(environment: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", PRINTING],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={key: value for key, value in os.environ.items() if key != PARENT_PID_VARIABLE} | environment,
    )


def test_process_with_unread_stdout_continues_and_reports_drops() -> None:
    with printing({}) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stderr.readline() == b"done\n", "20 MB were written, and nothing was read"
        lines = process.stdout.read().splitlines()
    assert (process.returncode, lines[0]) == (0, b"before")
    assert b"after" in lines
    dropped = [int(found[1]) for line in lines if (found := re.search(rb"dropped: lines=(\d+) \(stdout", line))]
    assert 0 < sum(dropped) < 20_000
