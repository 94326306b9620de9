"""What the history on disk has: a record per minute, decisions, incidents and counted failures; and the form of a line.

A line has a checksum before its JSON, so that one that was torn by a crash or a full disk is skipped, and no other.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

MINUTE_SECONDS = 60
MAX_EVENTS = 200
"""Events of one minute; of more, only the number is kept."""
MAX_FAILURES = 50
"""Kinds of failures of one minute, by function and text."""
MAX_TEXT = 500
"""Characters of a text."""
FAILED = "failed"


class Figures(NamedTuple):
    """A sample. done, failed, cancelled: tasks since the start. cost: of the run so far. lag_seconds: the longest."""

    done: int
    failed: int
    cancelled: int
    living: int
    workers: int
    managers: int
    cost: float
    lag_seconds: float


class MinuteRow(NamedTuple):
    """One minute from `at` on. done, failed, cancelled, cost: in it. living: most tasks at once. seconds: covered."""

    at: float
    seconds: float
    done: int
    failed: int
    cancelled: int
    living: int
    workers: int
    managers: int
    cost: float
    lag_seconds: float


class EventRow(NamedTuple):
    """Something that happened. times: how often in its minute."""

    at: float
    kind: str
    subject: str
    text: str
    times: int = 1


Row = MinuteRow | EventRow


class Minutes:
    """Makes records of samples and events. Times are unix seconds."""

    def __init__(self, at: float, figures: Figures) -> None:
        self._begin(at, figures)

    def _begin(self, at: float, figures: Figures) -> None:
        self._began_at = at
        self._base = figures
        self._living = figures.living
        self._lag_seconds = 0.0
        self._events: list[EventRow] = []
        self._event_count = 0
        self._failures: Counter[tuple[str, str]] = Counter()
        self._other_failures = 0

    def event(self, at: float, kind: str, subject: str, text: str) -> None:
        self._event_count += 1
        if self._event_count <= MAX_EVENTS:
            self._events.append(EventRow(at, kind, subject[:MAX_TEXT], text[:MAX_TEXT]))

    def failure(self, function: str, text: str) -> None:
        kind = function[:MAX_TEXT], text[:MAX_TEXT]
        if kind in self._failures or len(self._failures) < MAX_FAILURES:
            self._failures[kind] += 1
        else:
            self._other_failures += 1

    def sample(self, at: float, figures: Figures, *, is_last: bool = False) -> list[Row]:
        """Take a sample, and return what is to be written: events at once, the minute when it is over."""
        self._living = max(self._living, figures.living)
        self._lag_seconds = max(self._lag_seconds, figures.lag_seconds)
        rows: list[Row] = [*self._events]
        self._events = []
        is_over = at // MINUTE_SECONDS != self._began_at // MINUTE_SECONDS
        if not (is_over or is_last):
            return rows
        began_at, base = self._began_at, self._base
        for (function, text), times in self._failures.items():
            rows.append(EventRow(began_at, FAILED, function, text, times))
        if self._other_failures:
            rows.append(EventRow(began_at, FAILED, "", "other failures", self._other_failures))
        if self._event_count > MAX_EVENTS:
            rows.append(EventRow(began_at, "skipped", "", "events beyond the limit", self._event_count - MAX_EVENTS))
        rows.append(
            MinuteRow(
                round(began_at, 3),
                round(max(0.0, at - began_at), 3),
                figures.done - base.done,
                figures.failed - base.failed,
                figures.cancelled - base.cancelled,
                self._living,
                figures.workers,
                figures.managers,
                round(figures.cost - base.cost, 6),
                round(self._lag_seconds, 6),
            )
        )
        self._begin(at, figures)
        return rows


def line_of(row: Row) -> bytes:
    text = json.dumps([type(row).__name__, *row]).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def rows_of(lines: Iterable[bytes]) -> Iterator[Row]:
    """Yield what the whole lines have; torn lines, and records of other versions with other columns, are left out."""
    for line in lines:
        checksum, _, text = line.rstrip(b"\n").partition(b" ")
        if checksum != b"%08x" % zlib.crc32(text):
            continue
        match json.loads(text):
            case ["MinuteRow", *values] if len(values) == len(MinuteRow._fields):
                yield MinuteRow._make(values)
            case ["EventRow", *values] if len(values) == len(EventRow._fields):
                yield EventRow._make(values)
            case _:
                pass
