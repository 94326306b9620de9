"""Times of cron expressions, mainly in the hours that clocks skip and repeat."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from zoneinfo import ZoneInfo

import pytest

from scaler.extensions.http.schedules import times

NEW_YORK, BERLIN, LORD_HOWE = "America/New_York", "Europe/Berlin", "Australia/Lord_Howe"


def shown(expression: str, start: str, zone: str = "UTC", count: int = 3) -> list[str]:
    """Return times after a local start, as local times with their offset."""
    found = times(expression, zone, datetime.fromisoformat(start).replace(tzinfo=ZoneInfo(zone)).astimezone(UTC))
    return [each.astimezone(ZoneInfo(zone)).isoformat(" ", "minutes") for each in islice(found, count)]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("0 3 * * *", ["2026-01-01 03:00", "2026-01-02 03:00"]),
        ("*/25 * * * *", ["2026-01-01 00:25", "2026-01-01 00:50"]),
        ("5/30 0-1 * * *", ["2026-01-01 00:05", "2026-01-01 00:35"]),
        ("0 0 * mar,Jun 1-3/2", ["2026-03-02 00:00", "2026-03-04 00:00"]),
        ("0 0 * * fri,sun", ["2026-01-02 00:00", "2026-01-04 00:00"]),
        ("0 0 * * 7", ["2026-01-04 00:00", "2026-01-11 00:00"]),
        ("0 0 31 * *", ["2026-01-31 00:00", "2026-03-31 00:00"]),
    ],
)
def test_cron_fields_select_times(expression: str, expected: list[str]) -> None:
    assert [each[:16] for each in shown(expression, "2026-01-01T00:00", count=2)] == expected


def test_restricted_days_of_month_and_week_select_days_with_either() -> None:
    found = shown("0 0 13 * fri", "2026-01-10T00:00", count=4)
    assert [each[:10] for each in found] == ["2026-01-13", "2026-01-16", "2026-01-23", "2026-01-30"]
    stepped = shown("0 0 */2 * fri", "2026-01-01T00:00", count=2)
    assert [each[:10] for each in stepped] == ["2026-01-09", "2026-01-23"]


def test_29_february_waits_for_the_next_leap_year_also_around_2100() -> None:
    found = shown("0 0 29 2 *", "2095-01-01T00:00", count=2)
    assert [each[:10] for each in found] == ["2096-02-29", "2104-02-29"]


def test_time_in_the_skipped_hour_runs_at_its_end_that_day_and_as_usual_the_next_day() -> None:
    found = shown("30 2 * * *", "2026-03-07T12:00", NEW_YORK)
    assert found == ["2026-03-08 03:00-04:00", "2026-03-09 02:30-04:00", "2026-03-10 02:30-04:00"]


def test_times_that_become_one_in_the_skipped_hour_run_once() -> None:
    found = shown("0,30 2,3 * * *", "2026-03-08T00:00", NEW_YORK)
    assert found == ["2026-03-08 03:00-04:00", "2026-03-08 03:30-04:00", "2026-03-09 02:00-04:00"]


@pytest.mark.parametrize("day", ["2026-03-08", "2026-11-01"])
@pytest.mark.parametrize("expression", ["* * * * *", "30 * * * *", "0 7-8 * * *", "20 */4 * * *", "30 2,3 * * *"])
def test_previous_time_is_the_latest_of_the_earlier_times(expression: str, day: str) -> None:
    begin = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(NEW_YORK)).astimezone(UTC) - timedelta(1)
    forwards = [*takewhile(lambda each: each < begin + timedelta(3), times(expression, NEW_YORK, begin))]
    for moment in forwards:
        for now in (moment, moment + timedelta(seconds=1)):
            assert next(times(expression, NEW_YORK, now, backwards=True)) == moment
        assert next(times(expression, NEW_YORK, moment - timedelta(seconds=1))) == moment


def test_time_in_the_repeated_hour_runs_once() -> None:
    found = shown("30 1 * * *", "2026-10-31T12:00", NEW_YORK, 2)
    assert found == ["2026-11-01 01:30-04:00", "2026-11-02 01:30-05:00"]
    second = datetime(2026, 11, 1, 6, 15, tzinfo=UTC)
    assert next(times("30 1 * * *", NEW_YORK, second)) == datetime(2026, 11, 2, 6, 30, tzinfo=UTC)


def test_every_hour_runs_in_both_repeated_hours_and_not_in_the_skipped_one() -> None:
    repeated = shown("30 * * * *", "2026-11-01T00:45", NEW_YORK)
    assert repeated == ["2026-11-01 01:30-04:00", "2026-11-01 01:30-05:00", "2026-11-01 02:30-05:00"]
    skipped = shown("30 * * * *", "2026-03-08T00:45", NEW_YORK, 2)
    assert skipped == ["2026-03-08 01:30-05:00", "2026-03-08 03:30-04:00"]


def test_first_of_a_month_keeps_its_first_half_hour_after_the_clocks_change() -> None:
    assert shown("30 * 1 4 *", "2026-02-01T00:00", BERLIN, 1) == ["2026-04-01 00:30+02:00"]


def test_weekly_noon_is_not_skipped_on_the_day_with_23_hours() -> None:
    assert shown("0 12 * * 0", "2022-03-24T12:00", BERLIN, 1) == ["2022-03-27 12:00+02:00"]


@pytest.mark.parametrize(
    ("expression", "day", "expected"),
    [
        # Clocks repeat the time from 01:30 to 02:00 on 5 April, and skip that from 02:00 to 02:30 on 4 October.
        ("45 1 * * *", "2026-04-05", ["01:45+11:00"]),
        ("15 2 * * *", "2026-04-05", ["02:15+10:30"]),
        ("45 0-3 * * *", "2026-04-05", ["00:45+11:00", "01:45+11:00", "02:45+10:30", "03:45+10:30"]),
        ("45 * * * *", "2026-04-05", ["00:45+11:00", "01:45+11:00", "01:45+10:30", "02:45+10:30", "03:45+10:30"]),
        ("15 2 * * *", "2026-10-04", ["02:30+11:00"]),
        ("45 * * * *", "2026-10-04", ["00:45+10:30", "01:45+10:30", "02:45+11:00", "03:45+11:00"]),
    ],
)
def test_runs_are_due_once_where_clocks_change_by_half_an_hour(expression: str, day: str, expected: list[str]) -> None:
    begin = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(LORD_HOWE)).astimezone(UTC)
    steps = [begin + timedelta(minutes=number) for number in range(5 * 60)]  # of a server, which looks for due runs
    due = sorted({next(times(expression, LORD_HOWE, now, backwards=True)) for now in steps})
    local = [each.astimezone(ZoneInfo(LORD_HOWE)).isoformat("T", "minutes")[11:] for each in due if each > begin]
    assert [each for each in local if each < "04"] == expected
