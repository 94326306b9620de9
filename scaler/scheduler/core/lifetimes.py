"""Units that their service ends at a known time, such as jobs at their time limit. Pure.

Law: a worker is drained so early that what it runs can end before its unit does, as far as the measured times of tasks
tell, and no earlier than when half of its time has passed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from scaler.policy.view import Demand
from scaler.protocol.messages import UnitStatus
from scaler.scheduler.core.state import ALIVE, ManagerRecord, UnitEnd, Worker

MIN_LEFT_SECONDS = 30.0
"""A worker gets no task later than this before its unit ends."""
LONGEST_TASKS = 2.0
"""Nor later than this many times the longest measured task of those that it could get."""


@dataclass(frozen=True, slots=True)
class Ending:
    """A worker that is to be drained, and in how many seconds its unit ends."""

    worker: Worker
    seconds: float


def ends_of(units: Iterable[UnitStatus], before: Mapping[str, UnitEnd], now: float) -> dict[str, UnitEnd]:
    """Return when units end, as far as their manager knows. before: what was known until now."""
    ends: dict[str, UnitEnd] = {}
    for unit in units:
        if unit.remaining_seconds and unit.state in ALIVE:
            known = before.get(unit.unit_id)
            ends[unit.unit_id] = UnitEnd(now + unit.remaining_seconds, now if known is None else known.seen_at)
    return ends


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
