"""Times of cron expressions: fields, days, and the hours that clocks skip and repeat."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice
from zoneinfo import ZoneInfo

import pytest

from scaler.extensions.http.cron import Cron

NEW_YORK, BERLIN = ZoneInfo("America/New_York"), ZoneInfo("Europe/Berlin")


def times(expression: str, start: str, zone: ZoneInfo = ZoneInfo("UTC"), count: int = 3) -> list[str]:  # noqa: B008
    """Return times after a local start, as local times with their offset."""
    found = Cron(expression).after(datetime.fromisoformat(start).replace(tzinfo=zone).astimezone(UTC), zone)
    return [each.astimezone(zone).isoformat(" ", "minutes") for each in islice(found, count)]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("0 3 * * *", ["2026-01-01 03:00", "2026-01-02 03:00"]),
        ("*/25 * * * *", ["2026-01-01 00:25", "2026-01-01 00:50"]),
        ("5/30 0-1 * * *", ["2026-01-01 00:05", "2026-01-01 00:35"]),
        ("0 0 * mar,Jun 1-3/2", ["2026-03-02 00:00", "2026-03-04 00:00"]),
        ("0 0 * * fri-sun", ["2026-01-02 00:00", "2026-01-03 00:00"]),
        ("0 0 * * 7", ["2026-01-04 00:00", "2026-01-11 00:00"]),
        ("@monthly", ["2026-02-01 00:00", "2026-03-01 00:00"]),
        ("0 0 31 * *", ["2026-01-31 00:00", "2026-03-31 00:00"]),
    ],
)
def test_fields_select_times(expression: str, expected: list[str]) -> None:
    assert [each[:16] for each in times(expression, "2026-01-01T00:00", count=2)] == expected


def test_restricted_days_of_month_and_week_select_days_with_either() -> None:
    found = times("0 0 13 * fri", "2026-01-10T00:00", count=4)
    assert [each[:10] for each in found] == ["2026-01-13", "2026-01-16", "2026-01-23", "2026-01-30"]
    stepped = times("0 0 */2 * fri", "2026-01-01T00:00", count=2)
    assert [each[:10] for each in stepped] == ["2026-01-09", "2026-01-23"]


def test_29_february_waits_for_the_next_leap_year_also_around_2100() -> None:
    found = times("0 0 29 2 *", "2095-01-01T00:00", count=2)
    assert [each[:10] for each in found] == ["2096-02-29", "2104-02-29"]


def test_time_in_the_skipped_hour_runs_an_hour_later_that_day_and_as_usual_the_next_day() -> None:
    found = times("30 2 * * *", "2026-03-07T12:00", NEW_YORK)
    assert found == ["2026-03-08 03:30-04:00", "2026-03-09 02:30-04:00", "2026-03-10 02:30-04:00"]


def test_two_times_that_become_one_in_the_skipped_hour_run_once() -> None:
    found = times("30 2,3 * * *", "2026-03-08T00:00", NEW_YORK, 2)
    assert found == ["2026-03-08 03:30-04:00", "2026-03-09 02:30-04:00"]


def test_time_in_the_repeated_hour_runs_once() -> None:
    found = times("30 1 * * *", "2026-10-31T12:00", NEW_YORK, 2)
    assert found == ["2026-11-01 01:30-04:00", "2026-11-02 01:30-05:00"]


def test_every_hour_runs_in_both_repeated_hours_and_not_in_the_skipped_one() -> None:
    repeated = times("30 * * * *", "2026-11-01T00:45", NEW_YORK)
    assert repeated == ["2026-11-01 01:30-04:00", "2026-11-01 01:30-05:00", "2026-11-01 02:30-05:00"]
    skipped = times("30 * * * *", "2026-03-08T00:45", NEW_YORK, 2)
    assert skipped == ["2026-03-08 01:30-05:00", "2026-03-08 03:30-04:00"]


def test_first_of_a_month_keeps_its_first_half_hour_after_the_clocks_change() -> None:
    assert times("30 * 1 4 *", "2026-02-01T00:00", BERLIN, 1) == ["2026-04-01 00:30+02:00"]


def test_weekly_noon_is_not_skipped_on_the_day_with_23_hours() -> None:
    assert times("0 12 * * 0", "2022-03-24T12:00", BERLIN, 1) == ["2022-03-27 12:00+02:00"]


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("0 3 * *", "must have five fields"),
        ("60 * * * *", "the minute '60' must be"),
        ("*/0 * * * *", "the minute '\\*/0' must be"),
        ("5-1 * * * *", "the minute '5-1' must be"),
        ("* * 0 * *", "the day of month '0' must be"),
        ("* * * foo *", "the month 'foo' must be"),
        ("1,, * * * *", "the minute '' must be"),
        ("0 0 30 2 *", "has no times"),
    ],
)
def test_invalid_expression_names_the_field(expression: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Cron(expression)
