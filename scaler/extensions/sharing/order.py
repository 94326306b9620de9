"""Order by use: the key with the lowest standing first, and within a key, the client with the lowest standing. Pure."""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

from scaler.extensions.interface import SchedulerPart
from scaler.extensions.sharing.preemption import Preemption
from scaler.extensions.sharing.rows import ShareRow, share_rows
from scaler.extensions.sharing.use import HALF_LIFE_SECONDS, Leads, LongTask, User, admit, divide, weights_of, width_of
from scaler.grammar import counted
from scaler.monitor.reports.answers import sees_of
from scaler.net.connection import ANYONE, LOCAL
from scaler.scheduler.core.changes import ClientLeft, KeysRead, TaskBlocked, TaskRetried, TasksEnded, TasksStarted
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.commands import Command
from scaler.scheduler.core.ready import Lane, Owners, Turns
from scaler.scheduler.core.rooms import Now
from scaler.scheduler.core.state import Assigned, ClientRecord, Group, Task, Worker
from scaler.security.keys import NO_SHARE, Entry, Share

UPDATE_SECONDS = 0.005
"""Seconds between two updates of all standings. In between, each dispatched task raises its owner's standing."""
FORGET_SECONDS = 1.0
NEGLIGIBLE_SECONDS = 0.01
COST_SECONDS = 5.0
"""Interval (seconds) at which unit costs are divided among the clients that used slots."""
GROUP = "group "
"""Prefix of group names. No key has a name with this prefix."""
UNNAMED = (LOCAL.key, ANYONE.key)
"""Pseudo-keys for peers without keys."""
FULL = (math.inf,)
MAX_COMPARED = 2048
"""Maximum number of tasks on workers compared per search for recalls."""


class FairTurns(SchedulerPart, Turns):
    """Orders keys and clients by use. Called by the core for each turn, where an exception ends the scheduler."""

    changes = (TasksEnded, TasksStarted, TaskBlocked, TaskRetried, ClientLeft, KeysRead)
    refusal = ""

    def __init__(self, _settings: Any = None) -> None:
        self._users: dict[str | bytes, User] = {}
        """Users by key name or owner id."""
        self._contenders: defaultdict[tuple[bytes, int], int] = defaultdict(int)
        """Number of live groups by owner and priority."""
        self._running: dict[bytes, LongTask] = {}
        self._heaps: dict[int, tuple[OrderedDict[Any, Any], list[tuple[Any, int, Any]], int]] = {}
        """Heaps of standings by `id` of the level."""
        self._leads = Leads()
        self._shares: dict[str, Share] = {}
        """Shares by key, and by group with the prefix `GROUP`."""
        self._limited: list[User] = []
        self._binding: set[User] = set()
        """Users with tasks and a maximum below the number of slots, as of the last update."""
        self._kept_for: dict[User, Group] = {}
        """Groups with a reservation for their next task, by the user whose maximum must have room for the task."""
        self._preemption = Preemption(self._owner_of, self._shown)
        self._update_at = self._count_at = self._forgot_at = 0.0
        self._surprise = 0.0
        """Sum of the estimation errors for the durations of tasks that have ended since the last update."""
        self._spent: float | None = None

    def bound(self, cluster: ClusterState) -> None:
        super().bound(cluster)
        cluster.ready.turns = self
        self.next_at = cluster.now + COST_SECONDS

    @property
    def _now(self) -> float:
        return self.cluster.own_time(self.cluster.now)

    @property
    def _slots(self) -> int:
        return sum(worker.slots for worker in self.cluster.workers.values())

    # -- turns

    def joined(self, group: Group) -> None:
        owner = self._users.get(group.owner.id)
        if owner is None or self._contenders or self._users.get(group.owner.account.key) is not owner.parent:
            owner = self._admit(group)
        for user in owner.line():
            user.groups[group] = None
        self._contenders[group.owner.id, group.rank[0]] += 1
        self.is_shared = len(self._contenders) > 1 or bool(self._limited)

    def _admit(self, group: Group) -> User:
        now = self._now
        self._forget(now)
        owner = self._place(group.owner.id, f"client {group.owner.name}", self._key(group.owner.account.key))
        owner.is_owner = True
        for user in owner.line()[::-1]:
            if not user.groups and self._contenders and self.cluster.now - user.active_at > FORGET_SECONDS:
                self._update(now, counts=True)
                admit(user, self._active(), self._slots)
        return owner

    def _key(self, name: str) -> User:
        share = self._shares.get(name, NO_SHARE)
        parent = self._place(GROUP + share.group, GROUP + share.group, None) if share.group else None
        return self._place(name, f"key {name}", parent)

    def _place(self, name: str | bytes, title: str, parent: User | None) -> User:
        user = self._users.get(name) or User(title)
        user.title, user.parent, self._users[name] = title, parent, user
        if isinstance(name, str):
            user.give(self._shares.get(name, NO_SHARE))
        return user

    def left(self, group: Group) -> None:
        now = self.cluster.now
        for user in self._users[group.owner.id].line():
            user.groups.pop(group, None)
            user.active_at = now
        contender, contenders = (group.owner.id, group.rank[0]), self._contenders
        contenders[contender] -= 1
        if not contenders[contender]:
            del contenders[contender]
        self.is_shared = len(contenders) > 1 or (bool(self._limited) and len(contenders) > 0)

    def _learn(self, entries: Mapping[str, Entry]) -> None:
        """Apply new shares of keys and groups, and move the keys of connected clients to their new groups."""
        live = [group for user in self._active() if user.is_owner for group in user.groups]
        for group in live:
            self.left(group)
        self._shares = {GROUP * (entry.role == "group") + entry.name: entry.share for entry in entries.values()}
        own = (name for name, share in self._shares.items() if share != NO_SHARE)
        for name in {name for name in (*self._users, *own) if isinstance(name, str)}:
            self._place(name, name, None) if name.startswith(GROUP) else self._key(name)
        self._limited = [user for user in self._users.values() if user.share.max_slots]
        for group in live:
            self._admit(group)
            self.joined(group)

    def begin(self, now: float) -> None:
        if now >= self._update_at:
            self._update(now)
        if self._limited:
            if sum([user.count_slots() for user in self._limited]):
                self._heaps.clear()  # otherwise, heap keys only increase
            resources, self._kept_for = self.cluster.rooms.resources, {}
            for queue in resources.reservations:
                if (task := queue.first()) is not None and resources.room(queue):
                    self._kept_for |= dict.fromkeys(self._owner_of(task.group).line(), task.group)

    def _update(self, now: float, *, counts: bool = False) -> None:
        self._update_at = now + UPDATE_SECONDS
        self._heaps.clear()
        self._forget(now)
        if counts:
            self._count_at, self._surprise = self._update_at, 0.0
        slots = self._slots if self._limited else 0
        self._binding = {user for user in self._limited if user.groups and user.share.max_slots < slots}
        self._leads.update(self._active(), now, counts=counts)

    def _active(self) -> list[User]:
        return [user for user in self._users.values() if user.groups]

    def _forget(self, now: float) -> None:
        seconds = now - self._forgot_at
        if seconds >= FORGET_SECONDS:
            self._forgot_at = now
            for name, user in [*self._users.items()]:
                user.used_seconds *= 0.5 ** (seconds / HALF_LIFE_SECONDS)
                left = user.used_seconds + user.running + user.blocked
                if isinstance(name, bytes) and left < NEGLIGIBLE_SECONDS and not user.groups:
                    del self._users[name]

    def first(self, level: OrderedDict[Any, Any]) -> Any:
        """Return the key or owner with the lowest standing, or None if all are at their limits. O(log n) amortized, and
        O(1) for a single member."""
        if not self.is_shared or (len(level) == 1 and not self._limited):
            return next(iter(level))
        of, heap, size = self._heaps.get(id(level), (None, [], 0))
        if of is not level or size < len(level):
            heap = self._heap_of(level)
            self._heaps[id(level)] = level, heap, len(level)
        while heap:
            order, place, members = heap[0]
            name = self._first_member(members, level)
            if name is None:
                heapq.heappop(heap)
            elif (present := self._order(name)) > order:
                heapq.heapreplace(heap, (present, place, members))
            else:
                return None if present == FULL else name
        return next(iter(level))

    def _heap_of(self, level: OrderedDict[Any, Any]) -> list[tuple[Any, int, Any]]:
        """Return a heap of the groups in a level, each with a heap of its members: a member's turn moves its group
        without moving other members. A key without a group, or an owner, is its own group."""
        groups: dict[Any, list[tuple[float, int, Any]]] = {}
        for place, name in enumerate(level):
            user = self._users.get(name)
            group = name if user is None or user.is_owner or user.parent is None else user.parent
            groups.setdefault(group, []).append((self._own_order(name), place, name))
        for members in groups.values():
            heapq.heapify(members)
        heap = [(self._order(members[0][2]), members[0][1], members) for members in groups.values()]
        heapq.heapify(heap)
        return heap

    def _first_member(self, members: list[tuple[float, int, Any]], level: OrderedDict[Any, Any]) -> Any:
        while members:
            order, place, name = members[0]
            if name not in level:
                heapq.heappop(members)
            elif (present := self._own_order(name)) > order:
                heapq.heapreplace(members, (present, place, name))
            else:
                return name
        return None

    def _own_order(self, name: str | bytes) -> float:
        user = self._users.get(name)
        if user is None:
            return -math.inf  # all tasks of this member have ended: `take` removes it
        return math.inf if 0 < user.share.max_slots <= user.taken else user.standing

    def _order(self, name: str | bytes) -> tuple[float, ...]:
        user = self._users.get(name)
        if user is None:
            return ()
        return FULL if self._limited and user.is_full else (user.top.standing, user.standing)

    def took(self, task: Task, lane: Lane, owners: Owners) -> None:
        if not self.is_shared:
            super().took(task, lane, owners)
            return
        self._expect(task, 1)

    def allows(self, task: Task) -> bool:
        group = task.group
        for user in self._users[group.owner.id].line() if self._limited else ():
            if user.share.max_slots:
                slots, kept_for = width_of(group), self._kept_for.get(user, group)
                if kept_for.needs != group.needs and self._turn(kept_for) <= self._turn(group):
                    slots += width_of(kept_for)
                if user.taken + slots > user.share.max_slots:
                    user.taken = user.share.max_slots
                    return False
        return True

    def may_reserve(self, group: Group, placed: int) -> bool:
        """Return False if the group exceeds a maximum, or while its owner has a maximum and other ready tasks."""
        owner = self._owner_of(group)
        limits = [user.share.max_slots for user in owner.line() if user.share.max_slots]
        others = placed and limits and any(each.ready and each.needs != group.needs for each in owner.groups)
        slots = width_of(group) * max(1, group.needs.gang_size)
        return not others and slots <= min(limits, default=math.inf)

    def put_back(self, task: Task) -> None:
        if self.is_shared:
            self._expect(task, -1)
            self._heaps.clear()

    def _expect(self, task: Task, sign: int) -> None:
        owner, slots = self._owner_of(task.group), width_of(task.group)
        owner.expect(sign * owner.mean_seconds * slots)
        owner.take(sign * slots)
        owner.sent += sign * slots

    def standing(self, group: Group) -> tuple[float, ...]:
        return *self._leads.standings(self._owner_of(group), width_of(group)), group not in self._kept_for.values()

    def _turn(self, group: Group) -> tuple[float, ...]:
        return group.rank[0], *self._leads.standings(self._owner_of(group))

    def precedes(self, group: Group, other: Group) -> bool | None:
        return self.standing(group) < self.standing(other)

    def wanted(self, group: Group) -> int:
        found = group.ready
        for user in self._users[group.owner.id].line() if self._limited and found else ():
            if user.share.max_slots:
                user.count_slots()
                room, ready = user.share.max_slots - user.taken, sum(each.ready for each in user.groups)
                found = min(found, math.ceil(room * group.ready / ready) if room >= width_of(group) else 0)
        return found

    def text(self, group: Group) -> str:
        if not self.is_shared:
            return ""
        self.begin(self._now)
        owner = self._users[group.owner.id]
        for user in owner.line():
            if 0 < user.share.max_slots <= user.taken:
                return f"{user.title} uses {counted(round(user.taken), 'slot')}, its maximum"
        if len({each for each, _ in self._contenders}) == 1:
            return ""
        slots, user = self._slots, self._shown(group)
        part = user.part(weights_of(self._active()))
        return f"{user.title} has a share of {part * slots:.3g} of {counted(slots, 'slot')}"

    def _owner_of(self, group: Group) -> User:
        return self._users[group.owner.id]

    def _shown(self, group: Group) -> User:
        """Return the key of a group's owner, or the owner itself if its key has no name."""
        owner = self._owner_of(group)
        return owner if owner.parent is None or group.owner.account.key in UNNAMED else owner.parent

    def rows(
        self, _table: str, search: str, most: int, client: ClientRecord, _state: ClusterState
    ) -> Iterable[ShareRow]:
        self._update(self._now)
        for each in self.cluster.clients.values():  # a session may have continued on another host
            if each.id in self._users:
                self._users[each.id].title = f"client {each.name}"
        weights, slots = weights_of(self._active()), self._slots
        share, sees = (lambda user: slots * user.part(weights)), sees_of(client.identity)
        return islice(share_rows(self._users.values(), search, sees, share, self._now), most)

    def _is_long(self, task: Task) -> bool:
        return self._users[task.group.owner.id].is_long

    def holds_back(self, group: Group, worker: Worker, chosen: Sequence[Task]) -> bool:
        """Hold a long task back if long tasks occupy all slots of the worker: it would wait there while slots elsewhere
        become free. Hold a short task back if tasks there may be stopped for it. Hold a task with a maximum back,
        because waiting tasks count, and any task that would take the place of the next such task."""
        if self._binding:
            running = islice(worker.tasks.values(), worker.slots)
            groups = group, *(task.group for task in chain(running, chosen))
            if any(not self._binding.isdisjoint(self._owner_of(each).line()) for each in groups):
                return True
        if not self._owner_of(group).is_long:
            return self._preemption.is_behind(worker)
        long = sum(map(self._is_long, chain(worker.tasks.values(), chosen)))
        return long >= (1 if self._binding else worker.slots)

    def to_recall(self, overloaded: Sequence[Worker]) -> Iterator[tuple[Worker, Sequence[Task]]]:
        """Yield workers with their tasks to recall: tasks with a lower priority than a ready task, and long tasks that
        wait for other long tasks."""
        has_long = any(user.is_owner and user.is_long for user in self._active())
        if not has_long and len({priority for _, priority in self._contenders}) == 1:
            return
        has_room = self.cluster.rooms.resources.room
        waiting = [(queue.first_rank[0], queue) for queue in self.cluster.ready.waiting() if has_room(queue)]
        # Slots with short tasks become free soon, so a few workers are enough.
        wanted = sum(min(queue.total, len(overloaded)) for _, queue in waiting)
        left = MAX_COMPARED
        for worker in overloaded:
            best = min((priority for priority, queue in waiting if queue.needs.fits(worker.offers)), default=None)
            chosen = [] if best is None or worker.recalled else self._late(worker, best if wanted > 0 else None)
            wanted -= worker.slots if chosen else 0
            yield worker, chosen
            left -= len(worker.tasks)
            if left <= 0:
                break

    def to_preempt(self, now: float) -> Iterator[tuple[Worker, Task, str]]:
        self.preempt_at = now + self._preemption.pause_seconds
        if self.is_shared:
            weights, slots = weights_of(self._active()), self._slots
            yield from self._preemption.choose(self.cluster, lambda user: slots * user.part(weights), now)

    def _late(self, worker: Worker, best: int | None) -> list[Task]:
        """Return the queued tasks of a worker to recall. best: negated priority of a ready task."""
        tasks = worker.tasks.values()
        late = sum(map(self._is_long, tasks)) - worker.slots
        chosen: list[Task] = []
        for task in islice(reversed(tasks), worker.busy - worker.slots):
            if type(task.state) is Assigned and task.id not in worker.blocked:
                is_late = late > 0 and self._is_long(task)
                if is_late or (best is not None and best < task.group.rank[0]):
                    late -= is_late
                    chosen.append(task)
        return chosen[::-1]

    # -- use

    def on_time(self, now: Now) -> Iterable[Command]:
        self.next_at, spent, before = now.clock + COST_SECONDS, self.cluster.rooms.scaling.spent, self._spent
        self._spent = spent
        if before is not None:  # costs of earlier runs have been read
            divide(spent - before, (user for user in self._users.values() if user.is_owner), self._now)
        return ()

    def on_changes(self, changes: Sequence[Any], _now: Now) -> Iterable[Command]:
        for change in changes:
            if type(change) is TasksEnded:
                self._ended(change)
            else:
                self._changed(change, self._now)
        # At the end of the step, because its ended tasks do not count as use before their changes are processed.
        if self.is_shared and (self._now >= self._count_at or self._surprise > UPDATE_SECONDS * len(self._running)):
            self._update(self._now, counts=True)
        return ()

    def _changed(self, change: Any, now: float) -> None:
        match change:
            case TasksStarted():
                offset = change.ran.clock.offset_seconds
                for task, began_us in zip(change.tasks, change.ran.began_us, strict=False):
                    began_at = now if offset is None else min(now, self.cluster.own_time(began_us / 1e6 + offset))
                    if self._began(task, began_at) is not None and task.group.spec.preemptible:
                        self._preemption.began(task, began_at)
                        self.preempt_at = min(self.preempt_at, now)
            case TaskBlocked(task, is_blocked):
                if (running := self._began(task, now)) is not None:
                    running.block(now, is_blocked=is_blocked)
            case KeysRead(entries):
                self._learn(entries)
            case TaskRetried(task):
                if self._preemption.retried(task):
                    for user in self._owner_of(task.group).line():
                        user.stopped += 1
                if (running := self._running.pop(task.id, None)) is not None:
                    running.stop(now)
            case ClientLeft(client):
                for identifier in [each for each in self._running if each[: len(client)] == client]:
                    self._running.pop(identifier).stop(now)

    def _ended(self, ended: TasksEnded) -> None:
        if self._preemption.candidates or self._preemption.stops:
            self._preemption.ended(ended.ids)
        stops = [*ended.run_starts[1:], len(ended.ids)]
        for group, start, stop in zip(ended.run_groups, ended.run_starts, stops, strict=True):
            owner = self._users.get(group.owner.id)
            if owner is None:
                continue
            durations = ended.duration_us[start:stop]
            seconds = charged = sum(durations) / 1e6
            slots = width_of(group) if group.needs.cpus else 1.0
            unreported = timed = len(durations) - durations.count(0)
            if self._running:
                for identifier, duration_us in zip(ended.ids[start:stop], durations, strict=True):
                    if (running := self._running.pop(identifier, None)) is not None:
                        running.stop(self._now)
                        if duration_us:
                            unreported -= 1
                            self._surprise += owner.note_length(max(0.0, duration_us / 1e6 - running.waited))
                        charged -= running.ran + running.waited
            owner.sent -= unreported * slots
            owner.ran(timed, seconds, max(0.0, charged) * slots)

    def _began(self, task: Task, began_at: float) -> LongTask | None:
        owner = self._users.get(task.group.owner.id)
        if owner is None or task.group.client.terminated:
            return None
        if task.id not in self._running:
            self._running[task.id] = LongTask(owner, width_of(task.group), began_at)
        return self._running[task.id]
