"""Splits the costs of units over their tasks by slots. Slots without a task are idle. Pure.

Invariants: the shares and `idle` add up to the total. A unit with all slots busy adds nothing to `idle`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from scaler.scheduler.core.state import Group, Worker

MAX_SHARES = 1_000
SPLIT_SECONDS = 1.0
OTHERS = "(others)"
"""Client and function of the merged smallest shares of a key."""


class Payer(NamedTuple):
    key: str
    client: str
    function: str


IDLE = Payer("", "", "(idle)")
UNKNOWN = Payer("", OTHERS, OTHERS)
"""Payer of costs from before shares were kept, and of surplus keys."""


@dataclass(slots=True)
class CostShares:
    by_payer: dict[Payer, float] = field(default_factory=dict)
    idle: float = 0.0

    @property
    def total(self) -> float:
        return math.fsum(self.by_payer.values()) + self.idle

    def add(self, amount: float, slots: float, taken: Mapping[Payer, float]) -> None:
        """Split the cost of a unit. taken: number of its slots that each payer's tasks use."""
        whole = max(slots, math.fsum(taken.values()))
        if not taken or whole <= 0:
            self.idle += amount
            return
        left = amount
        for payer, weight in taken.items():
            share = amount * weight / whole
            self.by_payer[payer] = self.by_payer.get(payer, 0.0) + share
            left -= share
        self.idle += max(0.0, left)
        if len(self.by_payer) > MAX_SHARES:
            self._merge()

    def _merge(self) -> None:
        """Merge the smallest half of the shares by key. Halving keeps merges rare."""
        ranked = sorted((payer for payer in self.by_payer if payer.function != OTHERS), key=self.by_payer.__getitem__)
        self._into(ranked[: MAX_SHARES // 2], lambda payer: Payer(payer.key, OTHERS, OTHERS))
        if len(self.by_payer) > MAX_SHARES:
            self._into([payer for payer in self.by_payer if payer.function == OTHERS], lambda _payer: UNKNOWN)

    def _into(self, payers: Iterable[Payer], target: Callable[[Payer], Payer]) -> None:
        for payer in payers:
            merged = target(payer)
            self.by_payer[merged] = self.by_payer.pop(payer) + self.by_payer.get(merged, 0.0)

    def to_json(self) -> list[list[str | float]]:
        return [[*payer, amount] for payer, amount in self.by_payer.items()]

    def restore(self, rows: Iterable[tuple[str, str, str, float]] | None, run: float) -> None:
        """Restore from `to_json`, or from None (an older scheduler). run: total cost. The unsplit rest is idle."""
        known = [(UNKNOWN, run)] if rows is None else [(Payer(*map(str, who)), float(sum_)) for *who, sum_ in rows]
        self.by_payer = {payer: amount for payer, amount in known if amount > 0}
        self.idle = max(0.0, run - math.fsum(self.by_payer.values()))


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
