"""The fenced code blocks of a page, and how to run each kind."""

from __future__ import annotations

import json
import os
import re
import select
import shlex
import subprocess
import sysconfig
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from scaler.cluster.supervisor import ReservedPorts

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(sysconfig.get_path("scripts"))
READY_SECONDS = 30.0
STOP_SECONDS = 15.0

_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"  # (.+)$")
_PORT = re.compile(r"\b851[678]\b")


@dataclass(frozen=True)
class Block:
    page: str
    number: int
    language: str
    text: str

    @property
    def name(self) -> str:
        return f"{self.page}-{self.number}"


def blocks_of(page: str) -> list[Block]:
    """Return the blocks of a page (its path in the project), in order."""
    text = (ROOT / page).read_text()
    found = _FENCE.findall(text)
    assert 2 * len(found) == text.count("```"), f"{page} has a code block without a language or without an end"
    return [Block(page, number, language, text) for number, (language, text) in enumerate(found, 1)]


def commands_of(block: Block) -> list[list[str]]:
    return [shlex.split(line) for line in block.text.splitlines() if line.strip()]


def is_service(command: list[str]) -> bool:
    """Return whether a command runs until stopped."""
    return command[0].startswith("scaler")


def promised_output(block: Block) -> list[str]:
    """Return the comments of the print calls in a Python block."""
    lines = (line for line in block.text.splitlines() if "print(" in line)
    return [found[1].strip() for line in lines if (found := _COMMENT.search(line))]


class Services:
    """The services that a page starts, in a directory with the page's files.

    They listen on free ports in place of 8516 to 8518, which `make demo` uses.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._stack = ExitStack()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._ports = ReservedPorts(3)
        self._stack.callback(self._ports.release)
        (directory / "config").mkdir()
        for path in (ROOT / "config").glob("*.toml"):
            (directory / "config" / path.name).write_text(self.with_ports(path.read_text()))

    def with_ports(self, text: str) -> str:
        """Return a text of a page with the ports of these services."""
        return _PORT.sub(lambda found: str(self._ports.first + int(found[0]) - 8516), text)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, raised: object, *_: object) -> None:
        for process in reversed(self._processes):
            process.terminate()
        codes = [process.wait(STOP_SECONDS) for process in self._processes]
        self._stack.close()
        assert raised or not any(codes), f"services ended with {codes}"

    def save(self, block: Block) -> None:
        """Write a file of the page, named by the comment in its first line."""
        name = block.text.splitlines()[0].removeprefix("# ")
        (self._directory / name).write_text(self.with_ports(block.text))

    def start(self, command: list[str]) -> None:
        """Start a service and wait until it is ready."""
        ready, said_by_service = os.pipe()
        process = subprocess.Popen(
            [SCRIPTS / command[0], *map(self.with_ports, command[1:])],
            cwd=self._directory,
            env={**os.environ, "SCALER_READY_FD": str(said_by_service), "SCALER_PARENT_PID": str(os.getpid())},
            pass_fds=[said_by_service],
        )
        self._processes.append(process)
        self._stack.callback(os.close, ready)
        os.close(said_by_service)
        readable, _, _ = select.select([ready], [], [], READY_SECONDS)
        assert readable, f"{shlex.join(command)} was not ready in time"
        line = os.read(ready, 65536)
        assert line, f"{shlex.join(command)} ended with {process.wait(STOP_SECONDS)}"
        json.loads(line)
