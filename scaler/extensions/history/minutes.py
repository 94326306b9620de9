"""Records of the history (minutes, events, function times), their line format on disk, chart points, and the comparison
of function times with the previous day. Pure.

Each line starts with a checksum of its JSON, by which readers detect and skip torn lines."""

from __future__ import annotations

import json
import zlib
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from heapq import nlargest
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from scaler.monitor.history_rows import EventRow, FunctionTimesRow, PointRow
from scaler.monitor.reports.status import by_name, quantiles
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.state import Function, Timing
from scaler.texts import pattern

MINUTE_SECONDS = 60
MAX_EVENTS = 200
"""Maximum number of events kept per minute. Further events are only counted."""
MAX_FAILURES = 50
"""Maximum kinds of failures per minute, distinguished by function and by text without numbers."""
MAX_TEXT = 500
MAX_POINTS = 1_500
FAILED, SCALING, SKIPPED, STARTED, ENDED = "failed", "scaling", "skipped", "started", "ended"
SCHEDULER = "scheduler"
"""Subject of run starts and ends."""


class MinuteRow(NamedTuple):
    """One minute, starting at `at`. done, failed, cancelled, cost: in that minute. Other figures: maximum. running:
    busy slots. queued: tasks not assigned to a worker. memory_bytes: of scheduler and workers. In a sample, `at` and
    `seconds` are 0, the next four fields count from the start of the run, and lag_seconds is a maximum."""

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
    slots: int = 0
    running: int = 0
    queued: int = 0
    memory_bytes: int = 0


Row = MinuteRow | EventRow | FunctionTimesRow
_KINDS: dict[str, type[MinuteRow | EventRow]] = {kind.__name__: kind for kind in (MinuteRow, EventRow)}
_CHECKSUM_BYTES = 9
"""Includes the separating blank."""


class Minutes:
    """Builds the records of successive minutes from samples."""

    def __init__(self, at: float, figures: MinuteRow) -> None:
        self._begin(at, figures)

    def _begin(self, at: float, figures: MinuteRow) -> None:
        self._began_at = at
        self._base = self._highest = figures._replace(lag_seconds=0.0)
        self._events: list[EventRow] = []
        self._event_count = 0
        self._failures: dict[tuple[str, str], tuple[str, int]] = {}
        """Text and number of failed tasks, by function and text pattern."""
        self._other_failures = 0

    def event(self, at: float, kind: str, subject: str, text: str) -> None:
        self._event_count += 1
        if self._event_count <= MAX_EVENTS:
            self._events.append(EventRow(at, kind, subject[:MAX_TEXT], text[:MAX_TEXT]))

    def failure(self, function: str, text: str) -> None:
        text = text[:MAX_TEXT]
        kind = function[:MAX_TEXT], pattern(text)
        known, times = self._failures.get(kind, (text, 0))
        if times or len(self._failures) < MAX_FAILURES:
            self._failures[kind] = text if text == known else kind[1], times + 1
        else:
            self._other_failures += 1

    def sample(self, at: float, figures: MinuteRow, *, is_last: bool = False) -> list[Row]:
        """Take a sample and return the records to write: new events, and the minute once it is over."""
        self._highest = MinuteRow._make(map(max, self._highest, figures))
        rows: list[Row] = [*self._events]
        self._events = []
        is_over = at // MINUTE_SECONDS != self._began_at // MINUTE_SECONDS
        if is_over or is_last:
            rows += self.present(at, figures)
            self._begin(at, figures)
        return rows

    def present(self, at: float, figures: MinuteRow) -> list[Row]:
        """Return the records of the unfinished minute and the unwritten events."""
        began_at, base = self._began_at, self._base
        highest = MinuteRow._make(map(max, self._highest, figures))
        rows: list[Row] = [*self._events]
        for (function, _), (text, times) in self._failures.items():
            rows.append(EventRow(began_at, FAILED, function, text, times))
        if self._other_failures:
            rows.append(EventRow(began_at, FAILED, "", "other failures", self._other_failures))
        if self._event_count > MAX_EVENTS:
            rows.append(EventRow(began_at, SKIPPED, "", "events beyond the limit", self._event_count - MAX_EVENTS))
        rows.append(
            highest._replace(
                at=round(began_at, 3),
                seconds=round(max(0.0, at - began_at), 3),
                done=figures.done - base.done,
                failed=figures.failed - base.failed,
                cancelled=figures.cancelled - base.cancelled,
                cost=round(figures.cost - base.cost, 6),
                lag_seconds=round(highest.lag_seconds, 6),
            )
        )
        return rows


def lines_of(rows: Iterable[Row]) -> Iterator[bytes]:
    """Yield the lines of records. The functions of an interval share one line, which parses much faster."""
    for interval, group in groupby(rows, lambda row: row[:2] if isinstance(row, FunctionTimesRow) else None):
        if interval is not None:
            yield _checked([FunctionTimesRow.__name__, *interval, *(row[2:] for row in group)])
        else:
            yield from (_checked([type(row).__name__, *row]) for row in group)


def _checked(values: list[object]) -> bytes:
    text = json.dumps(values).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def lines_with(lines: Iterable[bytes], kinds: Iterable[str]) -> Iterator[bytes]:
    beginnings = tuple(f'["{kind}"'.encode() for kind in kinds)
    return (line for line in lines if line.startswith(beginnings, _CHECKSUM_BYTES))


def rows_of(lines: Iterable[bytes]) -> Iterator[Row]:
    """Yield the records of intact lines. Skips torn lines and records of versions with other columns."""
    for line in lines:
        checksum, _, text = line.rstrip(b"\n").partition(b" ")
        if checksum != b"%08x" % zlib.crc32(text):
            continue
        match json.loads(text):
            case [str(name), *values] if name in _KINDS:
                with suppress(TypeError):  # minutes of earlier versions lack only columns that have a default
                    yield _KINDS[name](*values)
            case ["FunctionTimesRow", at, seconds, *functions]:
                with suppress(TypeError):
                    yield from [FunctionTimesRow(at, seconds, *values) for values in functions]


def within(rows: Iterable[Row], since: float, until: float) -> Iterator[Row]:
    return (row for row in rows if row.at < until and row.at + getattr(row, "seconds", 0.0) >= since)


def thinned(rows: Sequence[MinuteRow], most: int = MAX_POINTS) -> list[PointRow]:
    """Condense minutes to points. Preserves sums, maxima, minima, and gaps between runs that last at least one
    point."""
    ordered = sorted(rows, key=attrgetter("at"))
    groups = [[row] for row in ordered]
    width = 0.0
    while len(groups) > most:
        span = ordered[-1].at + ordered[-1].seconds - ordered[0].at
        width = 2 * width or max(2.0 * MINUTE_SECONDS, span / most)
        groups = list(_grouped(ordered, width))
    return [*map(_point, groups)]


def _grouped(rows: Sequence[MinuteRow], width: float) -> Iterator[list[MinuteRow]]:
    """Group minutes by time slots of `width` seconds. A longer gap also ends a group."""
    group = [rows[0]]
    for row in rows[1:]:
        last = group[-1]
        if row.at // width == group[0].at // width and row.at - (last.at + last.seconds) <= width:
            group.append(row)
        else:
            yield group
            group = [row]
    yield group


def _point(rows: Sequence[MinuteRow]) -> PointRow:
    most, least = (MinuteRow(*map(pick, *rows, rows[0]))._asdict() for pick in (max, min))
    lowest = {f"{name}_least": least[name] for name in ("queued", "running", "slots", "workers", "memory_bytes")}
    rates = [round((row.done + row.failed + row.cancelled) / _seconds(row), 3) for row in rows]
    return PointRow(**most, **lowest)._replace(
        at=rows[0].at,
        seconds=round(max(row.at + row.seconds for row in rows) - rows[0].at, 3),
        done=sum(row.done for row in rows),
        failed=sum(row.failed for row in rows),
        cancelled=sum(row.cancelled for row in rows),
        cost=round(sum(row.cost for row in rows), 6),
        tasks_per_second=max(rates),
        tasks_per_second_least=min(rates),
        failed_per_second=max(round(row.failed / _seconds(row), 3) for row in rows),
    )


def _seconds(row: MinuteRow) -> float:
    return max(row.seconds, 1.0)  # a run shorter than a second has no rate


Document = tuple[list[list[Any]], dict[str, float]]
INTERVAL_SECONDS = 300
MAX_FUNCTIONS = 32
"""Maximum number of functions per interval: those with the most task time."""
DAY_SECONDS = 86_400.0
NEAR_SECONDS = 3 * 3600.0
"""Tolerance (seconds) of "a day earlier"."""


class _Counted(NamedTuple):
    ended: int = 0
    failed: int = 0
    wall_us: int = 0
    timings: Collection[Timing] = ()


_NOTHING = _Counted()


class FunctionTimes:
    """Builds the function records of successive intervals. Times are unix seconds."""

    def __init__(self, at: float, state: ClusterState) -> None:
        self._state = state
        self._begin(at, dict(_counted(state)))

    def _begin(self, at: float, present: dict[str, _Counted]) -> None:
        self._began_at, self._before = at, present
        timings = dict.fromkeys(timing for counted in present.values() for timing in counted.timings)
        self._histograms = {timing: (list(timing.counts), list(timing.sums_us), timing.halved) for timing in timings}
        """Timings at the start of the interval: counts, sums, and the number of halvings."""

    def take(self, at: float, *, is_last: bool = False) -> list[FunctionTimesRow]:
        if at // INTERVAL_SECONDS == self._began_at // INTERVAL_SECONDS and not is_last:
            return []
        present = dict(_counted(self._state))
        rows = self._rows(present, at)
        self._begin(at, present)
        return rows

    def present(self, at: float) -> list[FunctionTimesRow]:
        return self._rows(dict(_counted(self._state)), at)

    def _rows(self, present: Mapping[str, _Counted], at: float) -> list[FunctionTimesRow]:
        known = ((name, now, self._before.get(name, _NOTHING)) for name, now in present.items())
        news = (each for each in known if each[1].ended > each[2].ended)
        longest = nlargest(MAX_FUNCTIONS, news, key=lambda each: each[1].wall_us - each[2].wall_us)
        return [self._row(*each, at) for each in longest]

    def _row(self, name: str, now: _Counted, before: _Counted, at: float) -> FunctionTimesRow:
        counts = [_since(self._histograms.get(timing), timing) for timing in now.timings]
        if any(timing.has_chunks for timing in now.timings):  # durations of chunks are not durations of calls
            counts = []
        p50, p95 = (round(seconds, 6) for seconds in quantiles(counts, (0.5, 0.95))) if counts else (0.0, 0.0)
        return FunctionTimesRow(
            at=round(self._began_at, 3),
            seconds=round(max(0.0, at - self._began_at), 3),
            function=name[:MAX_TEXT],
            ended=now.ended - before.ended,
            failed=max(0, now.failed - before.failed),
            p50_seconds=p50,
            p95_seconds=p95,
        )


def _counted(state: ClusterState) -> Iterator[tuple[str, _Counted]]:
    live: Counter[str] = Counter()
    records: dict[Function, None] = {}
    for client in state.all_clients():
        for group in client.groups.values():
            live[group.function.name] += group.live + group.more
            records[group.function] = None
    for total in by_name([*records, *state.functions.values()]):
        ended = total.submitted + total.more - live[total.name]
        yield total.name, _Counted(ended, total.failed, total.wall_us, total.timings)


def _since(before: tuple[list[float], list[float], int] | None, timing: Timing) -> tuple[list[float], list[float]]:
    """Return the counts and sums added since `before`, corrected for halvings in between."""
    if before is None:
        return timing.counts, timing.sums_us
    counts, sums_us, halved = before
    share = 0.5 ** (timing.halved - halved)
    return _less(timing.counts, counts, share), _less(timing.sums_us, sums_us, share)


def _less(present: list[float], earlier: list[float], share: float) -> list[float]:
    return [max(0.0, now - share * old) for now, old in zip(present, earlier, strict=True)]


def typical(values: Iterable[tuple[float, int]]) -> float | None:
    known = sorted((value, weight) for value, weight in values if value > 0 and weight > 0)
    half, total = sum(weight for _, weight in known) / 2, 0
    for value, weight in known:
        total += weight
        if total >= half:
            return value
    return None


class Before:
    """Median durations by function about a day earlier, or in the function's last earlier run."""

    def __init__(self) -> None:
        self._rows: deque[FunctionTimesRow] = deque()
        """Records of slightly more than the last day, ordered by time."""
        self._last_run: dict[str, float] = {}

    def load(self, rows: Iterable[Row]) -> None:
        """Load the records of earlier runs, in order. Call once, before the first `add`."""
        by_run: defaultdict[tuple[str, int], list[FunctionTimesRow]] = defaultdict(list)
        run = 0
        for row in rows:
            if isinstance(row, EventRow) and row.kind == STARTED:
                run += 1
            elif isinstance(row, FunctionTimesRow):
                self._rows.append(row)
                by_run[row.function, run].append(row)
        found = {name: _median(rows) for (name, _), rows in by_run.items()}  # the last run of a function wins
        self._last_run = {name: seconds for name, seconds in found.items() if seconds is not None}

    def document(self, at: float) -> Document:
        self._forget(at)
        return [[*row] for row in self._rows], self._last_run

    def restore(self, document: Document) -> None:
        """Restore records that another instance loaded. Works before and after the first `add`."""
        rows, self._last_run = document
        self._rows.extendleft(FunctionTimesRow._make(row) for row in reversed(rows))

    def add(self, rows: Iterable[FunctionTimesRow]) -> None:
        self._rows.extend(rows)

    def p50(self, at: float) -> Mapping[str, float]:
        """Return the known median durations (seconds) by function. Drops expired records."""
        self._forget(at)
        near: defaultdict[str, list[FunctionTimesRow]] = defaultdict(list)
        for row in self._rows:
            if row.at > at - DAY_SECONDS + NEAR_SECONDS:
                break
            near[row.function].append(row)
        found = {name: _median(rows) for name, rows in near.items()}
        return {**self._last_run, **{name: seconds for name, seconds in found.items() if seconds is not None}}

    def _forget(self, at: float) -> None:
        while self._rows and self._rows[0].at + self._rows[0].seconds < at - DAY_SECONDS - NEAR_SECONDS:
            self._rows.popleft()


def _median(rows: Collection[FunctionTimesRow]) -> float | None:
    return typical((row.p50_seconds, row.ended) for row in rows)
