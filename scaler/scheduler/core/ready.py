"""Ready queues: one per requirement, so that a task that no worker can run blocks no other task.

Requirements whose first tasks are of one rank (priority, then depth) go round robin. Within a requirement: rank, then
keys go round robin, then the clients of a key, first in first out within a client: so a key with many clients gets no
more than one with a single client. Adding, taking and dropping a task are O(1); dropped ones
stay as tombstones until a take meets them or a sweep removes them.
"""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice, takewhile
from typing import Final

from scaler.needs import Needs
from scaler.scheduler.core.resources import Queue
from scaler.scheduler.core.state import READY, Group, Task

Rank = tuple[int, int]

_SWEEP_AT = 1024
"""Tombstones that a queue may hold before it is swept, if they are also more than half of it."""
_NONE: Final[deque[Task]] = deque(maxlen=0)


class ReadyQueue:
    """Ready tasks of one requirement. count is the number of live ones."""

    def __init__(self, needs: Needs) -> None:
        self.needs = needs
        self.count = 0
        self.tombstones = 0
        self.short_since: float | None = None
        """Since when its first task, which needs more than a slot, has found no room."""
        self.reserve_seconds = 0.0
        """How long its next reservation may last."""
        self._lanes: dict[Rank, OrderedDict[str, OrderedDict[bytes, deque[Task]]]] = {}
        """Tasks by rank, then by key, then by client, the one whose turn it is first."""
        self._ranks: list[Rank] = []
        self._sole = _NONE
        """The first tasks, while they are of the only client of the best rank, so that none has to wait for its turn.

        The last one of them is left: what is empty then has to be removed.
        """

    @property
    def first_rank(self) -> Rank:
        """The best rank of a task. Call it while there is one."""
        while not self._lanes[self._ranks[0]]:
            del self._lanes[self._ranks.pop(0)]
        return self._ranks[0]

    def may_pass(self, other: Queue) -> bool:
        """Return whether tasks of this queue may take what is reserved for the first task of another one."""
        return other is self or not other.count or self.first_rank < other.first_rank

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

    def put_back(self, task: Task) -> None:
        """Add a task that was taken: it goes ahead of its client's others."""
        task.group.ready += 1
        self.count += 1
        self.tasks_of(task.group).appendleft(task)

    def take(self) -> Task | None:
        """Take the first ready task, and let the next key and client go first."""
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
        """Take out a ready task that will be ready again. O(tasks of its client)."""
        self.tasks_of(task.group).remove(task)
        self.count -= 1
        task.group.ready -= 1

    def drop(self) -> None:
        """Note that one of the tasks in here is no longer ready: its state changed where it lies."""
        self.count -= 1
        self.tombstones += 1
        if self.tombstones > _SWEEP_AT and self.tombstones > self.count:
            for clients in self._by_key():
                for client, tasks in clients.items():
                    clients[client] = deque(task for task in tasks if task.state is READY)
            self.tombstones = 0
            self._sole = _NONE

    def before(self, task: Task, limit: int) -> int:
        """Return how many tasks are taken before this ready one, but not more than limit. O(limit)."""
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
        """Return the clients that have tasks here, or had some a moment ago."""
        return {client for clients in self._by_key() for client in clients}

    def _by_key(self) -> Iterator[OrderedDict[bytes, deque[Task]]]:
        return (clients for lane in self._lanes.values() for clients in lane.values())

    def __iter__(self) -> Iterator[Task]:
        """Iterate over the live tasks in no useful order (for checks and views)."""
        for clients in self._by_key():
            for tasks in clients.values():
                yield from (task for task in tasks if task.state is READY)


def _live(tasks: Iterable[Task], until: Task | None, limit: int) -> int:
    """Count ready tasks, at most limit, that come before `until`."""
    live = (task for task in takewhile(lambda task: task is not until, tasks) if task.state is READY)
    return sum(1 for _ in islice(live, max(0, limit)))


def _between(queues: Iterable[tuple[object, Iterable[deque[Task]]]], own: object, ahead: int, limit: int) -> int:
    """Count the tasks of others that are taken while `ahead` of the own ones are: the queues go round robin."""
    count, extra = 0, 1
    for name, tasks in queues:
        if name == own:
            extra = 0
        else:
            count += _live(chain.from_iterable(tasks), None, min(ahead + extra, limit - count))
    return count


class ReadyQueues:
    """All ready tasks, by requirement. A queue that ran empty is kept for a while: requirements are few."""

    def __init__(self) -> None:
        self.queues: dict[Needs, ReadyQueue] = {}

    def of(self, needs: Needs) -> ReadyQueue:
        if needs not in self.queues:
            self.queues[needs] = ReadyQueue(needs)
        return self.queues[needs]

    def add(self, group: Group, tasks: Sequence[Task]) -> None:
        count = len(tasks)
        group.ready += count
        queue = self.queues.get(group.needs) or self.of(group.needs)
        queue.count += count
        queue.tasks_of(group).extend(tasks)

    def add_first(self, task: Task) -> None:
        """Add a task that was in a queue before: it goes ahead of its client's others."""
        self.of(task.needs).put_back(task)

    def remove(self, task: Task) -> None:
        """See `ReadyQueue.remove`."""
        self.of(task.needs).remove(task)

    def drop(self, task: Task) -> None:
        """Call after the state of a ready task was changed by anything but `take`."""
        task.group.ready -= 1
        self.of(task.needs).drop()

    @property
    def count(self) -> int:
        return sum(queue.count for queue in self.queues.values())

    def waiting(self) -> list[ReadyQueue]:
        """Return the queues that have a ready task: best rank first, then the ones that went first longest ago."""
        found = [queue for queue in self.queues.values() if queue.count]
        if len(found) > 1:
            found.sort(key=lambda queue: queue.first_rank)
        return found

    def rotate(self, queue: ReadyQueue) -> None:
        """Let the other queues of its rank go first from now on."""
        self.queues[queue.needs] = self.queues.pop(queue.needs)

    def drop_empty(self) -> None:
        for needs in [needs for needs, queue in self.queues.items() if not queue.count and not queue.tombstones]:
            del self.queues[needs]
