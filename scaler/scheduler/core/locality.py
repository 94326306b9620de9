"""Which store a task should run near: the one that has most of its input bytes, unless waiting costs more. Pure.

A store keeps the objects of one host (0: the object storage), and every worker uses one. A task whose inputs are large
prefers the store that has most of their bytes, and lies in the ready queue of that store. A worker takes first from the
queue of its own store, then tasks that prefer none, then those of other stores, when waiting there is estimated to
take longer than moving the bytes here: by the measured rate between the stores and the measured times of tasks.

Tasks of better ranks go first wherever they lie, and tasks of different clients in turns.

Law: a worker of the store that a ready task prefers fits its needs. When the last such worker leaves, the task may run
anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from scaler.ids import is_task
from scaler.needs import Needs
from scaler.protocol.messages import is_stored
from scaler.scheduler.core.data.directory import Directory
from scaler.scheduler.core.data.largest import Copies
from scaler.scheduler.core.data.rates import Rates
from scaler.scheduler.core.ready import ReadyQueue, ReadyQueues
from scaler.scheduler.core.state import Task, Worker

MIN_INPUT_BYTES = 1024 * 1024
"""Tasks with smaller inputs run anywhere, and so do those for which the stores differ by less."""
SIMILAR = 0.9
"""Stores that have this part of what the best one has are as good: the one with the fewest tasks is preferred."""
MAX_HOLDERS = 64
"""An object that more stores have is near everywhere."""
MAX_WORKERS_COMPARED = 16
"""Workers of one store that an estimate looks at."""
MAX_STORES_COMPARED = 8
"""Stores whose tasks are compared for workers of other stores, in one step and for one requirement."""
MAX_SOURCES_COMPARED = 4
MAX_MOVED = 16
"""Workers that one pass asks to take tasks that prefer other stores."""
MAX_AHEAD = 10_000
"""Tasks before another one that an explanation counts."""
WORTH_MOVING_SECONDS = 0.003
"""A task that starts sooner than this is left where it is: moving it takes as long."""
PERIOD_SECONDS = 0.005
MAX_COMPARISONS = 48
"""How often, in that time, waiting is compared with moving: each takes about 10 us."""
MARGIN = 1.25
"""What was sent is asked back when waiting takes this much longer than moving: estimates vary."""


@dataclass(slots=True, eq=False)
class HostStore:
    """A store that workers use, which have total_slots together."""

    number: int
    workers: dict[Worker, None] = field(default_factory=dict)
    total_slots: int = 0

    @property
    def host(self) -> str:
        """The name of the host that the store is on."""
        return next(iter(self.workers)).host

    def fits(self, needs: Needs) -> bool:
        """Tell whether one of its workers may run tasks with these needs. O(workers)."""
        return any(needs.fits(worker.offers) for worker in self.workers)


class Choice(NamedTuple):
    """A task waits for a slot near the store that it prefers, or its inputs are moved elsewhere."""

    host: str
    near_bytes: int
    """What the store on this host has of the inputs."""
    total_bytes: int
    waiting_seconds: float
    moving_seconds: float
    bytes_per_second: float


class Locality:
    """The stores that workers use, and what they mean for placement."""

    def __init__(self, ready: ReadyQueues, directory: Directory, rates: Rates) -> None:
        self._directory = directory
        self._rates = rates
        self.stores: dict[int, HostStore] = {}
        self.is_spread = False
        """Workers use more than one store. Until then, no task prefers any, and nothing here costs anything."""
        self.due: dict[int, None] = {}
        """Stores whose queues may have tasks for workers of theirs with credit."""
        self._ready = ready
        self.again_at: float | None = None
        """When to go on with comparisons; None: there was time for all."""
        self._period_ends_at = -math.inf
        self._comparisons_left = 0
        self._compared: dict[ReadyQueue, list[tuple[int, float]]] = {}
        """Of this pass: see `_waits`."""

    # -- workers

    def join(self, worker: Worker) -> None:
        """Add a worker that uses the store `worker.store`."""
        store = self.stores.get(worker.store)
        if store is None:
            store = self.stores[worker.store] = HostStore(worker.store)
            self.is_spread = len(self.stores) > 1
        store.workers[worker] = None
        store.total_slots += worker.slots

    def leave(self, worker: Worker) -> None:
        """Remove a worker; tasks that no other worker of its store fits may run anywhere."""
        store = self.stores[worker.store]
        del store.workers[worker]
        store.total_slots -= worker.slots
        if not store.workers:
            del self.stores[store.number]
            self.due.pop(store.number, None)
            self.is_spread = len(self.stores) > 1
            self.again_at = None
        for queue in self._ready.queues.values():
            if store.number in queue.stores and not store.fits(queue.needs):
                queue.forget_store(store.number)

    def use_store(self, worker: Worker, store: int) -> None:
        """Note which store a worker uses from now on."""
        if worker.store == store:
            return
        self.leave(worker)
        worker.use_store(store)
        self.join(worker)

    # -- tasks

    def preferred(self, task: Task, now: float) -> int | None:
        """Return the store that a task with references prefers; None: it runs anywhere. O(references)."""
        near, _ = self._near(task)
        if max(near.values(), default=0) < MIN_INPUT_BYTES:
            return None
        if task.errors is not None and now < task.errors.avoid_until:
            return None  # it waits for another worker, wherever that is
        needs, stores = task.needs, self.stores
        here = {number: size for number, size in near.items() if number in stores and stores[number].fits(needs)}
        best = max(here.values(), default=0)
        least = min(here.values()) if len(here) == len(stores) else 0
        if best - least < MIN_INPUT_BYTES:
            return None
        similar = [number for number, size in here.items() if size >= SIMILAR * best]
        number = similar[0] if len(similar) == 1 else min(similar, key=self._crowding)
        self.due[number] = None
        return number

    def _near(self, task: Task) -> tuple[dict[int, int], int]:
        """Return how many bytes of its inputs each store has, and how many there are in all, as far as is known."""
        near: dict[int, int] = {}
        total = 0
        for held in self._inputs(task):
            size = held.size_bytes
            total += size
            if len(held.holders) <= MAX_HOLDERS:
                for store in held.holders:
                    near[store] = near.get(store, 0) + size
        return near, total

    def _inputs(self, task: Task) -> Iterator[Copies]:
        retained, find = task.group.client.retained, self._directory.find
        for reference in task.references:
            identifier = reference
            if is_task(reference):
                result = retained.get(reference)
                if result is None or not is_stored(result.payload):
                    continue
                identifier = result.payload[1:17]
            held = find(identifier)
            if held is not None:
                yield held

    def _crowding(self, number: int) -> float:
        """Return how many tasks a store has per slot, about."""
        store = self.stores[number]
        compared = list(islice(store.workers, MAX_WORKERS_COMPARED))
        busy = sum(worker.busy for worker in compared) / sum(worker.slots for worker in compared)
        queued = sum(queue.stores[number].count for queue in self._ready.queues.values() if number in queue.stores)
        return busy + queued / store.total_slots

    # -- waiting and moving

    def may_compare(self, task: Task, now: float) -> bool:
        """Return whether there is time to compare, for a task, waiting with moving."""
        if now >= self._period_ends_at:
            self._period_ends_at, self._comparisons_left, self.again_at = now + PERIOD_SECONDS, MAX_COMPARISONS, None
        if self._comparisons_left <= 0:
            self.again_at = self._period_ends_at
            return False
        self._comparisons_left -= 1 + len(task.references) // 8
        return True

    def _wait(self, number: int, needs: Needs, now: float) -> float:
        """Return how long a store's workers take until one has a free slot, about; infinite: none takes tasks."""
        soonest = math.inf
        for worker in islice(self.stores[number].workers, MAX_WORKERS_COMPARED):
            if worker.is_willing and needs.fits(worker.offers):
                has_room = not needs.is_counted or worker.count(needs) > 0
                soonest = min(soonest, 0.0 if has_room and worker.busy < worker.slots else _until_free(worker, now))
        return soonest

    def _moving(self, task: Task, store: int, near: int) -> float:
        """Return how much longer it takes to bring the inputs of a task to a store than to another one. Seconds."""
        return sum(self._fetching(held, store) - self._fetching(held, near) for held in self._inputs(task))

    def _fetching(self, held: Copies, store: int) -> float:
        if store in held.holders or not held.holders:
            return 0.0
        rate = max(self._rates.between(store, each) for each in islice(held.holders, MAX_SOURCES_COMPARED))
        return held.size_bytes / rate

    def nearest(self, workers: Sequence[Worker], idle: Worker) -> list[Worker]:
        """Return the same workers, those of an idle worker's store first."""
        return sorted(workers, key=lambda worker: worker.store != idle.store) if self.is_spread else list(workers)

    def may_move(self, task: Task, worker: Worker, idle: Worker, behind: int, now: float) -> bool:
        """Return whether a task that waits at a worker should go to an idle one. behind: how many wait after it."""
        there = _until_free(worker, now, behind + 1)
        more = self._moving(task, idle.store, worker.store)
        if more > 0 and there > MARGIN * more + WORTH_MOVING_SECONDS:
            there = min(there, self._wait(worker.store, task.needs, now))
        return more <= 0 or there > MARGIN * more + WORTH_MOVING_SECONDS

    def choice(self, task: Task, now: float) -> Choice | None:
        """Return what a ready task that prefers a store has to choose between; None: it prefers none."""
        queue = self._ready.of(task.needs)
        number = queue.preferred.get(task)
        if number is None:
            return None
        near, total = self._near(task)
        ahead = queue.before(task, MAX_AHEAD) * task.group.timing.seconds / self.stores[number].total_slots
        others = [each for each in islice(self.stores, MAX_STORES_COMPARED) if each != number]
        moving, other = min((self._moving(task, each, number), each) for each in others)
        return Choice(
            self.stores[number].host,
            near.get(number, 0),
            total,
            self._wait(number, queue.needs, now) + ahead,
            max(0.0, moving),
            self._rates.between(other, number),
        )

    # -- which task a worker takes

    def take(self, queue: ReadyQueue, worker: Worker, now: float) -> Task | None:
        """Take the task of a queue with such tasks that a worker should run next; None: each should run elsewhere."""
        queue.contested = None
        own = queue.stores.get(worker.store)
        if own is not None and self._goes_first(own, queue, own.first(), is_own=True):
            return queue.take_preferring(worker.store)
        found = self._movable(queue, worker, now) if own is None else None
        if found is not None:
            number, task, is_last = found
            if self._goes_first(queue.stores[number], queue, task, is_own=False):
                return queue.take_preferring(number, is_last=is_last)
        return queue.take()

    @staticmethod
    def _goes_first(preferring: ReadyQueue, queue: ReadyQueue, task: Task | None, *, is_own: bool) -> bool:
        """Return whether a task that prefers a store goes before those that prefer none.

        The better rank does. Otherwise tasks of different clients go in turns, and of one client those near the worker.
        """
        other = queue.first() if queue.count else None
        if task is None or other is None:
            return task is not None
        if task.group.rank != other.group.rank:
            return task.group.rank < other.group.rank
        if task.group.client is other.group.client:
            return is_own
        queue.contested = preferring
        preferring.had_turn = not preferring.had_turn
        return preferring.had_turn

    def _movable(self, queue: ReadyQueue, worker: Worker, now: float) -> tuple[int, Task, bool] | None:
        """Return a task of another store that should move to this worker: its store, and whether it is the last there.

        As a rule that is the last one, which would wait longest; the first one if it would wait too long as well.
        """
        here = 0.0 if worker.busy < worker.slots else _until_free(worker, now)
        is_kept = worker.reserved is queue or any(stock.kept_for is queue for stock in worker.stocks.values())
        for number, wait in self._waits(queue, now):
            last = queue.stores[number].last() if number in queue.stores and number != worker.store else None
            if last is None or not self.may_compare(last, now):
                continue
            first, there = queue.stores[number].first(), math.inf if is_kept else wait - here
            behind = (queue.stores[number].count - 1) * last.group.timing.seconds / self.stores[number].total_slots
            if there + behind > self._moving(last, worker.store, number) + WORTH_MOVING_SECONDS:
                is_first = first is not None and there > self._moving(first, worker.store, number)
                return (number, first, False) if first is not None and is_first else (number, last, True)
        return None

    def _waits(self, queue: ReadyQueue, now: float) -> list[tuple[int, float]]:
        """Return some of the stores that tasks of a queue prefer, with the estimated wait there, the longest first.

        Each pass looks at others.
        """
        found = self._compared.get(queue)
        if found is None:
            numbers = list(islice(queue.stores, MAX_STORES_COMPARED))
            if len(queue.stores) > MAX_STORES_COMPARED:
                for number in numbers:
                    queue.stores[number] = queue.stores.pop(number)
            waits = [(number, self._wait(number, queue.needs, now)) for number in numbers]
            found = self._compared[queue] = sorted(waits, key=lambda row: -row[1])
        return found

    def end_pass(self, now: float) -> None:
        """Note that all queues were offered: only stores with tasks and with workers that have credit stay due."""
        self._compared.clear()
        if now >= self._period_ends_at:
            self.again_at = None
        queues = [queue for queue in self._ready.queues.values() if queue.preferred]
        for number in list(self.due):
            store = self.stores.get(number)
            has_tasks = any(number in queue.stores for queue in queues)
            if store is None or not has_tasks or all(worker.side is None for worker in store.workers):
                del self.due[number]


def _until_free(worker: Worker, now: float, without: int = 0) -> float:
    """Return how long a worker without a free slot takes to have one for another task, about.

    By the measured times of its tasks and by when it finished the last one. When that was longer ago than it should be,
    it takes as long again. without: tasks that wait there last, and are not counted.
    """
    busy = worker.busy
    if not busy:
        return 0.0
    ends = max(1, busy - without - worker.slots + 1)
    elapsed = max(0.0, now - worker.progressed_at)
    seconds = worker.load / busy * ends / worker.slots - elapsed
    return seconds if seconds > 0 else elapsed
