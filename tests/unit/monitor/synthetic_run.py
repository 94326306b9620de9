"""Cluster runs with known causes: the documents for a monitor, and thus the correct advice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from scaler.monitor.model import Model

START = 1_790_000_000.0
LISTED = 8
"""Tasks of each function listed per second."""
COLUMNS = [
    "id", "state", "function", "worker", "attempt", "ended_at", "duration_us", "inputs_us", "inputs_bytes", "text",
    "lane", "started_at",
]  # fmt: skip


@dataclass(frozen=True)
class Load:
    """Tasks of one function. failed_share: of ended tasks. ready: constantly waiting for a slot."""

    name: str = "f"
    per_second: int = 0
    seconds: float = 0.1
    failed_share: float = 0.0
    messages: int = 1
    inputs_share: float = 0.0
    ready: int = 0
    needs: str = ""
    age_seconds: float = 0.0
    running: int = 0
    ran: bool = True
    """False: an input of each has failed, so no worker ran it."""


@dataclass(frozen=True)
class Manager:
    name: str = "grid"
    units: int = 4
    unit_slots: int = 2
    max_slots: int = 64
    pending: int = 0
    trouble: str = ""


@dataclass(frozen=True)
class Run:
    """A steady run. bad_worker: number of the worker where every task fails. Cancelled tasks are of the first load."""

    loads: Sequence[Load] = (Load(),)
    managers: Sequence[Manager] = (Manager(),)
    workers: int = 4
    slots_each: int = 2
    scheduler_percent: float = 5.0
    stored_share: float = 0.1
    spilled_bytes: int = 0
    spend_limit: str = ""
    bad_worker: int | None = None
    cancelled_per_second: int = 0
    suspended: int = 0
    states: int = 31
    interval: float = 1.0
    odd_state: dict[str, Any] = field(default_factory=dict)
    """Parts of one state in the middle that differ from all other states."""

    @property
    def slots(self) -> int:
        return self.workers * self.slots_each

    @property
    def running(self) -> int:
        return sum(load.running for load in self.loads)

    def failed_per_second(self, load: Load) -> int:
        bad = 0.0 if self.bad_worker is None else 1 / self.workers
        return round(load.per_second * (bad + (1 - bad) * load.failed_share))

    def model(self) -> Model:
        model = Model()
        self.fill(model)
        return model

    def fill(self, model: Model) -> None:
        for number in range(self.states):
            document = self._status(number)
            if number == self.states // 2:
                document |= self.odd_state
            model.apply_status(document)
            if number:
                model.apply_events(self._events(number))

    def _status(self, number: int) -> dict[str, Any]:
        past = number * self.interval
        ended: Counter[str] = Counter({"cancelled": round(self.cancelled_per_second * past)})
        for load in self.loads:
            ended["exception"] += round(self.failed_per_second(load) * past)
            ended["done"] += round((load.per_second - self.failed_per_second(load)) * past)
        return {
            "at": START + past,
            "incarnation": 1,
            "scheduler": {"cpu_percent": self.scheduler_percent},
            "storage": {
                "bytes": int(self.stored_share * 2**30), "limit_bytes": 2**30, "spilled_bytes": self.spilled_bytes,
            },
            "spending": {"reached": self.spend_limit},
            "tasks": {
                "ready": sum(load.ready for load in self.loads),
                "running": self.running,
                "suspended": self.suspended,
                "ended": dict(ended),
            },
            "totals": {
                "workers": self.workers, "slots": self.slots, "managers": len(self.managers),
                "functions": len(self.loads),
            },
            "functions": [
                {
                    "name": load.name,
                    "running": load.running,
                    "ended": round((load.per_second + (0 if place else self.cancelled_per_second)) * past),
                    "failed": round(self.failed_per_second(load) * past),
                    "seconds_total": load.per_second * past * load.seconds,
                }
                for place, load in enumerate(self.loads)
            ],
            "workers": [
                {"id": str(each), "name": f"grid-{each}", "slots": self.slots_each, **self._health(each)}
                for each in range(self.workers)
            ],
            "managers": [
                {
                    "id": manager.name, "running": manager.units, "unit_slots": manager.unit_slots,
                    "max_slots": manager.max_slots, "pending": manager.pending, "trouble": manager.trouble,
                }
                for manager in self.managers
            ],
            "waiting": [
                {
                    "id": load.name, "function": load.name, "capabilities": load.needs, "tasks": load.ready,
                    "ready": load.ready, "age_seconds": load.age_seconds,
                    "reason": f"no worker offers {load.needs}" if load.needs else "no slot is free",
                }
                for load in self.loads
                if load.ready
            ],
        }  # fmt: skip

    def _health(self, worker: int) -> dict[str, Any]:
        """Return the scheduler's data about a worker, compared with three other workers."""
        if worker != self.bad_worker or self.workers < 4:
            return {}
        load = min((each for each in self.loads if each.per_second), key=lambda each: each.failed_share, default=None)
        heat = 0 if load is None else min(100, round(200 * (1 - load.failed_share)))
        return {"failures_heat": heat, "fault": f"100% of its tasks of {load.name}() fail" if load and heat else ""}

    def _events(self, number: int) -> dict[str, Any]:
        at = START + number * self.interval
        rows = []
        for place, load in enumerate(self.loads):
            listed = min(LISTED, load.per_second) if self.workers else 0
            for count in range(number * listed, (number + 1) * listed):
                worker = count % self.workers
                fails = worker == self.bad_worker or count * 37 % 100 < 100 * load.failed_share
                text = f"ValueError: bad {'abcdefghij'[count // self.workers % load.messages]}" if fails else ""
                micros = int(load.seconds * 1e6)
                rows.append(
                    [
                        f"{place:016x}{count:016x}",
                        "exception" if fails else "done",
                        load.name,
                        f"grid-{worker}",
                        1,
                        at,
                        micros,
                        int(micros * load.inputs_share),
                        10 * 2**20 if load.inputs_share else 0,
                        text,
                        int(load.ran),
                        at - load.seconds,
                    ]
                )
        return {"at": at, "tasks": {"columns": COLUMNS, "rows": rows}}
