"""Runs schedules. Several servers may have the same schedules: each run has a key in the durable session of its day,
which only one client at a time can use."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from scaler.client.client import Client
from scaler.extensions.durability.client import SessionTask, session_tasks
from scaler.extensions.http.job import invoke
from scaler.extensions.http.keys import TAG, ClientKey, sessions_of
from scaler.extensions.http.settings import SCHEDULES, Schedule
from scaler.logs import RateLimitedLog
from scaler.monitor.messages import UNFINISHED
from scaler.monitor.rows import View

LATE_SECONDS = 60.0
"""Delay (seconds) after which a run counts as missed."""
RETRY_SECONDS = 2.0
MAX_PAUSE_SECONDS = 30.0
"""Maximum wait (seconds) between readings of the clock, which may be adjusted."""
_TIME = "%Y%m%dT%H%MZ"

_log = logging.getLogger(__name__)


class ScheduleRunner:
    """Runs one schedule. last: time up to which all runs have been started or skipped."""

    def __init__(
        self, schedule: Schedule, key: ClientKey, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self.last: datetime | None = None
        self._schedule, self._key, self._now = schedule, key, now
        self._trouble = RateLimitedLog(_log, logging.WARNING, asyncio.get_running_loop())

    @property
    def view(self) -> View:
        now, schedule = self._now(), self._schedule
        last = None if self.last is None else self.last.timestamp()
        upcoming = next(times(schedule.cron, schedule.timezone, now)).timestamp()
        return {"name": schedule.name, "call": schedule.call, "last": last, "next": upcoming}

    async def follow(self) -> None:
        while True:
            try:
                pause = await self.step()
            except Exception as error:  # noqa: BLE001 (later runs must start)
                self._trouble.add(f"schedule {self._schedule.name} waits: {error}")
                pause = RETRY_SECONDS
            await asyncio.sleep(pause)

    async def step(self) -> float:
        """Start the run that is due; return the seconds until the next step."""
        now, schedule = self._now(), self._schedule
        if self.last is None:
            runs = (_time_of(schedule.name, row.key) for row in await (await self._key.client("")).ask(_runs))
            self.last = max(filter(None, runs), default=now)
        self.last = min(self.last, now)  # the clock may have been set back
        due = next(times(schedule.cron, schedule.timezone, now, backwards=True))
        if due > self.last:
            if schedule.missed == "skip" and (now - due).total_seconds() > LATE_SECONDS:
                _log.warning("schedule %s: skipped the missed run of %s", schedule.name, due)
            else:
                if next(times(schedule.cron, schedule.timezone, self.last)) < due:
                    _log.warning("schedule %s: missed runs after %s; starting the last", schedule.name, self.last)
                async with self._key.scheduling:
                    await self.run(due)
            self.last = due
        upcoming = next(times(schedule.cron, schedule.timezone, now))
        return min(MAX_PAUSE_SECONDS, max(0.01, (upcoming - self._now()).total_seconds()))

    async def run(self, due: datetime) -> None:
        """Submit the run due at this time, unless another server has submitted it or an earlier run is unfinished."""
        schedule, key = self._schedule, f"{self._schedule.name}-{due:{_TIME}}"
        client = await self._key.open(f"{SCHEDULES}{due:%Y-%m-%d}")  # fails while another server has the session
        try:
            rows = [row for row in await client.ask(_runs) if _time_of(schedule.name, row.key)]
            unfinished = [row.key for row in rows if row.outcome == UNFINISHED]
            given = schedule.call, True, schedule.args, schedule.kwargs or {}, ""
            if key in (row.key for row in rows):
                return
            if unfinished:
                _log.warning("schedule %s: skipped run %s: %s is still running", schedule.name, due, unfinished[0])
            else:
                client.submit_verbose(invoke, given, key=key, tag=TAG, name=schedule.call)
        finally:
            await client.disconnect()  # sends the task first


def times(cron: str, zone: str, now: datetime, *, backwards: bool = False) -> Iterator[datetime]:
    """Yield the times after `now`, or the times before it in reverse order, in UTC."""
    from cronsim import CronSim  # noqa: PLC0415 (optional)

    # When iterating backwards, CronSim skips a time equal to the start.
    start = (now + timedelta(microseconds=backwards)).astimezone(ZoneInfo(zone))
    found = (each.astimezone(UTC) for each in CronSim(cron, start, backwards))
    # If the start is in a repeated hour, CronSim begins in the first of the two hours.
    return (each for each in found if (each <= now if backwards else each > now))


def _runs(client: Client) -> list[SessionTask]:
    """Return the runs of all schedules, from the sessions of this client's key."""
    found = [each for each in sessions_of(client) if each.name.startswith(SCHEDULES)]
    return [row for each in found for row in session_tasks(client._loop, each.id)]


def _time_of(schedule: str, key: str) -> datetime | None:
    name, _, text = key.rpartition("-")
    with contextlib.suppress(ValueError):  # the key is a request's, not a run's
        return datetime.strptime(text, _TIME).replace(tzinfo=UTC) if name == schedule else None
    return None
