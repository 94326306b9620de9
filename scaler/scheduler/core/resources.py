"""What is counted of a worker: memory and gpus that its tasks take while they are assigned to it. Pure.

A `Stock` is one resource of one worker, or the memory of a host that its workers share. All amounts are integers, in
thousandths (`needs.UNITS_PER_ONE`). A stock may be reserved for the queue of a task that would otherwise wait behind an
endless stream of smaller ones.

Law: `used` is the sum of what the tasks that are here have claimed, and is never more than `total`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol

from scaler.needs import GPU, MEMORY, UNITS_PER_ONE, Needs, Offers
from scaler.protocol.messages import WorkerDetails

MAX_GPUS = 256
"""Of one worker: an index is one byte. More are not counted."""


class Queue(Protocol):
    """Ready tasks with the same needs: a `ReadyQueue`, which knows tasks and so workers."""

    needs: Needs

    @property
    def total(self) -> int: ...
    @property
    def first_rank(self) -> tuple[int, int]: ...
    def may_pass(self, other: Queue) -> bool: ...


@dataclass(slots=True, eq=False)
class Stock:
    """One counted resource. workers: how many share it."""

    total: int
    used: int = 0
    workers: int = 0
    kept_for: Queue | None = None

    @property
    def free(self) -> int:
        return self.total - self.used

    def count(self, amount: int) -> int:
        """Return how many tasks that take this amount find room now."""
        return max(0, self.total - self.used) // amount

    def claim(self, amount: int, reported: tuple[int, ...] | None = None) -> tuple[int, ...]:
        """Take an amount. Returns the indexes of the devices that it consists of. reported: which it has already."""
        del reported
        self.used += amount
        return ()

    def release(self, amount: int, devices: tuple[int, ...]) -> None:
        del devices
        self.used -= amount


@dataclass(slots=True, eq=False)
class GpuStock(Stock):
    """Gpus, device by device: a task takes whole ones, or a part of one that others may share."""

    left: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.left = [UNITS_PER_ONE] * min(MAX_GPUS, self.total // UNITS_PER_ONE)
        if self.total % UNITS_PER_ONE and len(self.left) < MAX_GPUS:
            self.left.append(self.total % UNITS_PER_ONE)

    def count(self, amount: int) -> int:
        if amount < UNITS_PER_ONE:
            return sum(max(0, left) // amount for left in self.left)
        return self.left.count(UNITS_PER_ONE) // -(-amount // UNITS_PER_ONE)

    def claim(self, amount: int, reported: tuple[int, ...] | None = None) -> tuple[int, ...]:
        """Take the fullest device that has room for a part, or the first free ones."""
        if reported is not None:
            devices = tuple(index for index in reported if index < len(self.left))
        elif amount < UNITS_PER_ONE:
            _, index = min((left, index) for index, left in enumerate(self.left) if left >= amount)
            devices = (index,)
        else:
            whole = [index for index, left in enumerate(self.left) if left == UNITS_PER_ONE]
            devices = tuple(whole[: -(-amount // UNITS_PER_ONE)])
        self._change(amount, devices)
        return devices

    def release(self, amount: int, devices: tuple[int, ...]) -> None:
        self._change(-amount, devices)

    def _change(self, amount: int, devices: tuple[int, ...]) -> None:
        each = max(-UNITS_PER_ONE, min(UNITS_PER_ONE, amount))
        for index in devices:
            self.left[index] -= each
        self.used += each * len(devices)


class MemoryPools:
    """Memory that workers share, by the name of their host and of the pool."""

    def __init__(self) -> None:
        self._stocks: dict[tuple[str, str], Stock] = {}

    def join(self, host: str, details: WorkerDetails) -> Stock | None:
        """Return the memory that a new worker shares with others of its host; None when it has its own."""
        if MEMORY in details.capabilities or not details.memory_bytes or not details.memory_pool:
            return None
        stock = self._stocks.setdefault((host, details.memory_pool), Stock(0))
        stock.total = max(stock.total, round(offers_of(details).amounts[MEMORY]) * UNITS_PER_ONE)
        stock.workers += 1
        return stock

    def leave(self, host: str, details: WorkerDetails) -> None:
        """Note that a worker has left."""
        key = host, details.memory_pool
        stock = self._stocks.get(key)
        if stock is not None:
            stock.workers -= 1
            if not stock.workers:
                del self._stocks[key]


def offers_of(details: WorkerDetails, worker: bytes = b"") -> Offers:
    """Return what a worker offers: its capabilities, its slots as cpus unless it names them, and its memory."""
    return Offers.of(details.capabilities, details.slots, details.memory_bytes or math.inf, worker)


def own_stocks(offers: Offers) -> dict[str, Stock]:
    """Return the stocks of a worker; a label, or memory that is not known, is not counted."""
    kinds = ((GPU, GpuStock), (MEMORY, Stock))
    totals = [(name, kind, offers.amounts.get(name, float("inf"))) for name, kind in kinds]
    return {name: kind(round(total * UNITS_PER_ONE)) for name, kind, total in totals if total != float("inf")}
