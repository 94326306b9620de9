"""The scheduler part: counts resources that tasks occupy, and reserves them for large tasks. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from scaler.capabilities import amount_text
from scaler.extensions.resources.cluster_limits import Limits
from scaler.extensions.resources.stocks import CountedClaims, MemoryPools, Stock
from scaler.needs import CPUS, UNITS_PER_ONE
from scaler.scheduler.core.ready import ReadyQueue
from scaler.scheduler.core.resources import Claims, emptiest
from scaler.scheduler.core.state import Worker

RESERVE_AFTER_SECONDS = 1.0
FIRST_SECONDS = 10.0
MAX_QUEUES = 64


class Reservation(NamedTuple):
    worker: Worker
    stocks: list[Stock]
    until: float
    is_partial: bool
    """The reservation covers only cluster limits, because these or the key's maximum had no room."""


@dataclass(slots=True)
class Shortage:
    """since: when a queue's first task first found no capacity. seconds: duration of the queue's next reservation."""

    since: float
    seconds: float = FIRST_SECONDS


class Counted(Limits):
    """Counts resources, and reserves capacity for large tasks, which a stream of smaller tasks could otherwise starve.

    If the first task of a queue finds no room for `RESERVE_AFTER_SECONDS`, or for its usual duration, the queue
    reserves room on one worker. No task of the same or a lower rank may use this room. A reservation ends when a task
    of the queue is placed or at a time limit, because reserved capacity is idle. The limit doubles each time, until it
    exceeds the duration of any task in the way. After each reservation, the capacity is open to other tasks for as
    long. A queue that waits for a cluster limit or for its key's maximum reserves no other resources. A queue that
    waits only for a slot reserves a slot at once, because its tasks are not prefetched.

    Invariant: a worker or stock is reserved exactly for the queues in `reservations`, and a queue has at most one.
    """

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.reservations: dict[ReadyQueue, Reservation] = {}
        self._short: dict[ReadyQueue, Shortage] = {}
        self._memory = MemoryPools()

    # -- workers

    def joined(self, worker: Worker) -> Claims:
        return CountedClaims(worker.offers, worker.slots, self._memory.join(worker.host, worker.details), self.limits)

    def left(self, worker: Worker) -> None:
        for queue in [queue for queue, each in self.reservations.items() if each.worker is worker]:
            self._release(queue)
        if isinstance(worker.claims, CountedClaims) and worker.claims.shared_memory is not None:
            self._memory.leave(worker.host, worker.details)

    # -- reservations

    def reserves(self, queue: ReadyQueue, placed: int, now: float, waits: bool, /) -> bool:
        if placed:
            self._release(queue)
        if not waits:
            if placed:
                self._short.pop(queue, None)
            return False
        short = self._short.get(queue)
        if short is None:
            short = self._short[queue] = Shortage(now)
            for ended in [each for each in self._short if not each.total and each not in self.reservations]:
                del self._short[ended]
        is_short = self._is_short(queue)
        if queue in self.reservations:
            return self.reservations[queue].is_partial and not is_short
        is_quick = queue.needs.is_limited and not is_short and self.has_only_limits(queue.needs)
        is_due = now - short.since >= (0 if is_quick else _patience(queue))
        return is_due and len(self.reservations) < MAX_QUEUES

    def _is_short(self, queue: ReadyQueue) -> bool:
        """Return whether a cluster limit or the key's maximum has no room for the first task. True for gangs, whose
        other resources are not reserved here."""
        first = queue.first()
        return (
            bool(queue.needs.gang)
            or not self.room(queue)
            or first is None
            or not self.cluster.ready.turns.wanted(first.group)
        )

    def reserve(self, queue: ReadyQueue, workers: Sequence[Worker], now: float) -> Worker | None:
        needs = queue.needs
        self._release(queue)
        is_short = self._is_short(queue)
        claims = [claim for claim in needs.claims if not is_short or claim[0] in self.limits]
        candidates: list[tuple[float, bool, float, Worker, list[Stock]]] = []
        for worker in workers:
            known = worker.claims.stocks if isinstance(worker.claims, CountedClaims) else {}
            stocks = [(known[name], amount) for name, amount in claims if name in known]
            if worker.claims.reserved is not None or any(stock.kept_for is not None for stock, _ in stocks):
                continue
            missing = max([(amount - stock.free) / amount for stock, amount in stocks], default=0.0)
            has_own = any(each == needs for each, _ in worker.claims.by_task.values())
            load = worker.load / worker.slots
            candidates.append((max(0.0, missing), has_own, load, worker, [stock for stock, _ in stocks]))
        if not candidates:
            self._short[queue].since = now  # compare all workers again later, not in every step
            return None
        *_, worker, stocks_of = min(candidates, key=lambda each: each[:3])
        if not is_short and (needs.is_limited or needs.width(worker.offers, worker.slots) > 1):
            worker.claims.reserve(queue)
        for stock in stocks_of:
            stock.kept_for = queue
        self.reservations[queue] = Reservation(worker, stocks_of, now + self._short[queue].seconds, is_short)
        return worker

    def expire(self, now: float) -> None:
        for queue, (worker, _, until, _) in list(self.reservations.items()):
            if not queue.total:
                self._release(queue)
                self._short.pop(queue, None)
            elif now >= until or not worker.is_willing:
                self._release(queue)
                # Open the capacity to other tasks for as long as the reservation lasted.
                short = self._short[queue]
                short.since = now + short.seconds - _patience(queue)
                short.seconds *= 2

    def _release(self, queue: ReadyQueue) -> None:
        reservation = self.reservations.pop(queue, None)
        if reservation is not None:
            if reservation.worker.claims.reserved is queue:
                reservation.worker.claims.reserve(None)
            for stock in reservation.stocks:
                stock.kept_for = None

    # -- explanation

    def shortage(self, queue: ReadyQueue, willing: Sequence[Worker]) -> str:
        needs = queue.needs
        alone = super().shortage(queue, willing)
        if not alone or not self.room(queue):
            return ""
        known = [(each.claims.stocks, each) for each in willing if isinstance(each.claims, CountedClaims)]
        for name, amount in needs.claims:
            stocks = [(by_name[name], each) for by_name, each in known if name in by_name]
            if len(stocks) == len(willing) and not any(stock.room(amount, queue) for stock, _ in stocks):
                stock, worker = max(stocks, key=lambda pair: pair[0].free)
                free = amount_text(name, max(0, stock.free) / UNITS_PER_ONE)
                return (
                    f"it waits for {amount_text(name, amount / UNITS_PER_ONE)}; "
                    f"worker {worker.title} has {free} free{_kept(stock.kept_for, queue)}"
                )
        worker = emptiest(willing)
        kept = _kept(worker.claims.reserved, queue)
        if needs.is_alone:
            return f"{alone}{kept}"
        if needs.cpus:
            share = worker.offers.amounts.get(CPUS, worker.slots) / worker.slots
            cpus = max(0.0, worker.slots - worker.busy - worker.claims.extra) * share
            return (
                f"it waits for {amount_text(CPUS, needs.cpus)}; "
                f"worker {worker.title} has {amount_text(CPUS, cpus)} free{kept}"
            )
        return "it waits until one worker has all needed resources free at once"


def _patience(queue: ReadyQueue) -> float:
    first = queue.first()
    timing = None if first is None else first.group.timing
    return min(RESERVE_AFTER_SECONDS, timing.seconds) if timing and timing.measured else RESERVE_AFTER_SECONDS


def _kept(reserved: ReadyQueue | None, queue: ReadyQueue) -> str:
    if reserved is None:
        return ""
    whose = "it" if reserved is queue else f"tasks that need {reserved.needs}"
    return f", and freed capacity there is reserved for {whose}"
