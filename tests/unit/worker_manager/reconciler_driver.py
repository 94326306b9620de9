"""Drives the reconciler: one call per round, and its commands as one record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scaler.protocol.messages import UnitState
from scaler.worker_manager.backend import Unit
from scaler.worker_manager.reconcile import (
    ListAgain,
    Reconciler,
    ReconcilerCommand,
    ReportDegraded,
    StartFailed,
    StartUnits,
    StopUnits,
    UnitsListed,
    UnitsStarted,
    UnitsWanted,
    WorkersJoined,
)

CHANCE = 0.5


@dataclass
class Decision:
    """The commands of one round."""

    start: int = 0
    stop: tuple[str, ...] = ()
    again: float = 0.0
    reason: str = ""

    def add(self, command: ReconcilerCommand) -> None:
        match command:
            case StartUnits(count):
                self.start = count
            case StopUnits(unit_ids):
                self.stop = unit_ids
            case ListAgain(after_seconds):
                self.again = after_seconds
            case ReportDegraded(reason):
                self.reason = reason


class ReconcilerDriver:
    def __init__(self, max_units: int | None = None, max_starting: int | None = None) -> None:
        self.core = Reconciler(max_units, max_starting)

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
        decision = Decision()
        for command in self.core.step([wanted, WorkersJoined(joined), UnitsListed(units, chance)], now):
            decision.add(command)
        return decision

    def started(self, unit_ids: Sequence[str], now: float) -> None:
        assert self.core.step([UnitsStarted(unit_ids)], now) == []

    def failed(self, cause: str, now: float, *, started: Sequence[str] = (), chance: float = CHANCE) -> None:
        assert self.core.step([StartFailed(cause, started, chance)], now) == []
