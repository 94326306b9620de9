"""Queues of ready tasks that prefer a store: one per store, nested in the queue of the requirement. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any

from scaler.needs import Needs
from scaler.scheduler.core.ready import Give, Rank, ReadyQueue, Side, Turns
from scaler.scheduler.core.state import READY, Task, Worker

MAX_MOVED = 16
"""Maximum number of workers per pass that are offered other stores' tasks."""


class OrderedQueue(ReadyQueue):
    """A queue that can return its last task. had_turn: whether the last turn went to a store's queue rather than to
    another client's task without a preference."""

    had_turn = False

    def last(self) -> Task | None:
        for priority in reversed(self._priorities):
            for owners in reversed(self._lanes[priority].values()):
                for depths in reversed(owners.values()):
                    for depth in sorted(depths, reverse=True):
                        tasks = depths[depth]
                        while tasks:
                            if tasks[-1].state is READY:
                                return tasks[-1]
                            tasks.pop()
                            self.tombstones -= 1
        return None

    def take_last(self) -> Task | None:
        task = self.last()
        if task is not None:
            self.tasks_of(task.group).pop()
            self.count -= 1
            task.group.ready -= 1
        return task


class NearQueue(OrderedQueue):
    """A queue in which tasks may prefer a store."""

    def __init__(self, locality: Any, needs: Needs, turns: Turns) -> None:
        """locality: a `Locality`."""
        super().__init__(needs, turns)
        self._locality = locality
        self.preferred: dict[Task, int] = {}  # preferred store by task
        self.stores: dict[int, OrderedQueue] = {}
        """Queues of tasks that prefer a store, by store; none is empty."""
        self.ranks_preferring: dict[Rank, int] = {}
        self.taken: dict[Task, int] = {}
        """Stores of the most recently taken tasks, for `put_back`."""
        self.contested: OrderedQueue | None = None
        """The store queue that competed for the last task taken."""

    @property
    def first_rank(self) -> Rank:
        if not self.preferred:
            return super().first_rank
        return min(chain([super().first_rank] if self.count else (), self.ranks_preferring))

    def next_turn(self) -> tuple[Any, ...]:
        queues = [queue for queue in self.stores.values() if queue.count]
        return min(chain([super().next_turn()] if self.count else (), (queue.next_turn() for queue in queues)))

    def taker(self, worker: Worker, now: float) -> Callable[[], Task | None]:
        return partial(self._locality.take, self, worker, now)

    def end_turn(self) -> None:
        self.taken.clear()

    def put_back(self, task: Task) -> None:
        if self.contested is not None:
            self.contested.had_turn = not self.contested.had_turn
            self.contested = None
        self.add_one(task, self.taken.pop(task, None), is_first=True)
        self._turns.put_back(task)

    def add_one(self, task: Task, place: int | None = None, *, is_first: bool) -> None:
        if place is None:
            super().add_one(task, is_first=is_first)
            return
        queue = self.stores.get(place)
        if queue is None:
            queue = self.stores[place] = OrderedQueue(self.needs, self._turns)
        queue.add_one(task, is_first=is_first)
        rank = task.group.rank
        self.preferred[task] = place
        self.ranks_preferring[rank] = self.ranks_preferring.get(rank, 0) + 1

    def take_preferring(self, store: int, *, is_last: bool = False) -> Task | None:
        queue = self.stores.get(store)
        task = None if queue is None else queue.take_last() if is_last else queue.take()
        if task is not None:
            self._left(task)
            self.taken[task] = store
        return task

    def remove(self, task: Task) -> None:
        if task in self.preferred:
            self.stores[self.preferred[task]].remove(task)
            self._left(task)
        else:
            super().remove(task)

    def drop(self, task: Task) -> None:
        if task in self.preferred:
            self.stores[self.preferred[task]].drop(task)
            self._left(task)
        else:
            super().drop(task)

    def before(self, task: Task, limit: int) -> int:
        if task in self.preferred:
            return self.stores[self.preferred[task]].before(task, limit)
        return super().before(task, limit)

    def clients(self) -> set[bytes]:
        return super().clients().union(*(queue.clients() for queue in self.stores.values()))

    def __iter__(self) -> Iterator[Task]:
        yield from super().__iter__()
        for queue in self.stores.values():
            yield from queue

    def offer_near(self, sides: Sequence[Side], prefetch: bool, budget: int, give: Give) -> int:
        placed = 0
        for number in [number for number in self._locality.due if number in self.stores]:
            workers = [
                worker
                for worker in self._locality.stores[number].workers
                if worker.side is not None and any(worker.side is side for side in sides)
            ]
            while workers and placed < budget and number in self.stores:
                share = -(-min(self.stores[number].count, budget - placed) // len(workers))
                left = []
                for worker in workers:
                    side = worker.side
                    given = give(worker, share if prefetch else min(share, worker.slots - worker.busy))
                    if given and worker.side is side:
                        left.append(worker)
                    placed += given
                workers = left
        return placed

    def offer_elsewhere(self, sides: Sequence[Side], budget: int, give: Give) -> int:
        placed = 0
        in_vain: set[int] = set()
        for side, worker in [(each, worker) for each in sides for worker in islice(each, MAX_MOVED)][:MAX_MOVED]:
            store = self._locality.store_of[worker]
            given = store not in in_vain
            while given and placed < budget and self.preferred and worker.side is side:
                given = give(worker, 1) > 0
                placed += given
            if not given:
                in_vain.add(store)
            if worker.side is side:
                side.move_to_end(worker)
        return placed

    def forget_store(self, store: int) -> None:
        """Let all tasks that prefer this store run anywhere, ahead of their clients' other tasks."""
        for task in reversed(list(self.stores.pop(store, ()))):
            self._uncount(task)
            task.group.ready -= 1
            self.add_one(task, is_first=True)

    def _left(self, task: Task) -> None:
        store = self._uncount(task)
        if not self.stores[store].count:
            del self.stores[store]

    def _uncount(self, task: Task) -> int:
        rank = task.group.rank
        self.ranks_preferring[rank] -= 1
        if not self.ranks_preferring[rank]:
            del self.ranks_preferring[rank]
        return self.preferred.pop(task)
