"""Ready queues: one per requirement, so that a task nobody can run blocks nobody else.

Requirements whose first tasks are of one rank (priority, then depth) take turns. Within a requirement: rank, then
clients take turns, first in first out within a client. Adding, taking and dropping a task are O(1); dropped ones stay
as tombstones until they are met or swept out.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterable, Iterator

from scaler.needs import Needs
from scaler.scheduler.core.state import READY, Group, Task

Rank = tuple[int, int]

_SWEEP_AT = 1024
"""Tombstones that a queue may hold before it is swept, if they are also more than half of it."""


class _Lane:
    """Tasks of one rank: a deque per client, and the order in which clients take turns."""

    __slots__ = ("by_client", "turns")

    def __init__(self) -> None:
        self.by_client: dict[bytes, deque[Task]] = {}
        self.turns: deque[bytes] = deque()

    def of(self, client: bytes) -> deque[Task]:
        tasks = self.by_client.get(client)
        if tasks is None:
            tasks = self.by_client[client] = deque()
            self.turns.append(client)
        return tasks


def _live(tasks: Iterable[Task], until: Task | None, limit: int) -> int:
    """Count ready tasks, up to this one and this many."""
    count = 0
    for task in tasks:
        if task is until or count >= limit:
            break
        count += task.state is READY
    return count


class ReadyQueue:
    """Ready tasks of one requirement. count is the number of live ones."""

    __slots__ = ("_lanes", "_ranks", "count", "needs", "tombstones")

    def __init__(self, needs: Needs) -> None:
        self.needs = needs
        self.count = 0
        self.tombstones = 0
        self._lanes: dict[Rank, _Lane] = {}
        self._ranks: list[Rank] = []

    @property
    def first_rank(self) -> Rank:
        return self._ranks[0]

    def _lane(self, rank: Rank) -> _Lane:
        lane = self._lanes.get(rank)
        if lane is None:
            lane = self._lanes[rank] = _Lane()
            insort(self._ranks, rank)
        return lane

    def add(self, task: Task) -> None:
        group = task.group
        self._lane(group.rank).of(group.client.id).append(task)
        self.count += 1

    def add_all(self, group: Group, tasks: list[Task]) -> None:
        self._lane(group.rank).of(group.client.id).extend(tasks)
        self.count += len(tasks)

    def add_first(self, task: Task) -> None:
        """Add a task that had left the queue before: it goes ahead of its client's others."""
        group = task.group
        self._lane(group.rank).of(group.client.id).appendleft(task)
        self.count += 1

    def dropped(self) -> None:
        """Note that one of the tasks in here is no longer ready: its state changed where it lies."""
        self.count -= 1
        self.tombstones += 1
        if self.tombstones > _SWEEP_AT and self.tombstones > self.count:
            self._sweep()

    def take(self) -> Task | None:
        """Take the first ready task, and give the turn to the next client."""
        while self._ranks:
            lane = self._lanes[self._ranks[0]]
            turns = lane.turns
            while turns:
                client = turns[0]
                tasks = lane.by_client[client]
                while tasks:
                    task = tasks.popleft()
                    if task.state is READY:
                        self.count -= 1
                        if not tasks:
                            turns.popleft()
                            del lane.by_client[client]
                        elif len(turns) > 1:
                            turns.rotate(-1)
                        return task
                    self.tombstones -= 1
                turns.popleft()
                del lane.by_client[client]
            del self._lanes[self._ranks.pop(0)]
        return None

    def before(self, task: Task, limit: int) -> int:
        """Return how many tasks are taken before this ready one, but not more than limit. O(limit)."""
        group = task.group
        count = 0
        for rank in self._ranks:
            lane = self._lanes[rank]
            if rank == group.rank:
                break
            for tasks in lane.by_client.values():
                count += _live(tasks, None, limit - count)
        place = _live(lane.by_client[group.client.id], task, limit - count)
        count += place
        turn = 1
        for client in lane.turns:
            if client == group.client.id:
                turn = 0
            else:
                count += _live(lane.by_client[client], None, min(place + turn, limit - count))
        return count

    def _sweep(self) -> None:
        for lane in self._lanes.values():
            for client, tasks in lane.by_client.items():
                lane.by_client[client] = deque(task for task in tasks if task.state is READY)
        self.tombstones = 0

    def __iter__(self) -> Iterator[Task]:
        """Iterate over the live tasks in no useful order (for checks and views)."""
        for lane in self._lanes.values():
            for tasks in lane.by_client.values():
                yield from (task for task in tasks if task.state is READY)


class ReadyQueues:
    """All ready tasks, by requirement. A queue that ran empty is kept: requirements are few."""

    __slots__ = ("_queues",)

    def __init__(self) -> None:
        self._queues: dict[Needs, ReadyQueue] = {}

    def of(self, needs: Needs) -> ReadyQueue:
        queue = self._queues.get(needs)
        if queue is None:
            queue = self._queues[needs] = ReadyQueue(needs)
        return queue

    def add(self, task: Task) -> None:
        group = task.group
        group.ready += 1
        self.of(group.needs).add(task)

    def add_all(self, group: Group, tasks: list[Task]) -> None:
        """Add tasks of one group in their order."""
        group.ready += len(tasks)
        self.of(group.needs).add_all(group, tasks)

    def add_first(self, task: Task) -> None:
        group = task.group
        group.ready += 1
        self.of(group.needs).add_first(task)

    def dropped(self, task: Task) -> None:
        """Call after the state of a ready task was changed by anything but `take`."""
        group = task.group
        group.ready -= 1
        self.of(group.needs).dropped()

    def before(self, task: Task, limit: int) -> int:
        """Return how many tasks with the same needs are taken before this ready one, but not more than limit."""
        return self._queues[task.group.needs].before(task, limit)

    @property
    def count(self) -> int:
        return sum(queue.count for queue in self._queues.values())

    @property
    def any(self) -> bool:
        """True when a task is ready."""
        return any(queue.count for queue in self._queues.values())

    def waiting(self) -> list[ReadyQueue]:
        """Return the queues that have a ready task: best rank first, then those that have waited longest for a turn."""
        found = [queue for queue in self._queues.values() if queue.count]
        if len(found) > 1:
            found.sort(key=lambda queue: queue.first_rank)
        return found

    def rotate(self, queue: ReadyQueue) -> None:
        """Let the other queues of its rank go first from now on."""
        self._queues[queue.needs] = self._queues.pop(queue.needs)

    def drop_empty(self) -> None:
        """Forget requirements that nobody waits for."""
        for needs in [needs for needs, queue in self._queues.items() if not queue.count and not queue.tombstones]:
            del self._queues[needs]
