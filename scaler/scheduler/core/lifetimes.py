"""Units that their service ends at a known time, such as jobs at their time limit. Pure.

Law: a worker is drained so early that what it runs can end before its unit does, as far as the measured times of tasks
tell, and no earlier than when half of its time has passed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from scaler.policy.view import Demand
from scaler.protocol.messages import UnitState, UnitStatus
from scaler.scheduler.core.state import ALIVE, ManagerRecord, UnitEnd, Worker

MIN_LEFT_SECONDS = 30.0
"""A worker gets no task later than this before its unit ends."""
END_TOLERANCE_SECONDS = 5.0
"""A unit that ends so shortly before its time limit has reached it: both are known as of a heartbeat."""
LONGEST_TASKS = 2.0
"""Nor later than this many times the longest measured task of those that it could get."""


@dataclass(frozen=True, slots=True)
class Ending:
    """A worker that is to be drained, and in how many seconds its unit ends."""

    worker: Worker
    seconds: float


def ends_of(
    units: Iterable[UnitStatus], before: Mapping[str, UnitEnd], queued: Mapping[str, float], now: float
) -> dict[str, UnitEnd]:
    """Return when units end, as far as their manager knows.

    before: what was known until now. queued: how long units have waited in a queue, which is no part of their time.
    """
    ends: dict[str, UnitEnd] = {}
    for unit in units:
        known = before.get(unit.unit_id)
        if unit.remaining_seconds and unit.state in ALIVE:
            lived = max(0.0, unit.age_seconds - queued.get(unit.unit_id, 0.0))
            limit = known.limit_seconds if known is not None else lived + unit.remaining_seconds
            ends[unit.unit_id] = UnitEnd(now + unit.remaining_seconds, now if known is None else known.seen_at, limit)
        elif known is not None and unit.state is not UnitState.RUNNING:
            ends[unit.unit_id] = known  # it ends, and its worker may not have left yet
    return ends


def passed_limit(record: ManagerRecord | None, unit_id: str, now: float) -> float:
    """Return the time limit in seconds of a unit that has reached it; 0 for any other unit."""
    end = None if record is None else record.ends.get(unit_id)
    return end.limit_seconds if end is not None and end.ends_at - now <= END_TOLERANCE_SECONDS else 0.0


def ending(record: ManagerRecord, demand: Iterable[Demand], now: float) -> list[Ending]:
    """Return the workers of a manager that are to get no more tasks."""
    if not record.ends:
        return []
    times = (row.task_seconds or 0.0 for row in demand if row.needs.fits(record.offers))
    wanted_seconds = max(MIN_LEFT_SECONDS, LONGEST_TASKS * max(times, default=0.0))
    found = []
    for unit_id, end in record.ends.items():
        worker = record.running_units.get(unit_id)
        left = end.ends_at - now
        if worker is not None and not worker.draining and left <= min(wanted_seconds, (end.ends_at - end.seen_at) / 2):
            found.append(Ending(worker, left))
    return found
