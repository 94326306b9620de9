"""Turns by use: first the key with the lowest standing, then its client with the lowest standing. Pure."""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

from scaler.extensions.interface import SchedulerPart
from scaler.extensions.sharing.use import HALF_LIFE_SECONDS, LongTask, User, admit, update, width_of
from scaler.scheduler.core.changes import ClientLeft, TaskBlocked, TaskRetried, TasksEnded, TasksStarted
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.commands import Command
from scaler.scheduler.core.ready import Lane, Owners, Turns
from scaler.scheduler.core.rooms import Now
from scaler.scheduler.core.state import Assigned, Group, Task, Worker

UPDATE_SECONDS = 0.005
"""Seconds between two updates of the standings. In between, they count the tasks sent."""
FORGET_SECONDS = 1.0
NEGLIGIBLE_SECONDS = 0.01
MAX_COMPARED = 512
"""Tasks of a worker that are compared."""


class FairTurns(SchedulerPart, Turns):
    changes = (TasksEnded, TasksStarted, TaskBlocked, TaskRetried, ClientLeft)

    def __init__(self, _settings: Any = None) -> None:
        self._users: dict[str | bytes, User] = {}
        """By key, and by id of an owner."""
        self._contenders: Counter[tuple[bytes, int]] = Counter()
        """Live groups by owner and priority."""
        self._running: dict[bytes, LongTask] = {}
        self._heaps: dict[int, tuple[OrderedDict[Any, Any], list[tuple[float, int, Any]]]] = {}
        """Standings in a level, by its `id`."""
        self._update_at = self._forgot_at = 0.0

    def bound(self, cluster: ClusterState) -> None:
        super().bound(cluster)
        cluster.ready.turns = self

    @property
    def _now(self) -> float:
        return self.cluster.own_time(self.cluster.now)

    # -- whose turn it is

    def joined(self, group: Group) -> None:
        now = self._now
        self._forget(now)
        key = self._join(group, group.client.account.key, None, now)
        self._join(group, group.owner.id, key, now)
        self._contenders[group.owner.id, group.rank[0]] += 1
        self.is_shared = len(self._contenders) > 1

    def _join(self, group: Group, name: str | bytes, key: User | None, now: float) -> User:
        user = self._users.get(name)
        if user is None:
            user = self._users[name] = User()
        user.key = key
        if not user.groups and self._contenders and now - user.active_at > FORGET_SECONDS:
            self._update(now)
            siblings = (other for other in self._active() if other.key is key and other is not key)
            admit(user, siblings, sum(worker.slots for worker in self.cluster.workers.values()))
        user.groups[group] = None
        user.active_at = now
        return user

    def left(self, group: Group) -> None:
        for user in (self._users[group.client.account.key], self._users[group.owner.id]):
            user.groups.pop(group, None)
            user.active_at = self._now
        contender = group.owner.id, group.rank[0]
        self._contenders[contender] -= 1
        if not self._contenders[contender]:
            del self._contenders[contender]
        self.is_shared = len(self._contenders) > 1

    def begin(self, now: float) -> None:
        if now >= self._update_at:
            self._update(now)

    def _update(self, now: float) -> None:
        self._update_at = now + UPDATE_SECONDS
        self._heaps.clear()
        self._forget(now)
        update(self._active(), now)

    def _active(self) -> list[User]:
        return [user for user in self._users.values() if user.groups]

    def _forget(self, now: float) -> None:
        seconds = now - self._forgot_at
        if seconds >= FORGET_SECONDS:
            self._forgot_at = now
            for name, user in [*self._users.items()]:
                user.used_seconds *= 0.5 ** (seconds / HALF_LIFE_SECONDS)
                if user.used_seconds < NEGLIGIBLE_SECONDS and not (user.groups or user.running or user.blocked):
                    del self._users[name]

    def first(self, level: OrderedDict[Any, Any]) -> Any:
        """Return the key or owner with the lowest standing. O(1) if there is one, and O(log n) amortized otherwise."""
        if len(level) == 1 or not self.is_shared:
            return next(iter(level))
        of, heap = self._heaps.get(id(level), (None, []))
        if of is not level or len(heap) < len(level):
            heap = [(self._users[name].standing, place, name) for place, name in enumerate(level)]
            heapq.heapify(heap)
            self._heaps[id(level)] = level, heap
        while heap:
            standing, place, name = heap[0]
            if name not in level:
                heapq.heappop(heap)
            elif (present := self._users[name].standing) > standing:
                heapq.heapreplace(heap, (present, place, name))
            else:
                return name
        return next(iter(level))

    def took(self, task: Task, lane: Lane, owners: Owners) -> None:
        if not self.is_shared:
            super().took(task, lane, owners)
            return
        self._expect(task, 1)

    def put_back(self, task: Task) -> None:
        if self.is_shared:
            self._expect(task, -1)
            self._heaps.clear()

    def _expect(self, task: Task, sign: int) -> None:
        owner = self._users[task.group.owner.id]
        owner.expect(sign * owner.mean_seconds(self._now) * width_of(task.group))

    def standing(self, group: Group) -> tuple[float, float]:
        return self._users[group.client.account.key].standing, self._users[group.owner.id].standing

    def precedes(self, group: Group, other: Group) -> bool | None:
        return self.standing(group) < self.standing(other)

    def _is_long(self, task: Task) -> bool:
        return self._users[task.group.owner.id].is_long

    def holds_back(self, group: Group, worker: Worker, chosen: Sequence[Task]) -> bool:
        """Hold long tasks back if all slots are for long ones: they would wait there while slots elsewhere get free."""
        if not self._users[group.owner.id].is_long:
            return False
        return sum(map(self._is_long, chain(worker.tasks.values(), chosen))) >= worker.slots

    def to_recall(self, overloaded: Sequence[Worker]) -> Iterator[tuple[Worker, Sequence[Task]]]:
        """Yield tasks of lower priority than a ready one, and long ones that wait for other long ones."""
        waiting = [(queue.first_rank[0], queue) for queue in self.cluster.ready.waiting()]
        # Slots with short tasks are soon free: a few workers are enough.
        wanted = sum(min(queue.total, len(overloaded)) for _, queue in waiting)
        for worker in overloaded:
            best = min((priority for priority, queue in waiting if queue.needs.fits(worker.offers)), default=None)
            if best is None or worker.recalled:
                continue
            tasks = worker.tasks.values()
            late = sum(map(self._is_long, islice(tasks, MAX_COMPARED))) - worker.slots
            chosen: list[Task] = []
            for task in islice(reversed(tasks), min(worker.busy - worker.slots, MAX_COMPARED)):
                if type(task.state) is not Assigned or task.id in worker.blocked:
                    continue
                is_late = late > 0 and self._is_long(task)
                if is_late or (wanted > 0 and best < task.group.rank[0]):
                    late -= is_late
                    chosen.append(task)
            if chosen:
                wanted -= worker.slots
                yield worker, chosen[::-1]

    # -- use

    def on_changes(self, changes: Sequence[Any], now: Now) -> Iterable[Command]:
        core_now = self.cluster.own_time(now.clock)
        for change in changes:
            match change:
                case TasksEnded():
                    self._ended(change, core_now)
                case TasksStarted():
                    for task, began_us in zip(change.tasks, change.ran.began_us, strict=False):
                        self._began(task, change, began_us, core_now)
                case TaskBlocked(task, is_blocked):
                    self._blocked(task, core_now, is_blocked=is_blocked)
                case TaskRetried(task):
                    if (running := self._running.pop(task.id, None)) is not None:
                        self._stop(running, core_now)
                case ClientLeft(client):
                    for identifier in [each for each in self._running if each[: len(client)] == client]:
                        self._stop(self._running.pop(identifier), core_now)
        return ()

    def _ended(self, ended: TasksEnded, now: float) -> None:
        stops = [*ended.run_starts[1:], len(ended)]
        for group, start, stop in zip(ended.run_groups, ended.run_starts, stops, strict=True):
            owner = self._users.get(group.owner.id)
            if owner is None:
                continue
            durations = ended.duration_us[start:stop]
            seconds, ran = sum(durations) / 1e6, sum(1 for each in durations if each)
            if self._running:
                for identifier in ended.ids[start:stop]:
                    if (running := self._running.pop(identifier, None)) is not None:
                        self._stop(running, now)
                        seconds = max(0.0, seconds - running.charged_seconds - running.blocked_seconds)
            owner.note_ended(ran, sum(durations) / 1e6)
            owner.charge(seconds * width_of(group))

    def _began(self, task: Task, started: TasksStarted, began_us: int, now: float) -> None:
        owner = self._users.get(task.group.owner.id)
        if owner is None or task.id in self._running or task.group.client.terminated:
            return
        offset = started.ran.clock.offset_seconds
        began_at = now if offset is None else min(now, self.cluster.own_time(began_us / 1e6 + offset))
        running = self._running[task.id] = LongTask(owner, width_of(task.group), None)
        owner.begin(running, began_at)

    def _blocked(self, task: Task, now: float, *, is_blocked: bool) -> None:
        owner = self._users.get(task.group.owner.id)
        if owner is None or task.group.client.terminated:
            return
        running = self._running.get(task.id)
        if running is None:
            running = self._running[task.id] = LongTask(owner, width_of(task.group), None)
            owner.begin(running, now)
        if is_blocked and running.began_at is not None:
            owner.pause(running, now)
            running.blocked_at = now
            owner.blocked += 1
        elif not is_blocked and running.began_at is None:
            running.blocked_seconds += now - running.blocked_at
            owner.blocked -= 1
            owner.begin(running, now)

    @staticmethod
    def _stop(running: LongTask, now: float) -> None:
        if running.began_at is None:
            running.blocked_seconds += now - running.blocked_at
            running.user.blocked -= 1
        else:
            running.user.pause(running, now)


def _uncount(counter: Counter[Any], name: Any) -> None:
    counter[name] -= 1
    if counter[name] <= 0:
        del counter[name]
