"""Text and JSON lines of `scaler history`, one per record. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import datetime
from operator import attrgetter

from scaler.extensions.history.minutes import FAILED, Row, thinned
from scaler.grammar import counted
from scaler.monitor.history_rows import ClusterHistory, EventRow, FunctionTimesRow, PointRow
from scaler.texts import escaped

Shown = PointRow | EventRow | FunctionTimesRow


def shown(rows: Iterable[Row]) -> Iterator[Shown]:
    return (row if isinstance(row, EventRow | FunctionTimesRow) else thinned([row])[0] for row in rows)


def shown_of(history: ClusterHistory) -> list[Shown]:
    """Return a scheduler's answer ordered by time. Failures are placed at their last occurrence."""
    failures = [EventRow(row.last_at, FAILED, row.function, row.text, row.times) for row in history.failures]
    return sorted([*history.points, *history.events, *failures, *history.functions], key=attrgetter("at"))


def line(row: Shown, *, as_json: bool) -> str:
    if as_json:
        kind = {} if isinstance(row, EventRow) else {"kind": "minute" if isinstance(row, PointRow) else "function"}
        return json.dumps({**kind, **row._asdict()})
    at = datetime.fromtimestamp(row.at).astimezone().isoformat(" ", "seconds")
    match row:
        case PointRow():
            ended = f"{row.done:,} done, {row.failed:,} failed, {row.cancelled:,} cancelled in {row.seconds:.0f} s"
            slots = f"{row.running:,} of {counted(row.slots, 'slot')} busy; {row.queued:,} queued"
            peers = f"{counted(row.workers, 'worker')}, {counted(row.managers, 'manager')}"
            most = f"up to {row.living:,} at once; {slots}; {peers}; {row.memory_bytes / 2**20:,.0f} MiB"
            return f"{at} {ended}; {most}; cost {row.cost:g}; lag {row.lag_seconds:.3f} s"
        case FunctionTimesRow():
            ended = f"{row.ended:,} ended, {row.failed:,} failed in {row.seconds:.0f} s"
            times = f"p50 {row.p50_seconds:g} s; p95 {row.p95_seconds:g} s"
            return f"{at} function {escaped(row.function)}: {ended}; {times}"
        case EventRow():
            times = f" ({row.times:,} x)" if row.times > 1 else ""
            subject = f" {escaped(row.subject)}" if row.subject else ""
            texts = "; ".join(map(escaped, row.text.splitlines()))
            return f"{at} {row.kind}{subject}{': ' if texts else ''}{texts}{times}"
