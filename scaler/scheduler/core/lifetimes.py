"""Units whose service ends them at a known time, such as jobs with a time limit. Pure.

A worker is drained early enough for its tasks to end before its unit, by measured task times, but not before half of
the unit's time has passed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from scaler.policy.view import Demand
from scaler.protocol.messages import UnitState, UnitStatus
from scaler.scheduler.core.state import ALIVE, ManagerRecord, UnitEnd, Worker

MIN_LEFT_SECONDS = 30.0
"""Minimum seconds between draining a worker and the end of its unit."""
END_TOLERANCE_SECONDS = 5.0
"""A unit that ends this close to its time limit has reached the limit; both are known as of a heartbeat."""
LONGEST_TASKS = 2.0
"""Drain before the end by this multiple of the longest mean duration among tasks that fit."""


@dataclass(frozen=True, slots=True)
class Ending:
    worker: Worker
    seconds: float


def ends_of(
    units: Iterable[UnitStatus], before: Mapping[str, UnitEnd], queued: Mapping[str, float], now: float
) -> dict[str, UnitEnd]:
    """Return the known ends of units. before: earlier known ends. queued: queueing times, which limits exclude."""
    ends: dict[str, UnitEnd] = {}
    for unit in units:
        known = before.get(unit.unit_id)
        if unit.remaining_seconds and unit.state in ALIVE:
            lived = max(0.0, unit.age_seconds - queued.get(unit.unit_id, 0.0))
            limit = known.limit_seconds if known is not None else lived + unit.remaining_seconds
            ends[unit.unit_id] = UnitEnd(now + unit.remaining_seconds, now if known is None else known.seen_at, limit)
        elif known is not None and unit.state is not UnitState.RUNNING:
            ends[unit.unit_id] = known  # terminating, but its worker may still be connected
    return ends


def passed_limit(record: ManagerRecord | None, unit_id: str, now: float) -> float:
    """Return the time limit (seconds) of a unit that has reached it; otherwise 0."""
    end = None if record is None else record.ends.get(unit_id)
    return end.limit_seconds if end is not None and end.ends_at - now <= END_TOLERANCE_SECONDS else 0.0


def ending(record: ManagerRecord, demand: Iterable[Demand], now: float) -> list[Ending]:
    """Return the workers of a manager that must drain now."""
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
