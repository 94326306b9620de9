"""The history of a chaos run: one line per event, appended to files shared by several processes.

Each line is one write to a file opened with O_APPEND, so lines from different processes never mix, and a killed
process leaves only complete lines. Times are CLOCK_MONOTONIC, which all processes on a host share and which clock
changes do not affect.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Event:
    at: float


@dataclass(frozen=True, slots=True)
class TaskEvent(Event):
    task: str


@dataclass(frozen=True, slots=True)
class ClientEvent(Event):
    client: str


@dataclass(frozen=True, slots=True)
class AttemptEvent(TaskEvent):
    """Written by the task itself. by: its process and the process's start time, which identify this attempt."""

    by: str


@dataclass(frozen=True, slots=True)
class Submitted(TaskEvent):
    """A client created a future. expects: text of its correct outcome, from `shown`. inputs: tasks whose values this
    task needs.
    """

    client: str
    retries: int
    expects: str
    inputs: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Started(AttemptEvent):
    """The task started."""


@dataclass(frozen=True, slots=True)
class Ended(AttemptEvent):
    """The task returns."""


@dataclass(frozen=True, slots=True)
class Delivered(TaskEvent):
    """A future ended. error: name of the exception's type, empty for a value. text: value or message."""

    error: str
    text: str


@dataclass(frozen=True, slots=True)
class Cancelled(TaskEvent):
    """`cancel` returned. said: its return value."""

    said: bool


@dataclass(frozen=True, slots=True)
class CallFailed(ClientEvent):
    """A call without a future raised, such as `send_object`."""

    call: str
    error: str


@dataclass(frozen=True, slots=True)
class ClientGone(ClientEvent):
    """A client was killed or disconnected on purpose: its unfinished futures are excused."""

    why: str


@dataclass(frozen=True, slots=True)
class Struck(Event):
    """The fault script performed a fault."""

    fault: str
    target: str


Line = Submitted | Started | Ended | Delivered | Cancelled | CallFailed | ClientGone | Struck
_KINDS: dict[str, type[Line]] = {
    kind.__name__: kind for kind in (Submitted, Started, Ended, Delivered, Cancelled, CallFailed, ClientGone, Struck)
}
SUFFIX = ".history"


class History:
    """Appends lines to a file in a directory."""

    def __init__(self, directory: Path | str, name: str) -> None:
        self._file = os.open(
            Path(directory, name + SUFFIX), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600
        )

    def add(self, line: Line) -> None:
        text = json.dumps([type(line).__name__, asdict(line)]) + "\n"
        os.write(self._file, text.encode())

    def close(self) -> None:
        os.close(self._file)


def read(directory: Path | str) -> list[Line]:
    """Return the lines of all files in the directory, ordered by time."""
    lines: list[Line] = []
    for path in Path(directory).glob("*" + SUFFIX):
        with path.open() as file:
            lines += _lines(file)
    return sorted(lines, key=lambda line: line.at)


def _lines(texts: Iterable[str]) -> Iterable[Line]:
    for text in texts:
        kind, fields = json.loads(text)
        yield _KINDS[kind](**fields)


def now() -> float:
    """Return the current time for a line."""
    return time.monotonic()
