"""Simulates users of a cluster in the scheduler's core, and under the rules of other schedulers.

All run in the test bed of the sharing room (`tests/extensions/sharing/bed.py`). Every user has more tasks than slots.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import NamedTuple

from scaler.security.keys import Share
from tests.extensions.sharing.bed import Bed, Flood

SLOTS = 12
SAMPLE_SECONDS = 0.25
WINDOW_SECONDS, LATE_WINDOW_SECONDS = 10, 1
HALF_LIFE_SECONDS = 120.0
"""Half-life of use in Slurm's formula, as in Scaler. Slurm's default is a week."""


@dataclass(frozen=True)
class User:
    """A key with one client. seconds: duration of its tasks. away: when it stops submitting, and when it returns."""

    name: str
    seconds: float
    weight: float = 1.0
    maximum: int = 0
    group: str = ""
    begins: float = 0.0
    away: tuple[float, float] = (0.0, 0.0)

    @property
    def top(self) -> tuple[str, float]:
        """Its group and the group's weight. A user without a group is its own group."""
        return (self.group, 1.0) if self.group else (self.name, self.weight)


@dataclass(frozen=True)
class Workload:
    """late: the user that arrives or returns. backlog: unfinished tasks of each user, per slot."""

    title: str
    users: tuple[User, ...]
    seconds: int = 60
    late: User | None = None
    backlog: int = 60


EARLY = User("red1", 1.0, group="a"), User("red2", 0.2, group="a"), User("green", 0.1, group="b")
LATE = User("blue", 0.3, group="c", begins=30.0)
BACK = User("back", 0.1, away=(30.0, 60.0))
WORKLOADS = (
    Workload("2 s and 0.05 s", (User("long", 2.0), User("short", 0.05))),
    Workload("0.5 s and 0.02 s", (User("long", 0.5), User("short", 0.02))),
    Workload("weights 1 and 3", (User("one", 0.1), User("three", 0.5, weight=3.0))),
    Workload("three groups, one arrives late", (*EARLY, LATE), 90, LATE),
    Workload("one returns after 30 s", (User("stays", 0.5), BACK), 120, BACK, backlog=4),
    Workload("one has a maximum of 2 slots", (User("limited", 0.5, maximum=2), User("free", 0.1))),
)


class Simulation(Bed):
    """Scaler: the scheduler's core with the sharing room."""

    def __init__(self, workload: Workload) -> None:
        super().__init__(SLOTS // 2, slots=2)
        self.users = {user.name: user for user in workload.users}
        self.share(**{user.name: Share(user.weight, user.maximum, user.group) for user in workload.users})
        for user in workload.users:
            flood = self.flood(user.name, user.seconds, user.begins, key=user.name, backlog=workload.backlog)
            if any(user.away):
                self.at(user.away[0], partial(self.stop, user.name))
                self.at(user.away[1], partial(self._return, user.name, flood, workload.backlog * SLOTS))

    def _return(self, name: str, flood: Flood, tasks: int) -> None:
        for _ in range(tasks):
            self._submit(name, flood)


class Fifo(Simulation):
    """Dask and Ray: tasks start in the order in which they were submitted."""

    def __init__(self, workload: Workload) -> None:
        self.waiting: dict[str, deque[tuple[int, bytes]]] = {user.name: deque() for user in workload.users}
        self.used, self.held, self.observed_at = dict.fromkeys(self.waiting, 0.0), dict.fromkeys(self.waiting, 0), 0.0
        super().__init__(workload)

    def _submit(self, name: str, flood: Flood) -> None:
        task = self.task_id(name)
        self.seconds[task] = flood.seconds(flood.sent)
        flood.sent += 1
        self.flooding.add(task)
        self.waiting[name].append((next(self._order), task))
        for worker in self.running:
            self._start(worker)

    def _send(self, *_: object) -> None:
        """The core does not take part."""

    def _start(self, worker: str) -> None:
        while len(self.running[worker]) < self.slots and (names := [*filter(self.may_start, self.waiting)]):
            number, task = self.waiting[min(names, key=self.turn)].popleft()
            self.queues[worker].append(((0, 0), number, task, 1))
            super()._start(worker)
        self.observe()

    def observe(self) -> None:
        """Charge the slot-seconds since the last change. Earlier use decays."""
        seconds = self.now - self.observed_at
        decay = 0.5 ** (seconds / HALF_LIFE_SECONDS)
        self.used = {name: self.used[name] * decay + slots * seconds for name, slots in self.held.items()}
        self.held, self.observed_at = self.slots_used, self.now

    def may_start(self, name: str) -> bool:
        return bool(self.waiting[name])

    def turn(self, name: str) -> tuple[float, ...]:
        """Return a sort key: the user with the lowest goes first."""
        return (self.waiting[name][0][0],)


class Yarn(Fifo):
    """YARN's fair scheduler: the fewest slots for its weight, of groups and then of users."""

    def may_start(self, name: str) -> bool:
        maximum = self.users[name].maximum
        return bool(self.waiting[name]) and (not maximum or self.slots_used[name] < maximum)

    def turn(self, name: str) -> tuple[float, ...]:
        self.observe()
        user = self.users[name]
        members = [each.name for each in self.users.values() if each.top == user.top]
        return self.order(members, user.top[1]), self.order([name], user.weight)

    def order(self, names: Sequence[str], weight: float) -> float:
        return sum(self.held[name] for name in names) / weight


class Slurm(Yarn):
    """Slurm's multifactor priority with fair share only, updated at every decision."""

    def order(self, names: Sequence[str], weight: float) -> float:
        usage = sum(self.used[name] for name in names) / (sum(self.used.values()) or 1.0)
        share = weight / sum(user.weight for user in self.users.values())
        return -math.exp2(-usage / share)


SCHEDULERS = {"Scaler": Simulation, "FIFO": Fifo, "Slurm": Slurm, "YARN": Yarn}


class Outcome(NamedTuple):
    """error: mean distance from the ideal shares. late_seconds: until the late user, if any, has at least 90 % of its
    share, and 90 to 110 % of it; None for never."""

    error: float
    late_seconds: tuple[float | None, ...]
    utilization: float


def simulate(scheduler: str, workload: Workload) -> Outcome:
    bed = SCHEDULERS[scheduler](workload)
    used = [bed.shares(SAMPLE_SECONDS) for _ in range(int(workload.seconds / SAMPLE_SECONDS))]
    errors = [
        abs(share_of(name, used, begins, WINDOW_SECONDS) - share)
        for begins in range(0, workload.seconds, WINDOW_SECONDS)
        for name, share in ideal(workload.users, begins).items()
    ]
    late = [until_share(workload.late, workload, used, most) for most in (math.inf, 1.1)] if workload.late else []
    total = sum(sum(each.values()) for each in used) / SLOTS / workload.seconds
    return Outcome(fmean(errors), tuple(late), total)


def share_of(name: str, used: Sequence[dict[str, float]], begins: float, seconds: float) -> float:
    first, samples = int(begins / SAMPLE_SECONDS), int(seconds / SAMPLE_SECONDS)
    return sum(each[name] for each in used[first : first + samples]) / seconds / SLOTS


def until_share(user: User, workload: Workload, used: Sequence[dict[str, float]], most: float) -> float | None:
    """Return when the late user first has 0.9 to `most` times its share in a window."""
    arrives = user.away[1] or user.begins
    share = ideal(workload.users, arrives)[user.name]
    delays = [number * SAMPLE_SECONDS for number in range(int((workload.seconds - arrives) / SAMPLE_SECONDS))]
    parts = {each: share_of(user.name, used, arrives + each, LATE_WINDOW_SECONDS) / share for each in delays}
    return next((each + LATE_WINDOW_SECONDS for each, part in parts.items() if 0.9 <= part <= most), None)


def ideal(users: Sequence[User], at: float) -> dict[str, float]:
    """Return the share of each active user: by weight. Users without a maximum get what the others leave."""
    left = [user for user in users if user.begins <= at and not user.away[0] <= at < user.away[1]]
    shares: dict[str, float] = {}
    while left:
        free = (1.0 - sum(shares.values())) / sum(dict(user.top for user in left).values())
        found = {
            user.name: free * user.top[1] * user.weight / sum(each.weight for each in left if each.top == user.top)
            for user in left
        }
        full = [user for user in left if 0 < user.maximum <= found[user.name] * SLOTS]
        shares |= {user.name: user.maximum / SLOTS for user in full} if full else found
        left = [user for user in left if user not in full] if full else []
    return shares
