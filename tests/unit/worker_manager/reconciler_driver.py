"""Drives the reconciler: one call per round, and its commands as one record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from scaler.protocol.messages import UnitState
from scaler.worker_manager.backend import Unit
from scaler.worker_manager.reconcile import (
    Reconciler,
    StartUnits,
    StopUnits,
    UnitsListed,
    UnitsStarted,
    UnitsWanted,
)

CHANCE = 0.5


@dataclass
class Decision:
    """The outcome of one round."""

    again: float
    reason: str
    start: int = 0
    stop: tuple[str, ...] = ()


class ReconcilerDriver:
    def __init__(self, max_units: int | None = None, max_starting: int | None = None, backlog: int = 0) -> None:
        self.core = Reconciler(max_units, max_starting, backlog)

    def step(
        self,
        wanted: UnitsWanted,
        units: Sequence[Unit],
        now: float,
        *,
        joined: Sequence[str] | None = None,
        chance: float = CHANCE,
    ) -> Decision:
        """Do one round. joined: units whose worker has connected; all that run by default."""
        if joined is None:
            joined = [unit.unit_id for unit in units if unit.state is UnitState.RUNNING]
        commands = self.core.step([replace(wanted, joined=joined), UnitsListed(units, chance)], now)
        decision = Decision(self.core.list_again_seconds, self.core.degraded_reason)
        for command in commands:
            match command:
                case StartUnits(count):
                    decision.start = count
                case StopUnits(unit_ids):
                    decision.stop = tuple(unit_ids)
        return decision

    def started(self, unit_ids: Sequence[str], now: float) -> None:
        assert self.core.step([UnitsStarted(unit_ids)], now) == []

    def failed(self, cause: str, now: float, *, started: Sequence[str] = (), chance: float = CHANCE) -> None:
        assert self.core.step([UnitsStarted(started, cause, chance)], now) == []
