"""The answer to a query of a period: its content, and that it fits into a message."""

from __future__ import annotations

import json

from scaler.extensions.history.answer import MAX_ANSWERED_EVENTS, answer
from scaler.extensions.history.minutes import MAX_FAILURES, MAX_TEXT, MinuteRow, Row
from scaler.monitor.cluster_rows import FailureRow
from scaler.monitor.history_rows import ClusterHistory, EventRow, FunctionTimesRow
from scaler.monitor.rows import decode
from scaler.protocol.messages import MAX_CONTROL_BYTES

LARGE = 2**52 + 1
NASTY = "\ud800\x1b" * (MAX_TEXT // 2)
"""Texts that JSON expands to six times their length."""


def found(rows: list[Row], since: float = 0.0, until: float = 1e9) -> ClusterHistory:
    return decode(ClusterHistory, json.loads(answer(rows, since, until, 5.0)))


def test_answer_has_points_ordered_events_failures_by_text_and_function_totals() -> None:
    history = found(
        [
            EventRow(9.0, "lost", "w", "no heartbeat"),
            EventRow(7.0, "started", "scheduler", ""),
            *(EventRow(60.0 * number, "failed", "f", f"ValueError: {number}", number) for number in (1, 2)),
            EventRow(60.0, "failed", "g", "KeyError", 9),
            *(FunctionTimesRow(300.0 * number, 300.0, "f", number, 1, 1.0 * number, 3.0) for number in (1, 4)),
            FunctionTimesRow(300.0, 300.0, "g", 1000, 0, 0.5, 0.6),
            MinuteRow(0.0, 60.0, 30, 20, 10, 4, 5, 6, 0.5, 0.1, 8, 7, 3, 99),
        ]
    )
    assert (history.since, history.until, history.oldest, history.left_out) == (0.0, 1e9, 5.0, 0)
    [point] = history.points
    assert (point.tasks_per_second, point.failed_per_second, point.running, point.memory_bytes) == (1.0, 0.333, 7, 99)
    assert [event.kind for event in history.events] == ["started", "lost"]
    assert history.failures == (
        FailureRow("", 9, "KeyError", "g", 60.0, 60.0, ""),
        FailureRow("", 3, "ValueError: …", "f", 60.0, 120.0, ""),
    )
    assert history.functions == (
        FunctionTimesRow(300.0, 300.0, "g", 1000, 0, 0.5, 0.6),
        FunctionTimesRow(300.0, 1200.0, "f", 5, 2, 4.0, 3.0),
    )


def test_too_many_events_keep_runs_and_decisions_before_incidents() -> None:
    events: list[Row] = []
    for number in range(400):
        events += [EventRow(number, "joined", "w", ""), EventRow(number, "lost", "w", "gone")]
    events += [EventRow(1.0, "started", "scheduler", ""), EventRow(2.0, "scaling", "m", "2 units")]
    history = found(events)
    kinds = [event.kind for event in history.events]
    assert len(kinds) == MAX_ANSWERED_EVENTS
    assert (kinds.count("lost"), kinds.count("started"), kinds.count("scaling")) == (400, 1, 1)
    assert history.left_out == 802 - MAX_ANSWERED_EVENTS
    assert [event.at for event in history.events] == sorted(event.at for event in history.events)


def test_longest_history_fits_in_a_message_with_all_points() -> None:
    figures = [*[LARGE] * 6, 1e15 / 3, 1 / 3, *[LARGE] * 4]
    rows: list[Row] = [MinuteRow._make([1.7e9 + 60 * minute, 60.0, *figures]) for minute in range(4_000)]
    for number in range(500):
        rows.append(EventRow(1.7e9 + number, "lost", NASTY, NASTY))
        rows.append(FunctionTimesRow(1.7e9, 300.0, f"{number}{NASTY}"[:MAX_TEXT], LARGE, LARGE, 1 / 3, 1 / 3))
        if number < MAX_FAILURES * 4:
            rows.append(EventRow(1.7e9, "failed", f"{number}{NASTY}"[:MAX_TEXT], NASTY, LARGE))
    document = answer(rows, 0.0, 2e9, 1.0)
    assert len(document) < MAX_CONTROL_BYTES
    history = decode(ClusterHistory, json.loads(document))
    assert sum(point.seconds for point in history.points) > 3_900 * 60
    assert history.events
    assert history.failures
    assert history.functions
