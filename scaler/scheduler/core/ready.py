"""Ready queues: one per requirement, so that a task that no worker can run does not block other tasks.

Requirements whose first tasks have equal rank (priority, then depth) go round robin. Order within a requirement: by
priority; keys take turns; owners of a key take turns; by depth; first in, first out. A key with many clients therefore
gets no more than a key with one client. The owner of a nested task is the client outside all tasks. Adding, taking, and
dropping a task are amortized O(1): a dropped task remains as a tombstone until a take or a sweep removes it. Extensions
may subclass `ReadyQueue` to separate tasks that prefer some workers.
"""

from __future__ import annotations

import math
import sys
from bisect import insort
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice, takewhile
from typing import Any, Final, TypeVar

from scaler.needs import Needs
from scaler.scheduler.core.state import READY, Group, Task, Worker

T = TypeVar("T")
Rank = tuple[int, int]
"""Negated priority, negated depth."""
Side = OrderedDict[Worker, None]
"""The idle workers in a pool, or the workers with capacity to prefetch."""
Give = Callable[[Worker, int], int]
"""Assigns up to a number of tasks from a queue to a worker, and returns how many."""

NO_RANK: Final = (sys.maxsize, 0)
"""Sorts after the ranks of all tasks."""
MAX_AT_ONCE, MAX_OF_OWNER = 128, 16
"""Maximum number of queues to sort at once. If there are more: maximum queues per owner in the first portion."""
_SWEEP_AT = 1024
"""Number of tombstones that triggers a sweep, if they also outnumber the live tasks."""
_NONE: Final[deque[Task]] = deque(maxlen=0)

Depths = dict[int, deque[Task]]
"""An owner's tasks, by negated depth."""
Owners = OrderedDict[bytes, Depths]
Lane = OrderedDict[str, Owners]
"""Tasks of one priority, by key and owner."""


class Turns:
    """Decides whose turn it is among the keys and owners of a lane. This class uses round robin; the `sharing`
    extension decides by usage."""

    refusal = "preemptible tasks need the extension 'sharing', which this scheduler lacks"
    """Why such tasks are refused; empty if they are not."""
    is_shared = False
    """Whether live tasks belong to several owners or priorities, or to a limited owner."""

    def first(self, level: OrderedDict[Any, Any]) -> Any:
        """Return the key or owner whose turn it is, or None if no one may take a turn."""
        return next(iter(level))

    def took(self, task: Task, lane: Lane, owners: Owners) -> None:
        """Called after a turn. Empty levels have been removed."""
        group = task.group
        if len(lane) > 1 and group.owner.account.key in lane:
            lane.move_to_end(group.owner.account.key)
        if len(owners) > 1 and group.owner.id in owners:
            owners.move_to_end(group.owner.id)

    def allows(self, _task: Task, /) -> bool:
        """Return whether a task may be taken, if `is_shared`. If not, its key gets no turn until the next `begin`."""
        return True

    def wanted(self, group: Group) -> int:
        """Return how many of a group's ready tasks would run if there were more slots."""
        return group.ready

    def may_reserve(self, _group: Group, _placed: int, /) -> bool:
        """Return whether to reserve capacity for a group's next task. _placed: tasks placed from its queue so far."""
        return True

    def text(self, _group: Group, /) -> str:
        """Describe the share of a group's owner, or return an empty string."""
        return ""

    def put_back(self, task: Task) -> None:
        """Called when a taken task is put back."""

    def precedes(self, _group: Group, _other: Group, /) -> bool | None:
        """Return whether a group's owner goes before another owner; None: they alternate."""
        return None

    def standing(self, _group: Group, /) -> tuple[float, ...]:
        """Return a key that sorts the first tasks of different queues."""
        return 0.0, 0.0

    def holds_back(self, _group: Group, _worker: Worker, _chosen: Sequence[Task], /) -> bool:
        """Return whether a worker should not prefetch a task, if `is_shared`. chosen: tasks chosen for it so far."""
        return False

    def to_recall(self, _overloaded: Sequence[Worker], /) -> Iterable[tuple[Worker, Sequence[Task]]]:
        """Yield each overloaded worker with its queued tasks that a ready task should precede, if `is_shared`."""
        return ()

    preempt_at = math.inf
    """Earliest time of the next call of `to_preempt`, while tasks are ready."""

    def to_preempt(self, _now: float, /) -> Iterable[tuple[Worker, Task, str]]:
        """Yield workers, a running task to stop on each, and a text that names the ready task. Sets `preempt_at`."""
        return ()

    def begin(self, now: float) -> None:
        """Called before the turns of a step, if `is_shared`."""

    def joined(self, group: Group) -> None:
        """Called when a group gets its first live task."""

    def left(self, group: Group) -> None:
        """Called when a group's last live task has ended."""


class ReadyQueue:
    """Ready tasks of one requirement. count: live tasks that any worker may take."""

    def __init__(self, needs: Needs, turns: Turns) -> None:
        self.needs = needs
        self.count = 0
        self.tombstones = 0
        self._turns = turns
        self._lanes: dict[int, Lane] = {}
        self._priorities: list[int] = []
        """Negated, in ascending order."""
        self._sole = _NONE
        """Shortcut to the tasks of the best priority, if they form one deque. Never emptied here, so that `take`
        removes empty levels."""

    preferred: Collection[Task] = ()
    """Tasks that prefer some workers, which `count` excludes."""

    @property
    def total(self) -> int:
        return self.count + len(self.preferred)

    @property
    def first_rank(self) -> Rank:
        """Rank of the next task to take, or `NO_RANK`."""
        for priority in self._priorities:
            lane = self._lanes[priority]
            if lane and (key := self._turns.first(lane)) is not None:
                owners = lane[key]
                return priority, min(owners[self._turns.first(owners)])
        return NO_RANK

    def next_turn(self) -> tuple[Any, ...]:
        """Return a key that sorts the queues with a ready task."""
        first = self.first()
        return NO_RANK[:1] if first is None else (first.group.rank[0], self._turns.standing(first.group))

    def may_pass(self, other: ReadyQueue) -> bool:
        """Return whether tasks in this queue may use capacity reserved for the first task in another queue."""
        first = None if other is self else other.first()
        return first is None or self.first_rank < first.group.rank

    def tasks_of(self, group: Group) -> deque[Task]:
        priority, depth = group.rank
        lane = self._lanes.get(priority)
        if lane is None:
            lane = self._lanes[priority] = OrderedDict()
            insort(self._priorities, priority)
        owners = lane.get(group.owner.account.key)
        if owners is None:
            owners = lane[group.owner.account.key] = OrderedDict()
        depths = owners.get(group.owner.id)
        if depths is None:
            depths = owners[group.owner.id] = {}
        tasks = depths.get(depth)
        if tasks is None:
            tasks = depths[depth] = deque()
            self._sole = _NONE
        return tasks

    def offer_near(self, _sides: Sequence[Side], _prefetch: bool, _budget: int, _give: Give) -> int:
        """Offer tasks to the workers on these sides that they prefer. Returns the number of tasks placed."""
        return 0

    def offer_elsewhere(self, _sides: Sequence[Side], _budget: int, _give: Give) -> int:
        """Offer tasks that prefer other workers to all workers on these sides. Returns the number of tasks placed."""
        return 0

    def taker(self, _worker: Worker, _now: float) -> Callable[[], Task | None]:
        """Return a function that takes the next task for a worker. Used if there are preferred tasks."""
        return self.take

    def end_turn(self) -> None:
        """Called after the last use of the `taker`."""

    def put_back(self, task: Task) -> None:
        """Undo the last take."""
        self.add_one(task, is_first=True)
        self._turns.put_back(task)

    def take(self) -> Task | None:
        """Remove and return the first ready task, and end its owner's turn."""
        turns = self._turns
        while len(self._sole) > 1 and not turns.is_shared:
            first = self._sole.popleft()
            if first.state is READY:
                self.count -= 1
                first.group.ready -= 1
                return first
            self.tombstones -= 1
        for priority in tuple(self._priorities):
            lane = self._lanes[priority]
            while lane:
                key = turns.first(lane) if turns.is_shared else next(iter(lane))
                if key is None:
                    break
                owners = lane[key]
                owner = turns.first(owners) if turns.is_shared else next(iter(owners))
                depths = owners[owner]
                task = self._take_of(depths)
                if not depths:
                    del owners[owner]
                if not owners:
                    del lane[key]
                if task is None:
                    continue
                if turns.is_shared and not turns.allows(task):
                    self.add_one(task, is_first=True)
                    continue
                if turns.is_shared or len(lane) > 1 or len(owners) > 1:
                    turns.took(task, lane, owners)
                elif len(depths) == 1:
                    self._sole = next(iter(depths.values()))
                return task
            if not lane:
                del self._lanes[priority]
                self._priorities.remove(priority)
        return None

    def _take_of(self, depths: Depths) -> Task | None:
        for depth in sorted(depths):
            tasks = depths[depth]
            while tasks:
                task = tasks.popleft()
                if task.state is READY:
                    if not tasks:
                        del depths[depth]
                    self.count -= 1
                    task.group.ready -= 1
                    return task
                self.tombstones -= 1
            del depths[depth]
        return None

    def first(self) -> Task | None:
        """Return the task that `take` would take."""
        for priority in self._priorities:
            for owners in self._in_turn(self._lanes[priority]):
                for depths in self._in_turn(owners):
                    for depth in sorted(depths):
                        tasks = depths[depth]
                        while tasks:
                            if tasks[0].state is READY:
                                return tasks[0]
                            tasks.popleft()
                            self.tombstones -= 1
        return None

    def _in_turn(self, level: OrderedDict[Any, T]) -> Iterator[T]:
        if level and (name := self._turns.first(level)) is not None:
            yield level[name]
        yield from level.values()

    def remove(self, task: Task) -> None:
        """Remove a task that will become ready again. O(tasks of its client)."""
        self.tasks_of(task.group).remove(task)
        self.count -= 1
        task.group.ready -= 1

    def drop(self, _task: Task) -> None:
        """Turn a task that is no longer ready into a tombstone."""
        self.count -= 1
        self.tombstones += 1
        if self.tombstones > _SWEEP_AT and self.tombstones > self.count:
            for depths in self._by_owner():
                for depth, tasks in depths.items():
                    depths[depth] = deque(task for task in tasks if task.state is READY)
            self.tombstones = 0
            self._sole = _NONE

    def before(self, task: Task, limit: int) -> int:
        """Return how many tasks with the same preference precede this task, at most `limit`. O(limit)."""
        (priority, depth), group = task.group.rank, task.group
        count = 0
        for better in self._priorities[: self._priorities.index(priority)]:
            for owners in self._lanes[better].values():
                count += _live(_all_of(owners.values()), None, limit - count)
        lane, key, owner = self._lanes[priority], group.owner.account.key, group.owner.id
        own = lane[key][owner]
        deeper = chain.from_iterable(own[each] for each in sorted(own) if each < depth)
        ahead = _live(chain(deeper, own[depth]), task, limit - count)
        ahead += _between(((each, (depths,)) for each, depths in lane[key].items()), owner, ahead, limit - count)
        others = _between(((each, owners.values()) for each, owners in lane.items()), key, ahead, limit - count)
        return min(limit, count + ahead + others)

    def clients(self) -> set[bytes]:
        """Return the client of each owner's first task."""
        return {task.group.client.id for depths in self._by_owner() for task in islice(_all_of([depths]), 1)}

    def owners(self) -> Iterator[tuple[int, bytes]]:
        """Return owners by priority. Some may no longer have tasks."""
        for priority, lane in self._lanes.items():
            for owners in lane.values():
                for owner in owners:
                    yield priority, owner

    def _by_owner(self) -> Iterator[Depths]:
        return (depths for lane in self._lanes.values() for owners in lane.values() for depths in owners.values())

    def __iter__(self) -> Iterator[Task]:
        return (task for task in _all_of(self._by_owner()) if task.state is READY)

    def add_one(self, task: Task, _place: int | None = None, *, is_first: bool) -> None:
        """Add a task. _place: its preferred workers. is_first: add it ahead of its client's other tasks."""
        group = task.group
        group.ready += 1
        self.count += 1
        if is_first:
            self.tasks_of(group).appendleft(task)
        else:
            self.tasks_of(group).append(task)


def _all_of(owners: Iterable[Depths]) -> Iterator[Task]:
    return chain.from_iterable(tasks for depths in owners for tasks in depths.values())


def _live(tasks: Iterable[Task], until: Task | None, limit: int) -> int:
    live = (task for task in takewhile(lambda task: task is not until, tasks) if task.state is READY)
    return sum(1 for _ in islice(live, max(0, limit)))


def _between(levels: Iterable[tuple[object, Iterable[Depths]]], own: object, ahead: int, limit: int) -> int:
    """Return how many tasks of other owners, or of other keys, precede a task in round robin. ahead: number of earlier
    tasks from its own owner or key."""
    count, extra = 0, 1
    for name, owners in levels:
        if name == own:
            extra = 0
        else:
            count += _live(_all_of(owners), None, min(ahead + extra, limit - count))
    return count


class ReadyQueues:
    """All ready tasks, by requirement. Empty queues are kept for reuse, because requirements are few."""

    def __init__(self) -> None:
        self.queues: dict[Needs, ReadyQueue] = {}
        self.make_queue: Callable[[Needs, Turns], ReadyQueue] = ReadyQueue
        self.turns = Turns()

    def of(self, needs: Needs) -> ReadyQueue:
        if needs not in self.queues:
            self.queues[needs] = self.make_queue(needs, self.turns)
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
        """Call when anything but `take` has changed the state of a ready task."""
        task.group.ready -= 1
        self.of(task.needs).drop(task)

    @property
    def count(self) -> int:
        return sum(queue.total for queue in self.queues.values())

    def waiting(self) -> list[ReadyQueue]:
        """Return the queues whose first task may run, ordered by turn, then least recently served first."""
        return self.in_turn([queue for queue in self.queues.values() if queue.total], is_for_all=True)

    def in_turn(self, found: list[ReadyQueue], *, is_for_all: bool) -> list[ReadyQueue]:
        """Sort queues like `waiting`, and omit queues whose tasks must not run. is_for_all: False if no worker has
        credit, so that only counted and pinned tasks matter."""
        if not is_for_all:
            found = [queue for queue in found if queue.needs.is_counted or queue.needs.is_fixed]
        if self.turns.is_shared:
            found = [queue for queue in found if queue.first_rank != NO_RANK]
        if len(found) > 1:
            found.sort(key=lambda queue: queue.next_turn() if self.turns.is_shared else queue.first_rank)
        return found

    def portions(self, queues: Iterable[ReadyQueue]) -> list[list[ReadyQueue]]:
        """Split many queues into two portions: a few of each owner, which move to the end, and the rest. Sorting many
        queues is slow, and a freed slot usually needs only the first portion."""
        counts = Counter[tuple[int, bytes]]()
        found: list[list[ReadyQueue]] = [[], []]
        for queue in queues:
            owners = [*queue.owners()]
            found[min([counts[owner] for owner in owners], default=0) >= MAX_OF_OWNER].append(queue)
            counts.update(owners)
        for queue in found[0]:
            self.rotate(queue)
        return found

    def which_wait(
        self, queues: Iterable[ReadyQueue], placed: Mapping[ReadyQueue, int]
    ) -> Iterator[tuple[ReadyQueue, bool]]:
        """Yield each queue, and whether its next task waits only for resources: the queue has the first turn or, if
        queues take no turns, none of its tasks was placed. placed: tasks placed in this pass."""
        waiting = self.waiting() if self.turns.is_shared else ()
        first = next((queue.next_turn() for queue in waiting if queue.total), None)
        for queue in (queue for queue in queues if not queue.needs.is_fixed):
            task = queue.first() if self.turns.is_shared else None
            has_turn = task is not None and (first is None or queue.next_turn() <= first)
            may_reserve = not placed[queue] if task is None else self.turns.may_reserve(task.group, placed[queue])
            yield queue, may_reserve and (has_turn or not self.turns.is_shared)

    def rotate(self, queue: ReadyQueue) -> None:
        self.queues[queue.needs] = self.queues.pop(queue.needs)

    def drop_empty(self) -> None:
        for needs in [needs for needs, queue in self.queues.items() if not queue.total and not queue.tombstones]:
            del self.queues[needs]
