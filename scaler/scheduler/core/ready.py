"""Ready queues: one per requirement, so that a task that no worker can run blocks no other task.

Requirements whose first tasks have equal rank (priority, then depth) go round robin. Within a requirement: by rank,
then round robin over keys, then over the clients of a key, then first in, first out. A key with many clients thus gets
no more than a key with one. Adding, taking, and dropping a task are O(1): a dropped task stays as a tombstone until a
take or a sweep removes it.

Extensions may subclass `ReadyQueue` to keep tasks that prefer a place apart.
"""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain, islice, takewhile
from typing import Final

from scaler.needs import Needs
from scaler.scheduler.core.state import READY, Group, Task, Worker

Rank = tuple[int, int]
Side = OrderedDict[Worker, None]
"""Workers of a pool that may take tasks: idle ones, or prefetching ones."""
Give = Callable[[Worker, int], int]
"""Gives up to so many tasks of a queue to a worker, and returns their number."""

_SWEEP_AT = 1024
"""Tombstones that trigger a sweep, if they also outnumber the live tasks."""
_NONE: Final[deque[Task]] = deque(maxlen=0)


class ReadyQueue:
    """Ready tasks of one requirement. count: live tasks that any worker may take."""

    def __init__(self, needs: Needs) -> None:
        self.needs = needs
        self.count = 0
        self.tombstones = 0
        self._lanes: dict[Rank, OrderedDict[str, OrderedDict[bytes, deque[Task]]]] = {}
        self._ranks: list[Rank] = []
        self._sole = _NONE
        """Shortcut to the tasks of the best rank's only client. Never emptied, so that empty levels are removed by
        `take`.
        """

    preferred: Collection[Task] = ()
    """Tasks that prefer a place, which `count` excludes."""

    @property
    def total(self) -> int:
        return self.count + len(self.preferred)

    @property
    def first_rank(self) -> Rank:
        while self._ranks and not self._lanes[self._ranks[0]]:
            del self._lanes[self._ranks.pop(0)]
        return self._ranks[0]

    def may_pass(self, other: ReadyQueue) -> bool:
        """Return whether tasks of this queue may use room reserved for the first task of another queue."""
        return other is self or not other.total or self.first_rank < other.first_rank

    def tasks_of(self, group: Group) -> deque[Task]:
        lane = self._lanes.get(group.rank)
        if lane is None:
            lane = self._lanes[group.rank] = OrderedDict()
            insort(self._ranks, group.rank)
        client = group.client
        clients = lane.get(client.account.key)
        if clients is None:
            clients = lane[client.account.key] = OrderedDict()
        tasks = clients.get(client.id)
        if tasks is None:
            tasks = clients[client.id] = deque()
            self._sole = _NONE
        return tasks

    def offer_near(self, _sides: Sequence[Side], _prefetch: bool, _budget: int, _give: Give) -> int:
        """Offer tasks that prefer a place to workers there, on these sides. Returns the number of tasks placed."""
        return 0

    def offer_elsewhere(self, _sides: Sequence[Side], _budget: int, _give: Give) -> int:
        """Offer tasks that prefer a place to all workers on these sides. Returns the number of tasks placed."""
        return 0

    def taker(self, _worker: Worker, _now: float) -> Callable[[], Task | None]:
        """Return the function that takes the next task for a worker, if there are preferred tasks."""
        return self.take

    def end_turn(self) -> None:
        """Called after the last use of the `taker`."""

    def put_back(self, task: Task) -> None:
        """Undo the last take."""
        self.add_one(task, is_first=True)

    def take(self) -> Task | None:
        """Take the first ready task, and rotate to the next key and client."""
        while len(self._sole) > 1:
            first = self._sole.popleft()
            if first.state is READY:
                self.count -= 1
                first.group.ready -= 1
                return first
            self.tombstones -= 1
        while self._ranks:
            lane = self._lanes[self._ranks[0]]
            while lane:
                key = next(iter(lane))
                clients = lane[key]
                task = self._take_of(clients)
                if not clients:
                    del lane[key]
                elif len(lane) > 1:
                    lane.move_to_end(key)
                elif len(clients) == 1:
                    self._sole = next(iter(clients.values()))
                if task is not None:
                    return task
            del self._lanes[self._ranks.pop(0)]
        return None

    def _take_of(self, clients: OrderedDict[bytes, deque[Task]]) -> Task | None:
        while clients:
            client = next(iter(clients))
            tasks = clients[client]
            while tasks:
                task = tasks.popleft()
                if task.state is READY:
                    if not tasks:
                        del clients[client]
                    elif len(clients) > 1:
                        clients.move_to_end(client)
                    self.count -= 1
                    task.group.ready -= 1
                    return task
                self.tombstones -= 1
            del clients[client]
        return None

    def remove(self, task: Task) -> None:
        """Remove a task that will become ready again. O(tasks of its client)."""
        self.tasks_of(task.group).remove(task)
        self.count -= 1
        task.group.ready -= 1

    def drop(self, _task: Task) -> None:
        """Turn a task whose state has changed into a tombstone."""
        self.count -= 1
        self.tombstones += 1
        if self.tombstones > _SWEEP_AT and self.tombstones > self.count:
            for clients in self._by_key():
                for client, tasks in clients.items():
                    clients[client] = deque(task for task in tasks if task.state is READY)
            self.tombstones = 0
            self._sole = _NONE

    def before(self, task: Task, limit: int) -> int:
        """Return how many tasks of the same preferred place go before this one, at most `limit`. O(limit)."""
        rank, own = task.group.rank, task.group.client
        count = 0
        for better in self._ranks[: self._ranks.index(rank)]:
            for clients in self._lanes[better].values():
                for tasks in clients.values():
                    count += _live(tasks, None, limit - count)
        lane, key = self._lanes[rank], own.account.key
        ahead = _live(lane[key][own.id], task, limit - count)
        ahead += _between(((client, (tasks,)) for client, tasks in lane[key].items()), own.id, ahead, limit - count)
        others = _between(((each, clients.values()) for each, clients in lane.items()), key, ahead, limit - count)
        return min(limit, count + ahead + others)

    def clients(self) -> set[bytes]:
        return {client for clients in self._by_key() for client in clients}

    def _by_key(self) -> Iterator[OrderedDict[bytes, deque[Task]]]:
        return (clients for lane in self._lanes.values() for clients in lane.values())

    def __iter__(self) -> Iterator[Task]:
        for clients in self._by_key():
            for tasks in clients.values():
                yield from (task for task in tasks if task.state is READY)

    def add_one(self, task: Task, _place: int | None = None, *, is_first: bool) -> None:
        """Add a task. _place: the one that it prefers. is_first: ahead of its client's other tasks."""
        group = task.group
        group.ready += 1
        self.count += 1
        if is_first:
            self.tasks_of(group).appendleft(task)
        else:
            self.tasks_of(group).append(task)


def _live(tasks: Iterable[Task], until: Task | None, limit: int) -> int:
    live = (task for task in takewhile(lambda task: task is not until, tasks) if task.state is READY)
    return sum(1 for _ in islice(live, max(0, limit)))


def _between(queues: Iterable[tuple[object, Iterable[deque[Task]]]], own: object, ahead: int, limit: int) -> int:
    """Count the tasks of other queues that are taken before `ahead` tasks of the own one, in round robin."""
    count, extra = 0, 1
    for name, tasks in queues:
        if name == own:
            extra = 0
        else:
            count += _live(chain.from_iterable(tasks), None, min(ahead + extra, limit - count))
    return count


class ReadyQueues:
    """All ready tasks, by requirement. Empty queues are kept for a while, because requirements are few."""

    def __init__(self) -> None:
        self.queues: dict[Needs, ReadyQueue] = {}
        self.make_queue: Callable[[Needs], ReadyQueue] = ReadyQueue

    def of(self, needs: Needs) -> ReadyQueue:
        if needs not in self.queues:
            self.queues[needs] = self.make_queue(needs)
        return self.queues[needs]

    def add(self, group: Group, tasks: Sequence[Task]) -> None:
        count = len(tasks)
        group.ready += count
        queue = self.queues.get(group.needs) or self.of(group.needs)
        queue.count += count
        queue.tasks_of(group).extend(tasks)

    def add_one(self, task: Task, place: int | None, *, is_first: bool = False) -> None:
        queue = self.queues.get(task.needs) or self.of(task.needs)
        queue.add_one(task, place, is_first=is_first)

    def remove(self, task: Task) -> None:
        self.of(task.needs).remove(task)

    def drop(self, task: Task) -> None:
        """Call after the state of a ready task was changed by anything but `take`."""
        task.group.ready -= 1
        self.of(task.needs).drop(task)

    @property
    def count(self) -> int:
        return sum(queue.total for queue in self.queues.values())

    def waiting(self) -> list[ReadyQueue]:
        """Return the queues that have a ready task, by best rank, then least recently served."""
        found = [queue for queue in self.queues.values() if queue.count or queue.preferred]
        if len(found) > 1:
            found.sort(key=lambda queue: queue.first_rank)
        return found

    def rotate(self, queue: ReadyQueue) -> None:
        self.queues[queue.needs] = self.queues.pop(queue.needs)

    def drop_empty(self) -> None:
        for needs in [needs for needs, queue in self.queues.items() if not queue.total and not queue.tombstones]:
            del self.queues[needs]
