"""The answer to FindHistory: what is known of a time, within the size of a message. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from heapq import nsmallest
from operator import attrgetter

from scaler.protocol.history_rows import EventRow, FunctionTimesRow, PointRow
from scaler.protocol.messages import MAX_CONTROL_BYTES
from scaler.protocol.monitor_rows import FailureRow
from scaler.scheduler.function_times import typical
from scaler.scheduler.history import ENDED, FAILED, SCALING, SKIPPED, STARTED, MinuteRow, Row
from scaler.scheduler.history_points import MAX_POINTS, thinned
from scaler.scheduler.status import table
from scaler.texts import pattern

MAX_ANSWERED_EVENTS = 500
MAX_ANSWERED_FAILURES = 100
"""Kinds of failures, those of the most tasks."""
MAX_ANSWERED_FUNCTIONS = 100
MAX_ANSWERED_TEXT = 300
"""Characters of a text."""
POINTS_BYTES = 480 * 1024
EVENTS_BYTES = 256 * 1024
FAILURES_BYTES = 96 * 1024
FUNCTIONS_BYTES = 64 * 1024
_FIRST, _LAST = (STARTED, ENDED, SCALING), ("joined", "left", SKIPPED)
"""Events that are kept first and last when there are too many; incidents come between."""


def answer(rows: Iterable[Row], since: float, until: float, oldest: float) -> bytes:
    """Return the document of HistoryFound, with the records of this time. oldest: the first time with any record."""
    minutes: list[MinuteRow] = []
    events: list[EventRow] = []
    failed: defaultdict[tuple[str, str], list[EventRow]] = defaultdict(list)
    functions: defaultdict[str, list[FunctionTimesRow]] = defaultdict(list)
    for row in rows:
        match row:
            case MinuteRow():
                minutes.append(row)
            case FunctionTimesRow():
                functions[row.function].append(row)
            case EventRow(kind=kind) if kind == FAILED:
                failed[row.subject, pattern(row.text)].append(row)
            case EventRow():
                events.append(row)
    kept = sorted(nsmallest(MAX_ANSWERED_EVENTS, events, key=_rank), key=attrgetter("at"))
    worst = sorted(map(_failure, failed.values()), key=attrgetter("times"), reverse=True)[:MAX_ANSWERED_FAILURES]
    slowest = sorted(map(_times, functions.values()), key=_total_seconds, reverse=True)[:MAX_ANSWERED_FUNCTIONS]
    tables = {
        "points": _points(minutes),
        "events": table(EventRow._fields, map(_cut, kept), EVENTS_BYTES),
        "failures": table(FailureRow._fields, worst, FAILURES_BYTES),
        "functions": table(FunctionTimesRow._fields, slowest, FUNCTIONS_BYTES),
    }
    head = f'"since": {since!r}, "until": {until!r}, "oldest": {oldest!r}, "left_out": {len(events) - len(kept)}'
    parts = "".join(f', "{name}": {text}' for name, text in tables.items())
    return f"{{{head}{parts}}}".encode()


def _points(minutes: list[MinuteRow]) -> str:
    """Return the table of the points: fewer where numbers of many digits make it too large."""
    most = MAX_POINTS
    while len(text := table(PointRow._fields, thinned(minutes, most), MAX_CONTROL_BYTES)) > POINTS_BYTES:
        most //= 2
    return text


def _rank(event: EventRow) -> tuple[int, float]:
    return (0 if event.kind in _FIRST else 2 if event.kind in _LAST else 1), -event.at


def _cut(event: EventRow) -> EventRow:
    return event._replace(subject=event.subject[:MAX_ANSWERED_TEXT], text=event.text[:MAX_ANSWERED_TEXT])


def _failure(rows: list[EventRow]) -> FailureRow:
    first = rows[0]
    text = first.text if all(row.text == first.text for row in rows) else pattern(first.text)
    return FailureRow(
        times=sum(row.times for row in rows),
        text=text[:MAX_ANSWERED_TEXT],
        function=first.subject[:MAX_ANSWERED_TEXT],
        first_at=min(row.at for row in rows),
        last_at=max(row.at for row in rows),
    )


def _times(rows: list[FunctionTimesRow]) -> FunctionTimesRow:
    """Return the row of one function: the typical times, weighted by tasks."""
    at, end = min(row.at for row in rows), max(row.at + row.seconds for row in rows)
    return FunctionTimesRow(
        at=at,
        seconds=round(end - at, 3),
        function=rows[0].function[:MAX_ANSWERED_TEXT],
        ended=sum(row.ended for row in rows),
        failed=sum(row.failed for row in rows),
        p50_seconds=typical((row.p50_seconds, row.ended) for row in rows) or 0.0,
        p95_seconds=typical((row.p95_seconds, row.ended) for row in rows) or 0.0,
    )


def _total_seconds(row: FunctionTimesRow) -> tuple[float, int]:
    return row.p50_seconds * row.ended, row.ended
