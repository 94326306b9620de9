"""Drives the reconciler: one call per round, in which all running units have a connected worker by default."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from scaler.protocol.messages import UnitState
from scaler.worker_manager.backend import Unit
from scaler.worker_manager.reconcile import Decision, Reconciler, UnitsWanted

CHANCE = 0.5


class ReconcilerDriver:
    def __init__(self, max_units: int | None = None, max_starting: int | None = None, backlog: int = 0) -> None:
        self.core = Reconciler(max_units, max_starting, backlog)
        self.started = self.core.started

    def step(
        self,
        wanted: UnitsWanted,
        units: Sequence[Unit],
        now: float,
        *,
        connected: Sequence[str] | None = None,
        chance: float = CHANCE,
    ) -> Decision:
        """Do one round. connected: units whose worker is connected; by default all running units."""
        if connected is None:
            connected = [unit.unit_id for unit in units if unit.state is UnitState.RUNNING]
        return self.core.step(replace(wanted, connected=connected), units, now, chance)

    def failed(self, cause: str, now: float, *, chance: float = CHANCE) -> None:
        self.core.started(now, cause, chance)
