"""Builds the answer to FindHistory within the size limit of a message. Pure."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from heapq import nlargest, nsmallest
from operator import attrgetter

from scaler.extensions.history import minutes as records
from scaler.monitor.cluster_rows import FailureRow
from scaler.monitor.history_rows import EventRow, FunctionTimesRow, PointRow
from scaler.protocol.messages import MAX_CONTROL_BYTES
from scaler.scheduler.tables import table
from scaler.texts import pattern

MAX_ANSWERED_EVENTS = 500
MAX_ANSWERED_FAILURES = 100
"""Maximum number of kinds of failures; those with the most tasks are kept."""
MAX_ANSWERED_FUNCTIONS = 100
MAX_ANSWERED_TEXT = 300
POINTS_BYTES = 480 * 1024
EVENTS_BYTES = 256 * 1024
FAILURES_BYTES = 96 * 1024
FUNCTIONS_BYTES = 64 * 1024
_FIRST, _LAST = (records.STARTED, records.ENDED, records.SCALING), ("joined", "left", records.SKIPPED)
"""Events to keep if there are too many, in order of preference: _FIRST, incidents, _LAST."""


def answer(rows: Iterable[records.Row], since: float, until: float, oldest: float) -> bytes:
    """Return the HistoryFound document with the records of a time range. oldest: time of the first record overall."""
    minutes: list[records.MinuteRow] = []
    events: list[EventRow] = []
    failed: dict[tuple[str, str], FailureRow] = {}
    functions: defaultdict[str, _Times] = defaultdict(_Times)
    for row in rows:
        match row:
            case records.MinuteRow():
                minutes.append(row)
            case FunctionTimesRow():
                functions[row.function].add(row)
            case EventRow(kind=kind) if kind == records.FAILED:
                group = row.subject, pattern(row.text)
                text, function = row.text[:MAX_ANSWERED_TEXT], row.subject[:MAX_ANSWERED_TEXT]
                failure = FailureRow("", row.times, text, function, row.at, row.at)
                failed[group] = failed[group].joined(failure) if group in failed else failure
            case EventRow():
                events.append(row)
    kept = sorted(nsmallest(MAX_ANSWERED_EVENTS, events, key=_rank), key=attrgetter("at"))
    most = MAX_ANSWERED_TEXT
    shown = (event._replace(subject=event.subject[:most], text=event.text[:most]) for event in kept)
    worst = nlargest(MAX_ANSWERED_FAILURES, failed.values(), key=attrgetter("times"))
    times = (found.row(name) for name, found in functions.items())
    slowest = nlargest(MAX_ANSWERED_FUNCTIONS, times, key=lambda row: (row.p50_seconds * row.ended, row.ended))
    tables = {
        "points": _points(minutes),
        "events": table(EventRow._fields, shown, EVENTS_BYTES),
        "failures": table(FailureRow._fields, worst, FAILURES_BYTES),
        "functions": table(FunctionTimesRow._fields, slowest, FUNCTIONS_BYTES),
    }
    head = f'"since": {since!r}, "until": {until!r}, "oldest": {oldest!r}, "left_out": {len(events) - len(kept)}'
    parts = "".join(f', "{name}": {text}' for name, text in tables.items())
    return f"{{{head}{parts}}}".encode()


def _points(minutes: list[records.MinuteRow]) -> str:
    most = records.MAX_POINTS
    while len(text := table(PointRow._fields, records.thinned(minutes, most), MAX_CONTROL_BYTES)) > POINTS_BYTES:
        most //= 2
    return text


def _rank(event: EventRow) -> tuple[int, float]:
    return (0 if event.kind in _FIRST else 2 if event.kind in _LAST else 1), -event.at


class _Times:
    def __init__(self) -> None:
        self._at, self._end = math.inf, -math.inf
        self._ended = self._failed = 0
        self._p50: Counter[float] = Counter()
        """Number of tasks by the median duration (three digits) of their interval."""
        self._p95: Counter[float] = Counter()

    def add(self, row: FunctionTimesRow) -> None:
        self._at, self._end = min(self._at, row.at), max(self._end, row.at + row.seconds)
        self._ended += row.ended
        self._failed += row.failed
        self._p50[float(f"{row.p50_seconds:.3g}")] += row.ended
        self._p95[float(f"{row.p95_seconds:.3g}")] += row.ended

    def row(self, function: str) -> FunctionTimesRow:
        return FunctionTimesRow(
            at=self._at,
            seconds=round(self._end - self._at, 3),
            function=function[:MAX_ANSWERED_TEXT],
            ended=self._ended,
            failed=self._failed,
            p50_seconds=records.typical(self._p50.items()) or 0.0,
            p95_seconds=records.typical(self._p95.items()) or 0.0,
        )
