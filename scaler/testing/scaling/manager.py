"""A simulated worker manager: the real reconciler over units that are entries of a table."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random
from typing import Protocol

from scaler.protocol.messages import (
    Desired,
    ManagerDetails,
    ManagerStatus,
    Message,
    UnitState,
    UnitStatus,
    WorkerDetails,
)
from scaler.testing.scaling.workloads import Fleet
from scaler.testing.simulation.actors import Clock
from scaler.worker_manager.backend import Unit
from scaler.worker_manager.reconcile import (
    ListAgain,
    Reconciler,
    ReconcilerInput,
    ReportDegraded,
    StartUnits,
    StopUnits,
    UnitsListed,
    UnitsStarted,
    UnitsWanted,
    WorkersJoined,
)

HEARTBEAT_SECONDS = 2.0
ROUND_GAP_SECONDS = 0.05
SEEN_AFTER_END_SECONDS = 60.0
JITTER = 0.5
SPREAD = 0.1
"""Units take this share more or less to start than they do on average."""


class Cluster(Clock, Protocol):
    """What a manager needs of the world."""

    def say(self, peer: bytes, message: Message) -> None: ...
    def unit_started(self) -> bytes: ...
    def worker_joined(self, peer: bytes, details: WorkerDetails) -> None: ...
    def unit_ended(self, peer: bytes, *, stopped: bool) -> None: ...


@dataclass(slots=True)
class _Unit:
    worker: bytes
    born: float
    state: UnitState = UnitState.PENDING
    ended: float = math.inf


class SimulatedManager:
    """Starts and stops the units of one fleet as the scheduler wants it, and makes its units fail as the fleet says."""

    def __init__(self, peer: bytes, fleet: Fleet, startup_seconds: float, cluster: Cluster) -> None:
        self.peer = peer
        self.details = ManagerDetails(
            fleet.manager_id, "simulated", fleet.max_units, 1, dict(fleet.capabilities), fixed=False
        )
        self._fleet = fleet
        self._startup_seconds = startup_seconds if fleet.startup_seconds is None else fleet.startup_seconds
        self._cluster = cluster
        self._random = Random(fleet.manager_id)  # noqa: S311 (a simulation must repeat itself)
        self._reconciler = Reconciler(fleet.max_units)
        self._units: dict[str, _Unit] = {}
        self._inputs: list[ReconcilerInput] = []
        self._next_round = math.inf
        if fleet.reclaimed_at is not None:
            cluster.later(fleet.reclaimed_at, self._reclaim)

    def paid_seconds(self, now: float) -> float:
        """Return how long all units have lived until now, added up."""
        return sum(min(unit.ended, now) - unit.born for unit in self._units.values())

    def hear(self, message: Desired) -> None:
        wanted = UnitsWanted(message.units + message.draining, frozenset(message.drained))
        self._inputs += [wanted, WorkersJoined(message.joined)]
        self._round_at(self._cluster.now + ROUND_GAP_SECONDS)

    def beat(self) -> None:
        """Look now, and again with every heartbeat."""
        self._round_at(self._cluster.now)
        self._cluster.later(self._cluster.now + HEARTBEAT_SECONDS, self.beat)

    def _round_at(self, at: float) -> None:
        if at < self._next_round:
            self._next_round = at
            self._cluster.later(at, self._round)

    def _round(self) -> None:
        now = self._cluster.now
        if now < self._next_round:
            return
        self._next_round = math.inf
        units = [
            Unit(name, unit.state, 1, now - unit.born, "it was lost" if unit.state is UnitState.FAILED else "")
            for name, unit in self._units.items()
            if now - unit.ended < SEEN_AFTER_END_SECONDS
        ]
        inputs, self._inputs = self._inputs, []
        again = math.inf
        for command in self._reconciler.step([*inputs, UnitsListed(units, JITTER)], now):
            match command:
                case ReportDegraded(reason):
                    status = [UnitStatus(unit.unit_id, unit.state, 1, unit.age_seconds, unit.reason) for unit in units]
                    self._cluster.say(self.peer, ManagerStatus(now, status, reason))
                case StopUnits(unit_ids):
                    for name in unit_ids:
                        self._end(name, UnitState.STOPPED)
                case StartUnits(count):
                    self._reconciler.step([UnitsStarted([self._start() for _ in range(count)])], now)
                case ListAgain(after_seconds):
                    again = after_seconds
        self._round_at(now + max(ROUND_GAP_SECONDS, again))

    def _start(self) -> str:
        cluster = self._cluster
        name = f"{self._fleet.manager_id}-{len(self._units) + 1}"
        self._units[name] = _Unit(cluster.unit_started(), cluster.now)
        startup = self._startup_seconds * self._random.uniform(1 - SPREAD, 1 + SPREAD)
        if self._random.random() < self._fleet.dies_starting:
            cluster.later(cluster.now + startup / 2, lambda: self._end(name, UnitState.FAILED))
            return name
        cluster.later(cluster.now + startup, lambda: self._joined(name))
        if self._fleet.life_seconds is not None:
            life = self._random.expovariate(1 / self._fleet.life_seconds)
            cluster.later(cluster.now + startup + life, lambda: self._end(name, UnitState.FAILED))
        return name

    def _joined(self, name: str) -> None:
        unit = self._units[name]
        if unit.state is not UnitState.PENDING:
            return
        unit.state = UnitState.RUNNING
        details = WorkerDetails(self._fleet.manager_id, name, 1, 1000, dict(self._fleet.capabilities))
        self._cluster.worker_joined(unit.worker, details)

    def _reclaim(self) -> None:
        running = [name for name, unit in self._units.items() if unit.state is UnitState.RUNNING]
        for name in running[::2]:
            self._end(name, UnitState.FAILED)

    def _end(self, name: str, state: UnitState) -> None:
        unit = self._units[name]
        if unit.ended < math.inf:
            return
        unit.state = state
        unit.ended = self._cluster.now
        self._cluster.unit_ended(unit.worker, stopped=state is UnitState.STOPPED)
        self._round_at(self._cluster.now + ROUND_GAP_SECONDS)
