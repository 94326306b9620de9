"""The history: written samples and events, and reading damaged lines."""

from __future__ import annotations

from scaler.extensions.history.minutes import (
    MAX_EVENTS,
    MAX_FAILURES,
    MinuteRow,
    Minutes,
    Row,
    lines_of,
    lines_with,
    rows_of,
)
from scaler.monitor.history_rows import EventRow, FunctionTimesRow

NOTHING = MinuteRow(0.0, 0.0, 0, 0, 0, 0, 0, 0, 0.0, 0.0)


def test_minute_has_its_events_and_maximum_figures() -> None:
    minutes = Minutes(120.0, MinuteRow(0.0, 0.0, 100, 5, 1, 0, 0, 0, 2.0, 0.0))
    assert minutes.sample(121.0, MinuteRow(0.0, 0.0, 110, 5, 1, 40, 1, 1, 2.0, 0.3)) == []
    rows = minutes.sample(180.5, MinuteRow(0.0, 0.0, 150, 7, 2, 3, 4, 1, 2.5, 0.1))
    assert rows == [MinuteRow(120.0, 60.5, 50, 2, 1, 40, 4, 1, 0.5, 0.3)]
    assert minutes.sample(240.0, MinuteRow(0.0, 0.0, 151, 7, 2, 0, 4, 1, 2.5, 0.0)) == [
        MinuteRow(180.5, 59.5, 1, 0, 0, 3, 4, 1, 0.0, 0.0)
    ]


def test_events_are_written_with_the_next_sample_and_failures_per_minute() -> None:
    minutes = Minutes(60.0, NOTHING)
    minutes.event(61.0, "lost", "worker", "no heartbeat")
    for _ in range(3):
        minutes.failure("f", "ValueError: no")
    assert minutes.sample(62.0, NOTHING) == [EventRow(61.0, "lost", "worker", "no heartbeat")]
    assert minutes.sample(63.0, NOTHING) == []
    assert minutes.sample(120.0, NOTHING)[0] == EventRow(60.0, "failed", "f", "ValueError: no", 3)
    assert len(minutes.sample(180.0, NOTHING)) == 1


def test_events_and_failures_use_bounded_memory() -> None:
    minutes = Minutes(60.0, NOTHING)
    for number in range(MAX_EVENTS + 7):
        minutes.event(61.0, "lost", f"worker {number}", "x" * 10_000)
    for number in range(MAX_FAILURES + 9):
        minutes.failure(f"f{number}", "no")
    rows = minutes.sample(120.0, NOTHING)
    assert len(rows) == MAX_EVENTS + MAX_FAILURES + 3
    assert EventRow(60.0, "failed", "", "other failures", 9) in rows
    assert EventRow(60.0, "skipped", "", "events beyond the limit", 7) in rows
    assert len(b"".join(lines_of(rows))) < 200_000


def test_only_truncated_and_damaged_lines_are_skipped() -> None:
    rows: list[Row] = [
        EventRow(1.0, "lost", "w", "a\nb"),
        MinuteRow(0.0, 60.0, 1, 2, 3, 4, 5, 6, 0.5, 0.1),
        EventRow(2.0, "x", "", ""),
    ]
    lines = [*lines_of(rows)]
    assert list(rows_of(lines)) == rows
    assert list(rows_of([lines[0][:-5], b"\n", lines[1], b"junk\n", lines[2].replace(b"x", b"y")])) == [rows[1]]


def test_functions_of_an_interval_are_merged_only_within_it() -> None:
    functions = [FunctionTimesRow(at, 300.0, name, 5, 1, 0.25, 0.5) for at in (0.0, 300.0) for name in ("f", "g", "h")]
    minute = MinuteRow(0.0, 60.0, 1, 2, 3, 4, 5, 6, 0.5, 0.1)
    rows: list[Row] = [*functions[:3], minute, *functions[3:]]
    lines = [*lines_of(rows)]
    assert len(lines) == 3
    assert list(rows_of(lines)) == rows
    assert list(rows_of(lines_with(lines, ["MinuteRow"]))) == [minute]
