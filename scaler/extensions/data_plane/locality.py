"""Data locality: chooses the store near which a task should run. Pure.

A store keeps the objects of one host (0: the object storage), and every worker uses one store. A task with large inputs
prefers, and is queued for, the store that has most of the inputs' bytes. A worker takes its own store's tasks first,
then tasks without a preference, then tasks of other stores if waiting there would take longer than moving the bytes,
estimated by measured transfer rates and task times.

Tasks with a better rank run first, wherever they are queued, and clients take turns.

Invariant: at least one worker of the store that a ready task prefers fits the task. When the last such worker leaves,
the task may run anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import cast

from scaler.capabilities import bytes_text
from scaler.extensions.data_plane.directory import OBJECT_STORAGE, Copies, Directory
from scaler.extensions.data_plane.queues import NearQueue, OrderedQueue
from scaler.grammar import timed
from scaler.ids import is_task
from scaler.needs import Needs
from scaler.protocol.messages import is_stored
from scaler.scheduler.core.accounts import Rules
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.outbox import Outbox
from scaler.scheduler.core.placement import WORTH_MOVING_SECONDS
from scaler.scheduler.core.ready import ReadyQueues
from scaler.scheduler.core.state import Task, Worker
from scaler.scheduler.core.stores import Stores

MIN_INPUT_BYTES = 1024 * 1024
"""Tasks with smaller inputs, or with smaller differences between stores, run anywhere."""
SIMILAR = 0.9
"""Stores with at least this share of the best store's bytes count as equally good: the least loaded of them wins."""
MAX_HOLDERS = 64
"""An object in more stores than this counts as near everywhere."""
MAX_WORKERS_COMPARED = 16
MAX_STORES_COMPARED = 8
"""Maximum number of stores compared per step and requirement when workers take other stores' tasks."""
MAX_SOURCES_COMPARED = 4
MAX_AHEAD = 10_000
PERIOD_SECONDS = 0.005
MAX_COMPARISONS = 48
"""Maximum number of comparisons of waiting and moving per `PERIOD_SECONDS`. Each takes about 10 us."""
MARGIN = 1.25
"""A dispatched task is recalled only if waiting takes longer than moving by this factor, because estimates vary."""


@dataclass(slots=True, eq=False)
class HostStore:
    number: int
    workers: dict[Worker, None] = field(default_factory=dict)
    total_slots: int = 0

    @property
    def host(self) -> str:
        return next(iter(self.workers)).host

    def fits(self, needs: Needs) -> bool:
        return any(needs.fits(worker.offers) for worker in self.workers)


class Locality(Stores):
    _ready: ReadyQueues

    def __init__(self, directory: Directory, rate: Callable[[int, int], float]) -> None:
        """rate: returns the bytes per second from a source (second argument) to a store."""
        super().__init__()
        self.directory = directory
        self._rate = rate
        self.stores: dict[int, HostStore] = {}
        self.store_of: dict[Worker, int] = {}
        self.due: dict[int, None] = {}
        """Stores that may have queued tasks and workers with credit."""
        self._period_ends_at = -math.inf
        self._comparisons_left = 0
        self._compared: dict[NearQueue, list[tuple[int, float]]] = {}

    def bound(self, state: ClusterState, _outbox: Outbox, _config: Rules) -> None:
        self._ready = state.ready
        state.ready.make_queue = partial(NearQueue, self)

    # -- workers

    def worker_joined(self, worker: Worker) -> None:
        self._join(worker, OBJECT_STORAGE)

    def _join(self, worker: Worker, number: int) -> None:
        store = self.stores.get(number)
        if store is None:
            store = self.stores[number] = HostStore(number)
            self.is_spread = len(self.stores) > 1
        self.store_of[worker] = number
        store.workers[worker] = None
        store.total_slots += worker.slots

    def worker_left(self, worker: Worker) -> None:
        """Remove a worker. Tasks that fit no other worker of its store may then run anywhere."""
        store = self.stores[self.store_of[worker]]
        del store.workers[worker]
        store.total_slots -= worker.slots
        if not store.workers:
            del self.stores[store.number]
            self.due.pop(store.number, None)
            self.is_spread = len(self.stores) > 1
            self.again_at = math.inf
        for queue in self._queues():
            if store.number in queue.stores and not store.fits(queue.needs):
                queue.forget_store(store.number)

    def use_store(self, worker: Worker, store: int) -> None:
        if self.store_of[worker] == store:
            return
        self.worker_left(worker)
        self._join(worker, store)

    def forget_worker(self, worker: Worker) -> None:
        del self.store_of[worker]

    def _queues(self) -> Iterable[NearQueue]:
        return cast("Iterable[NearQueue]", self._ready.queues.values())  # all were created by this class's `make_queue`

    def place_of(self, worker: Worker) -> int:
        return self.store_of[worker]

    def came_free(self, worker: Worker) -> None:
        self.due[self.store_of[worker]] = None

    # -- tasks

    def preferred(self, task: Task, now: float) -> int | None:
        """See `Stores.preferred`. O(references)."""
        near, _ = self._near(task)
        if max(near.values(), default=0) < MIN_INPUT_BYTES:
            return None
        if task.errors is not None and now < task.errors.avoid_until:
            return None  # waits for another worker, at any store
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
        retained, find = task.group.client.retained, self.directory.find
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
        store = self.stores[number]
        compared = list(islice(store.workers, MAX_WORKERS_COMPARED))
        busy = sum(worker.busy for worker in compared) / sum(worker.slots for worker in compared)
        queued = sum(queue.stores[number].count for queue in self._queues() if number in queue.stores)
        return busy + queued / store.total_slots

    # -- waiting and moving

    def may_compare(self, task: Task, now: float) -> bool:
        """Return whether the budget allows another comparison of waiting and moving, and charge it."""
        if now >= self._period_ends_at:
            self._period_ends_at, self.again_at = now + PERIOD_SECONDS, math.inf
            self._comparisons_left = MAX_COMPARISONS
        if self._comparisons_left <= 0:
            self.again_at = self._period_ends_at
            return False
        self._comparisons_left -= 1 + len(task.references) // 8
        return True

    def _wait(self, number: int, needs: Needs, now: float) -> float:
        """Return the estimated seconds until a store has a free slot; infinite if no worker takes tasks."""
        soonest = math.inf
        for worker in islice(self.stores[number].workers, MAX_WORKERS_COMPARED):
            if worker.is_willing and needs.fits(worker.offers):
                has_room = not needs.is_counted or worker.count(needs) > 0
                soonest = min(soonest, 0.0 if has_room and worker.busy < worker.slots else _until_free(worker, now))
        return soonest

    def _moving(self, task: Task, store: int, near: int) -> float:
        """Return how many seconds longer fetching a task's inputs takes at `store` than at `near`."""
        return sum(self._fetching(held, store) - self._fetching(held, near) for held in self._inputs(task))

    def _fetching(self, held: Copies, store: int) -> float:
        if store in held.holders or not held.holders:
            return 0.0
        rate = max(self._rate(store, each) for each in islice(held.holders, MAX_SOURCES_COMPARED))
        return held.size_bytes / rate

    def nearest(self, workers: Sequence[Worker], idle: Worker) -> Sequence[Worker]:
        here, store_of = self.store_of[idle], self.store_of
        return sorted(workers, key=lambda worker: store_of[worker] != here) if self.is_spread else workers

    def may_move(self, task: Task, worker: Worker, idle: Worker, behind: int, now: float) -> bool | None:
        """See `Stores.may_move`."""
        if not self.may_compare(task, now):
            return None
        there = _until_free(worker, now, behind + 1)
        more = self._moving(task, self.store_of[idle], self.store_of[worker])
        if more > 0 and there > MARGIN * more + WORTH_MOVING_SECONDS:
            there = min(there, self._wait(self.store_of[worker], task.needs, now))
        return more <= 0 or there > MARGIN * more + WORTH_MOVING_SECONDS

    def why_waits(self, task: Task, now: float) -> str:
        """Compare the wait for a slot near the preferred store with moving the inputs."""
        queue = cast("NearQueue", self._ready.of(task.needs))
        number = queue.preferred.get(task)
        if number is None:
            return ""
        near, total = self._near(task)
        host, near_text = self.stores[number].host, bytes_text(near.get(number, 0))
        ahead = queue.before(task, MAX_AHEAD) * task.group.timing.seconds / self.stores[number].total_slots
        wait = self._wait(number, queue.needs, now) + ahead
        waiting = f"a free slot there takes about {timed(wait)}"
        if math.isinf(wait):
            waiting = "no worker there accepts tasks now"
        others = [each for each in islice(self.stores, MAX_STORES_COMPARED) if each != number]
        moving, other = min((self._moving(task, each, number), each) for each in others)
        rate = f" at {bytes_text(self._rate(other, number))}/s" if moving > 0 else ""
        return (
            f"it prefers host {host}, which has {near_text} of the {bytes_text(total)} of its inputs: {waiting}, and "
            f"moving them elsewhere takes {timed(max(0.0, moving))}{rate}"
        )

    # -- choosing a worker's next task

    def take(self, queue: NearQueue, worker: Worker, now: float) -> Task | None:
        """Take the next task for a worker from a queue with preferences. None: all tasks should run elsewhere."""
        queue.contested = None
        own = queue.stores.get(self.store_of[worker])
        if own is not None and self._goes_first(own, queue, own.first(), is_own=True):
            return queue.take_preferring(self.store_of[worker]) or queue.take()
        found = self._movable(queue, worker, now) if own is None else None
        if found is not None:
            number, task, is_last = found
            if self._goes_first(queue.stores[number], queue, task, is_own=False):
                return queue.take_preferring(number, is_last=is_last) or queue.take()
        return queue.take()

    def _goes_first(self, preferring: OrderedQueue, queue: NearQueue, task: Task | None, *, is_own: bool) -> bool:
        """Return whether a task that prefers a store runs before the tasks without a preference. The better priority
        runs first. At equal priority, different owners take turns. Within an owner, the better rank runs first, and at
        equal rank the nearer task."""
        other = queue.first() if queue.count else None
        if task is None or other is None:
            return task is not None
        if task.group.rank[0] != other.group.rank[0]:
            return task.group.rank < other.group.rank
        if task.group.owner is other.group.owner:
            return is_own if task.group.rank == other.group.rank else task.group.rank < other.group.rank
        if (precedes := self._ready.turns.precedes(task.group, other.group)) is not None:
            return precedes
        queue.contested = preferring
        preferring.had_turn = not preferring.had_turn
        return preferring.had_turn

    def _movable(self, queue: NearQueue, worker: Worker, now: float) -> tuple[int, Task, bool] | None:
        """Return a task to move to this worker, as (store, task, whether it is the last in its queue). Normally, this
        is the last task, which would wait longest, or the first task if even that would wait too long."""
        here = 0.0 if worker.busy < worker.slots else _until_free(worker, now)
        is_kept = worker.claims.is_kept_for(queue)
        for number, wait in self._waits(queue, now):
            last = queue.stores[number].last() if number in queue.stores and number != self.store_of[worker] else None
            if last is None or not self.may_compare(last, now):
                continue
            first, there = queue.stores[number].first(), math.inf if is_kept else wait - here
            behind = (queue.stores[number].count - 1) * last.group.timing.seconds / self.stores[number].total_slots
            if there + behind > self._moving(last, self.store_of[worker], number) + WORTH_MOVING_SECONDS:
                is_first = first is not None and there > self._moving(first, self.store_of[worker], number)
                return (number, first, False) if first is not None and is_first else (number, last, True)
        return None

    def _waits(self, queue: NearQueue, now: float) -> list[tuple[int, float]]:
        """Return some preferred stores of a queue with their estimated waits, longest first, in rotation."""
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
        """After all queues were offered, remove stores without tasks or without workers with credit from `due`."""
        self._compared.clear()
        if now >= self._period_ends_at:
            self.again_at = math.inf
        queues = [queue for queue in self._queues() if queue.preferred]
        for number in list(self.due):
            store = self.stores.get(number)
            has_tasks = any(number in queue.stores for queue in queues)
            if store is None or not has_tasks or all(worker.side is None for worker in store.workers):
                del self.due[number]


def _until_free(worker: Worker, now: float, without: int = 0) -> float:
    """Return the estimated seconds until a worker without a free slot has one.

    Based on the measured duration of its tasks and the time of its last result; if that is overdue, the estimate is the
    time elapsed since. without: number of last-queued tasks to ignore."""
    busy = worker.busy
    if not busy:
        return 0.0
    ends = max(1, busy - without - worker.slots + 1)
    elapsed = max(0.0, now - worker.progress.at)
    seconds = worker.load / busy * ends / worker.slots - elapsed
    return seconds if seconds > 0 else elapsed
