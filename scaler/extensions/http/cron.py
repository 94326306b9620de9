"""Times of cron expressions. Pure.

In the hour that clocks skip, a time runs one hour later by the clock; in the hour that they repeat, it runs once. Hours
that begin with `*` follow elapsed time instead: nothing extra, and both of the repeated hours.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta, tzinfo

_FIELDS = (
    *(("minute", 0, 59, ""), ("hour", 0, 23, ""), ("day of month", 1, 31, "")),
    *(("month", 1, 12, "janfebmaraprmayjunjulaugsepoctnovdec"), ("day of week", 0, 7, "sunmontuewedthufrisat")),
)
_ALIASES = {
    "@hourly": "0 * * * *", "@daily": "0 0 * * *", "@weekly": "0 0 * * 0", "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
}  # fmt: skip
_MAX_DAYS = 366 * 8 + 2
"""Maximum days between two times: 29 February around the year 2100."""


class Cron:
    def __init__(self, text: str) -> None:
        """Raises ValueError for an expression that is invalid or has no times."""
        parts = _ALIASES.get(text.strip(), text).lower().split()
        if len(parts) != len(_FIELDS):
            names = ", ".join(field[0] for field in _FIELDS)
            raise ValueError(f"cron {text!r} must have five fields, such as '0 3 * * *': {names}")
        try:
            minutes, hours, self._days, self._months, weekdays = map(_values, parts, _FIELDS)
        except ValueError as error:
            raise ValueError(f"cron {text!r}: {error}") from None
        self._times = [time(hour, minute) for hour in sorted(hours) for minute in sorted(minutes)]
        self._weekdays = {day % 7 for day in weekdays}
        self._takes_either = not (parts[2].startswith("*") or parts[4].startswith("*"))
        self._is_elapsed = parts[1].startswith("*")
        if next(self.after(datetime(2000, 1, 1, tzinfo=UTC), UTC), None) is None:
            raise ValueError(f"cron {text!r} has no times: no year has such a day")

    def after(self, start: datetime, zone: tzinfo) -> Iterator[datetime]:
        """Yield the times after start, in UTC."""
        day, without = start.astimezone(zone).date() - timedelta(1), 0
        while without < _MAX_DAYS:
            if self._has(day):
                without = 0
                found = {moment for each in self._times for moment in self._moments(datetime.combine(day, each), zone)}
                yield from sorted(moment for moment in found if moment > start)
            without, day = without + 1, day + timedelta(1)

    def _has(self, day: date) -> bool:
        of_month, of_week = day.day in self._days, day.isoweekday() % 7 in self._weekdays
        return day.month in self._months and (of_month or of_week if self._takes_either else of_month and of_week)

    def _moments(self, wall: datetime, zone: tzinfo) -> list[datetime]:
        first, second = (wall.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
        is_skipped = first.astimezone(zone).replace(tzinfo=None) != wall
        if not self._is_elapsed or first == second:
            return [first]
        return [] if is_skipped else [first, second]


def _values(text: str, field: tuple[str, int, int, str]) -> set[int]:
    name, least, most, names = field

    def number(text: str) -> int:
        at = names.find(text) if len(text) == 3 else -1
        return least + at // 3 if at % 3 == 0 else int(text)

    found: set[int] = set()
    for part in text.split(","):
        span, slash, step = part.partition("/")
        begin, dash, end = span.partition("-")
        try:
            first = least if span == "*" else number(begin)
            last = most if span == "*" or (slash and not dash) else number(end if dash else begin)
            if dash and last == 0 and names:
                last = 7  # Sunday
            values = range(first, last + 1, int(step) if slash else 1)
        except ValueError:
            values = range(0)
        if not values or not least <= first <= last <= most:
            raise ValueError(f"the {name} {part!r} must be *, numbers from {least} to {most}, ranges, or steps")
        found.update(values)
    return found
