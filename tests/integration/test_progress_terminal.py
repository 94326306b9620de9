"""A progress bar in a real terminal interrupted by Ctrl-C: the remaining screen content."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from scaler import SchedulerClusterCombo

WAIT_SECONDS = 20.0
CTRL_C = b"\x03"
COUNTED = r" [1-9]\d*/100000 \["
"""Some items of the bar have ended."""

PROGRAM = """
import fcntl, sys, termios, time
from scaler import Client

fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # from now on Ctrl-C in it comes here

def slow(item):
    time.sleep(0.02)  # the bar moves while items take their time
    return item

def run(client):
    {call}

with Client(sys.argv[1]) as client:
    try:
        run(client)
    except KeyboardInterrupt:
        print("interrupted")
        {then}
    print(client.submit(abs, -7).result())
"""
CALLS = {
    "map": "client.map(slow, range(100_000), chunk_size=1, progress=True)",
    "imap": "list(client.imap(slow, range(100_000), chunk_size=1, progress=True))",
}


class Terminal:
    """A program in a separate terminal, and its output so far."""

    def __init__(self, program: Path, address: str) -> None:
        self.master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (24, 80))
        self.process = subprocess.Popen(
            [sys.executable, str(program), address], stdin=slave, stdout=slave, stderr=slave, start_new_session=True
        )
        self.settings = termios.tcgetattr(slave)
        self._slave = slave
        self.written = ""

    def read_until(self, pattern: str) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not re.search(pattern, self.written):
            assert select.select([self.master], [], [], deadline - time.monotonic())[0], self.written
            self._read()

    def press(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def end(self) -> int:
        """Return the exit code once all output has been read."""
        code = self.process.wait(WAIT_SECONDS)
        os.set_blocking(self.master, False)
        while self._read():
            pass
        return code

    def is_as_before(self) -> bool:
        """Return whether the terminal has its original settings."""
        return termios.tcgetattr(self._slave) == self.settings

    def screen(self) -> list[str]:
        """Return the visible lines, after overwriting."""
        return [line.rpartition("\r")[2] for line in self.written.replace("\r\n", "\n").split("\n")]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self._slave)

    def _read(self) -> bool:
        try:
            data = os.read(self.master, 65536)
        except BlockingIOError:
            return False
        self.written += data.decode()
        return bool(data)


@contextmanager
def terminal(directory: Path, call: str, address: str, then: str) -> Iterator[Terminal]:
    program = directory / "program.py"
    program.write_text(PROGRAM.format(call=CALLS[call], then=then))
    running = Terminal(program, address)
    try:
        yield running
    finally:
        running.close()


@pytest.mark.parametrize("call", CALLS)
def test_ctrl_c_leaves_one_bar_line_and_the_client_continues(
    call: str, cluster: SchedulerClusterCombo, tmp_path: Path
) -> None:
    with terminal(tmp_path, call, cluster.get_address(), "pass") as screen:
        screen.read_until(COUNTED)
        screen.press(CTRL_C)
        assert screen.end() == 0
        bar, *after = [line for line in screen.screen() if line]
        assert bar.startswith("slow: ")
        assert "/100000 [" in bar
        assert after == ["interrupted", "7"]
        assert screen.is_as_before()


def test_uncaught_ctrl_c_ends_the_program_with_one_traceback(cluster: SchedulerClusterCombo, tmp_path: Path) -> None:
    with terminal(tmp_path, "map", cluster.get_address(), "raise") as screen:
        screen.read_until(COUNTED)
        screen.press(CTRL_C)
        assert screen.end() == -2
        assert screen.written.count("Traceback") == 1
        assert screen.screen()[-2:] == ["KeyboardInterrupt", ""]
        assert screen.is_as_before()
