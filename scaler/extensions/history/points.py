"""Condenses minutes to the points of a chart. Pure.

Invariants: preserves sums, maxima, minima, and gaps between runs that are not shorter than a point.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter

from scaler.extensions.history.minutes import MINUTE_SECONDS, MinuteRow
from scaler.protocol.history_rows import PointRow

MAX_POINTS = 1_500


def thinned(rows: Sequence[MinuteRow], most: int = MAX_POINTS) -> list[PointRow]:
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
    return max(row.seconds, 1.0)  # a run of less than a second has no rate
