"""Task durations by function and interval, compared with about a day earlier. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from heapq import nlargest
from typing import Any, NamedTuple

from scaler.extensions.history.minutes import MAX_TEXT, STARTED, Row
from scaler.protocol.history_rows import EventRow, FunctionTimesRow
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.durations import Timing
from scaler.scheduler.core.state import Function
from scaler.scheduler.quantiles import quantiles
from scaler.scheduler.status import by_name

Document = tuple[list[list[Any]], dict[str, float]]
INTERVAL_SECONDS = 300
MAX_FUNCTIONS = 32
"""Functions per interval, by total task time."""
DAY_SECONDS = 86_400.0
NEAR_SECONDS = 3 * 3600.0
"""Tolerance of "a day earlier"."""


class _Counted(NamedTuple):
    ended: int = 0
    failed: int = 0
    wall_us: int = 0
    timings: Collection[Timing] = ()


_NOTHING = _Counted()


class FunctionTimes:
    """Makes the function records of successive intervals. Times are unix seconds."""

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
    """Median durations by function about a day earlier, or in the last previous run of the function."""

    def __init__(self) -> None:
        self._rows: deque[FunctionTimesRow] = deque()
        """Records of slightly more than the last day, ordered by time."""
        self._last_run: dict[str, float] = {}

    def load(self, rows: Iterable[Row]) -> None:
        """Load the records of earlier runs, in order. Call once, before the first `add`."""
        by_run: dict[str, list[FunctionTimesRow]] = defaultdict(list)
        run_of: dict[str, int] = {}
        run = 0
        for row in rows:
            if isinstance(row, EventRow) and row.kind == STARTED:
                run += 1
            elif isinstance(row, FunctionTimesRow):
                self._rows.append(row)
                if run_of.get(row.function) != run:
                    by_run[row.function] = []
                    run_of[row.function] = run
                by_run[row.function].append(row)
        self._last_run = {name: found for name, rows in by_run.items() if (found := _median(rows)) is not None}

    def document(self, at: float) -> Document:
        self._forget(at)
        return [[*row] for row in self._rows], self._last_run

    def restore(self, document: Document) -> None:
        """Restore what another instance loaded. Works before and after the first `add`."""
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
