"""Reservations of room for large tasks, so that a stream of smaller tasks cannot starve them. Pure.

If the first task of a queue finds no room for `RESERVE_AFTER_SECONDS`, the queue reserves room on one worker, which no
task of the same or a lower rank may use. A reservation ends when a task of the queue is placed, or at a time limit,
because reserved room is idle. The limit doubles each time, until it exceeds the duration of any task in the way.
Between reservations, other tasks get as much time.

Invariant: a worker or stock is reserved exactly for the queues in `by_queue`, and a queue has at most one reservation.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from scaler.scheduler.core.ready import ReadyQueue
from scaler.scheduler.core.resources import Stock
from scaler.scheduler.core.state import Worker

RESERVE_AFTER_SECONDS = 1.0
FIRST_SECONDS = 10.0
MAX_QUEUES = 64


class Reservation(NamedTuple):
    worker: Worker
    stocks: list[Stock]
    until: float


class Reservations:
    def __init__(self) -> None:
        self.by_queue: dict[ReadyQueue, Reservation] = {}

    def due(self, queue: ReadyQueue, placed: int, now: float) -> bool:
        """Record the result of a pass over a queue of counted tasks. Returns whether a reservation is due."""
        if placed:
            self._release(queue)
            queue.short_since = None
            queue.reserve_seconds = 0.0
            return False
        if queue.short_since is None:
            queue.short_since = now
            queue.reserve_seconds = queue.reserve_seconds or FIRST_SECONDS
        waited = now - queue.short_since
        return waited >= RESERVE_AFTER_SECONDS and queue not in self.by_queue and len(self.by_queue) < MAX_QUEUES

    def reserve(self, queue: ReadyQueue, workers: Iterable[Worker], now: float) -> Worker | None:
        """Reserve the needs of a queue's first task on one of these workers. Returns the worker, or None."""
        needs = queue.needs
        best: tuple[float, int, float, Worker, list[Stock]] | None = None
        for number, worker in enumerate(workers):
            known = worker.claims.stocks
            stocks = [(known[name], amount) for name, amount in needs.claims if name in known]
            if worker.reserved is not None or any(stock.kept_for is not None for stock, _ in stocks):
                continue
            missing = max([(amount - stock.free) / amount for stock, amount in stocks], default=0.0)
            found = max(0.0, missing), number, worker.load / worker.slots, worker, [stock for stock, _ in stocks]
            if best is None or (found[0], found[2]) < (best[0], best[2]):
                best = found
        if best is None:
            queue.short_since = now  # compare all workers again later, not in every step
            return None
        worker, stocks_of = best[3], best[4]
        if needs.width(worker.offers, worker.slots) > 1:
            worker.reserve(queue)
        for stock in stocks_of:
            stock.kept_for = queue
        self.by_queue[queue] = Reservation(worker, stocks_of, now + queue.reserve_seconds)
        return worker

    def expire(self, now: float) -> None:
        for queue, (worker, _, until) in list(self.by_queue.items()):
            if not queue.total:
                self._release(queue)
                queue.short_since = None
            elif now >= until or not worker.is_willing:
                self._release(queue)
                # Other tasks get as much time as the reservation had.
                queue.short_since = now + queue.reserve_seconds - RESERVE_AFTER_SECONDS
                queue.reserve_seconds *= 2

    def drop(self, worker: Worker) -> None:
        for queue in [queue for queue, each in self.by_queue.items() if each.worker is worker]:
            self._release(queue)

    def _release(self, queue: ReadyQueue) -> None:
        reservation = self.by_queue.pop(queue, None)
        if reservation is not None:
            if reservation.worker.reserved is queue:
                reservation.worker.reserve(None)
            for stock in reservation.stocks:
                stock.kept_for = None
