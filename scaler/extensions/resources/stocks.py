"""Counted resources that assigned tasks occupy: memory, GPUs, other capabilities, and cluster limits. Pure.

A `Stock` is one resource of one worker, the memory shared by a host's workers, or a cluster limit. Amounts are
integers, in thousandths (`needs.UNITS_PER_ONE`). A stock may be reserved for a queue; otherwise, a stream of smaller
tasks could starve a larger one.

Invariant: `used` is the sum of the tasks' claims, and never exceeds `total`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from scaler.needs import CPUS, GPU, MEMORY, UNITS_PER_ONE, Needs
from scaler.protocol.messages import WorkerDetails
from scaler.scheduler.core.ready import ReadyQueue
from scaler.scheduler.core.resources import Claims, offers_of

MAX_GPUS = 256
"""Maximum GPUs per worker, because an index is one byte."""


@dataclass(slots=True, eq=False)
class Stock:
    """One counted resource. workers: number of workers that share it."""

    total: int
    used: int = 0
    workers: int = 0
    kept_for: ReadyQueue | None = None

    @property
    def free(self) -> int:
        return self.total - self.used

    def count(self, amount: int) -> int:
        return max(0, self.total - self.used) // amount

    def room(self, amount: int, queue: ReadyQueue | None) -> int:
        """Return how many tasks of a queue can claim this amount. Amounts reserved for other queues are excluded."""
        return 0 if self.is_kept_from(queue) else self.count(amount)

    def is_kept_from(self, queue: ReadyQueue | None) -> bool:
        return self.kept_for is not None and (queue is None or not queue.may_pass(self.kept_for))

    def claim(self, amount: int, reported: tuple[int, ...] | None = None) -> tuple[int, ...]:
        """Claim an amount. Returns the indexes of its devices. reported: devices that the task already has."""
        del reported
        self.used += amount
        return ()

    def release(self, amount: int, devices: tuple[int, ...]) -> None:
        del devices
        self.used -= amount


@dataclass(slots=True, eq=False)
class GpuStock(Stock):
    """GPUs, device by device. A task claims whole devices, or a part of a shared device."""

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
        """Claim a part of the fullest device with enough capacity, or the first free devices."""
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


@dataclass(slots=True, eq=False)
class LimitStock(Stock):
    """A cluster limit. A reservation covers one task or gang of its queue. is_open: whether tasks may start."""

    name: str = ""
    is_open: bool = False

    def room(self, amount: int, queue: ReadyQueue | None) -> int:
        kept = 0
        if self.kept_for is not None and self.is_kept_from(queue):
            needs = self.kept_for.needs
            kept = dict(needs.claims)[self.name] * max(1, needs.gang_size)
        return max(0, self.free - kept) // amount if self.is_open else 0


@dataclass(slots=True, eq=False)
class CountedClaims(Claims):
    """stocks: finite amounts that the worker offers, and cluster limits. shared_memory: memory shared with other
    workers of the host, or None. limits: the cluster's limits."""

    shared_memory: Stock | None
    limits: Mapping[str, LimitStock]
    stocks: dict[str, Stock] = field(init=False)

    def __post_init__(self) -> None:
        # Labels and unknown memory are not counted.
        self.stocks = {**self.limits}
        for name, total in self.offers.amounts.items():
            if total != math.inf and name != CPUS:
                self.stocks[name] = (GpuStock if name == GPU else Stock)(round(total * UNITS_PER_ONE))
        if self.shared_memory is not None:
            self.stocks[MEMORY] = self.shared_memory

    def count(self, needs: Needs, queue: ReadyQueue | None, /) -> int:
        room = sys.maxsize
        for name, amount in needs.claims:
            stock = self.stocks.get(name)
            if stock is not None:
                room = min(room, stock.room(amount, queue))
        return room

    def is_kept_for(self, queue: ReadyQueue) -> bool:
        return self.reserved is queue or any(
            stock.kept_for is queue for name, stock in self.stocks.items() if name not in self.limits
        )

    def _take(self, needs: Needs, reported: tuple[int, ...] | None) -> tuple[int, ...]:
        devices: tuple[int, ...] = ()
        for name, amount in needs.claims:
            if name in self.stocks:
                devices += self.stocks[name].claim(amount, reported)
        return devices

    def _give_back(self, needs: Needs, devices: tuple[int, ...]) -> None:
        for name, amount in needs.claims:
            if name in self.stocks:
                self.stocks[name].release(amount, devices)


class MemoryPools:
    def __init__(self) -> None:
        self._stocks: dict[tuple[str, str], Stock] = {}

    def join(self, host: str, details: WorkerDetails) -> Stock | None:
        """Return the memory that a new worker shares with other workers on its host, or None."""
        if MEMORY in details.capabilities or not details.memory_bytes or not details.memory_pool:
            return None
        stock = self._stocks.setdefault((host, details.memory_pool), Stock(0))
        stock.total = max(stock.total, round(offers_of(details).amounts[MEMORY]) * UNITS_PER_ONE)
        stock.workers += 1
        return stock

    def leave(self, host: str, details: WorkerDetails) -> None:
        key = host, details.memory_pool
        stock = self._stocks.get(key)
        if stock is not None:
            stock.workers -= 1
            if not stock.workers:
                del self._stocks[key]
