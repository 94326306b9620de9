"""The history of a fake cluster, as its scheduler would have recorded it, deterministic in every run."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from scaler.extensions.history.answer import answer
from scaler.extensions.history.minutes import MinuteRow, Row, within
from scaler.monitor.history_rows import ClusterHistory, EventRow, FunctionTimesRow
from scaler.monitor.rows import decode

GIB = 1024**3
HOUR = 3_600.0
GAP_HOURS = (5.0, 4.0)
"""Start and end of the scheduler's downtime, before now."""


def fake_history(now: float, name: str = "") -> list[Row]:
    """Return the records of two runs with downtime between them. name: of everything, if given."""
    rows: list[Row] = []
    at = now - 30 * HOUR
    gap_from, gap_to = (now - each * HOUR for each in GAP_HOURS)
    rows += [EventRow(at, "started", "scheduler", ""), EventRow(gap_from, "ended", "scheduler", "")]
    rows.append(EventRow(gap_to, "started", "scheduler", ""))
    number = 0
    while at < now:
        wave = 0.5 + 0.5 * math.sin(number / 40)
        slots = 24 + 8 * (number // 90 % 3)
        if not gap_from - 60 < at < gap_to:
            done, failed = int(900 * wave) + 7, 40 if 100 <= number % 400 < 106 else number % 2
            figures = [slots, int(slots * wave), int(300 * (1 - wave)), int((2 + 3 * wave) * GIB)]
            rows.append(MinuteRow._make([at, 60.0, done, failed, 0, 500, slots, 1, 0.02 * slots / 60, 0.002, *figures]))
            if failed:
                rows.append(
                    EventRow(at, "failed", name or "price_swaption", name or "ValueError: no curve for XYZ", failed)
                )
            if number % 90 == 0:
                scaling = f"{slots} units, and 0 draining: 412 tasks wait for {slots} slots"
                rows.append(EventRow(at + 3, "scaling", name or "grid", scaling))
            if number % 130 == 7:
                rows.append(EventRow(at + 9, "lost", name or f"node-{number % 24:03d}", "no heartbeat for 60 s"))
            if number % 5 == 0:
                p50 = 0.24 + 0.1 * wave
                rows.append(FunctionTimesRow(at, 300.0, name or "price_swaption", 5 * done, 3, p50, 4 * p50))
                rows.append(FunctionTimesRow(at, 300.0, "load_market", done, 0, 2 * p50, 3 * p50))
        at += 60.0
        number += 1
    return rows


def answered(rows: Sequence[Row], since: float, until: float) -> ClusterHistory:
    """Return the answer of a scheduler with these records."""
    oldest = min((row.at for row in rows), default=0.0)
    return decode(ClusterHistory, json.loads(answer(within(rows, since, until), since, until, oldest)))
