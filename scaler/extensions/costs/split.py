"""Splits the costs of units over their running tasks, once a second, by sampling each charged worker."""

from __future__ import annotations

import math
from itertools import islice

from scaler.extensions.costs.shares import CostShares, Payer
from scaler.scheduler.core.state import Group, Worker

SPLIT_SECONDS = 1.0


class CostSplit:
    """Collects unit costs by worker. Invariant: collected costs are split within a second."""

    def __init__(self) -> None:
        self._amounts: dict[Worker | None, float] = {}
        self._by_task: set[Worker] = set()
        self._next = -math.inf

    def collect_tasks(self, worker: Worker, amount: float) -> None:
        """Add the cost of a worker's tasks. Free slots cost nothing here."""
        self._by_task.add(worker)
        self.collect(worker, amount)

    def collect(self, worker: Worker | None, amount: float) -> None:
        """Add the cost of a unit. worker: None before the unit's worker has joined and after it has left."""
        if amount > 0:
            self._amounts[worker] = self._amounts.get(worker, 0.0) + amount

    def step(self, shares: CostShares, now: float) -> None:
        if now < self._next or not self._amounts:
            return
        self._next = now + SPLIT_SECONDS
        payers: dict[Group, Payer] = {}
        for worker, amount in self._amounts.items():
            if worker is None:
                shares.add(amount, 1, {})
            else:
                shares.add(amount, 0 if worker in self._by_task else worker.slots, _taken(worker, payers))
        self._amounts.clear()
        self._by_task.clear()


def _taken(worker: Worker, payers: dict[Group, Payer]) -> dict[Payer, float]:
    taken: dict[Payer, float] = {}
    running = (task for task in worker.tasks.values() if task.id not in worker.blocked)
    for task in islice(running, worker.slots):
        group = task.group
        payer = payers.get(group)
        if payer is None:
            payer = payers[group] = payer_of(group)
        slots = group.needs.slots_taken(worker.offers, worker.slots) if group.needs.is_counted else 1.0
        taken[payer] = taken.get(payer, 0.0) + slots
    return taken


def payer_of(group: Group) -> Payer:
    client = group.client
    # A durable session's client name contains its host, which changes.
    name = f"session {client.session.name}" if client.session is not None else client.name
    return Payer(client.identity.key, name[:200], group.spec.name[:200])
