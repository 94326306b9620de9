"""Slot-seconds used by groups, keys, and clients, divided by their weights. Pure.

A user's standing has two parts. Its ended tasks count with their durations, which lose half of their weight every
`HALF_LIFE_SECONDS`. Its tasks on workers count with their mean duration, or with the time they have run if that is
longer. A user that becomes active again gets an advantage of at most `OWED_SECONDS` on all slots.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from scaler.scheduler.core.state import PREFETCH_SECONDS, UNKNOWN_DURATION_SECONDS, Group
from scaler.security.keys import NO_SHARE, Share

HALF_LIFE_SECONDS = 120.0
OWED_SECONDS = 10.0
LONG_SECONDS = PREFETCH_SECONDS / 2
"""Mean duration from which tasks are long."""
MOST_MEASURED = 64
"""Number of tasks in the mean duration after which older tasks lose weight."""


@dataclass(slots=True, eq=False)
class LongTask:
    """A task that the worker has reported as running. began_at: core time; None while the task waits for nested tasks,
    which are charged instead. charged_seconds, blocked_seconds: running and waiting time up to then."""

    user: User
    width: float
    began_at: float | None
    charged_seconds: float = 0.0
    blocked_at: float = 0.0
    blocked_seconds: float = 0.0

    def block(self, now: float, *, is_blocked: bool) -> None:
        if is_blocked and self.began_at is not None:
            self.user.pause(self, now)
            self.blocked_at = now
            self._lend(self.width)
        elif not is_blocked and self.began_at is None:
            self._unblock(now)
            self.user.begin(self, now)

    def stop(self, now: float) -> None:
        if self.began_at is None:
            self._unblock(now)
        else:
            self.user.pause(self, now)

    def _unblock(self, now: float) -> None:
        self.blocked_seconds += now - self.blocked_at
        self._lend(-self.width)

    def _lend(self, slots: float) -> None:
        self.user.blocked += slots
        for user in self.user.line():
            user.lent += slots


@dataclass(slots=True, eq=False)
class User:
    """A group of keys, a key, or a client with all its nested tasks. The one with the lowest standing goes first.
    parent: a client's key, or a key's group if it has one."""

    title: str
    parent: User | None = None
    share: Share = NO_SHARE
    taken: float = 0.0
    """Slots that its tasks occupy, if the user is limited."""
    used_seconds: float = 0.0
    standing: float = 0.0
    is_long: bool = True
    """Whether its tasks are long, or of unknown length."""
    is_owner: bool = False
    """Whether it is a client outside tasks, which owns its tasks."""
    groups: dict[Group, None] = field(default_factory=dict)
    """Its live task groups, including its clients' groups."""
    stopped: int = 0
    """Its preempted tasks."""
    active_at: float = -math.inf
    """When its last group began or ended."""
    ended: float = 0.0
    ended_seconds: float = 0.0
    sent_at: float = math.inf
    """When its first tasks were sent to workers, until one of them ends."""
    total_seconds: float = 0.0
    """Slot-seconds that were charged since the start."""
    cost: float = 0.0
    paid_seconds: float = 0.0
    """Slot-seconds up to the last division of costs."""
    running: float = 0.0
    """Slots of its tasks that are known to run; likewise `blocked`."""
    blocked: float = 0.0
    lent: float = 0.0
    """Slots lent by its blocked tasks."""
    sum_began: float = 0.0
    """Sum of `began_at` of its running tasks, times their slots."""

    def mean_seconds(self, now: float) -> float:
        """Return the mean duration of its tasks, or an estimate from their age until the first one ends."""
        if self.ended:
            return self.ended_seconds / self.ended
        return max(UNKNOWN_DURATION_SECONDS, 2 * (now - self.sent_at))

    def ran(self, tasks: int, seconds: float, charged_seconds: float) -> None:
        """Count and charge ended tasks with this total duration."""
        for user in self.line():
            user.used_seconds += charged_seconds
            user.total_seconds += charged_seconds
        if self.ended >= MOST_MEASURED:
            self.ended /= 2
            self.ended_seconds /= 2
        self.ended += tasks
        self.ended_seconds += seconds

    def give(self, share: Share) -> None:
        """Set the share, and scale earlier use so that the standing stays the same."""
        self.used_seconds *= share.weight / self.share.weight
        self.share = share

    def charge(self, seconds: float) -> None:
        for user in self.line():
            user.used_seconds += seconds
            user.total_seconds += seconds

    def expect(self, seconds: float) -> None:
        """Count a task that is being sent until the next `update` counts it."""
        for user in self.line():
            user.standing += seconds / user.share.weight

    def line(self) -> list[User]:
        """Return the user, its key, and its group."""
        parent = self.parent
        if parent is None:
            return [self]
        return [self, parent] if parent.parent is None else [self, parent, parent.parent]

    @property
    def order(self) -> tuple[float, ...]:
        """Sort key. Orders owners within their key, and keys by group first. A key without a group counts as a group of
        its own."""
        if self.parent is None or self.is_owner:
            return self.standing, self.standing
        return self.parent.standing, self.standing

    @property
    def is_key(self) -> bool:
        return self.title.startswith("key ")

    @property
    def name(self) -> str:
        return self.title.partition(" ")[2]

    @property
    def path(self) -> str:
        """Its group, key, and client, if any."""
        return " ".join([user.title for user in self.line()[::-1]])

    @property
    def is_listed(self) -> bool:
        """Clients are listed while they have tasks, keys and groups if they have a share or ever had a task."""
        return bool(self.groups) or not (self.is_owner or (self.share == NO_SHARE and not self.total_seconds))

    def used_by(self, now: float) -> float:
        """Return the slot-seconds that a client has used since the start, including its running tasks."""
        return self.total_seconds + max(0.0, self.running * now - self.sum_began)

    @property
    def is_full(self) -> bool:
        return any(0 < user.share.max_slots <= user.taken for user in self.line())

    def count_slots(self) -> bool:
        """Count the slots that its tasks occupy, except those lent by blocked tasks.

        Returns whether the user is no longer at its limit.
        """
        was_full = self.taken >= self.share.max_slots
        if self.share.max_slots:
            self.taken = sum(group.assigned * width_of(group) for group in self.groups) - self.lent
        return was_full and self.taken < self.share.max_slots

    def take(self, slots: float) -> None:
        for user in self.line():
            user.taken += slots

    def committed(self, now: float) -> float:
        """Return the slot-seconds to count for its tasks on workers."""
        assigned = sum(group.assigned * width_of(group) for group in self.groups)
        if not self.ended:
            self.sent_at = min(self.sent_at, now) if assigned else math.inf
        mean = self.mean_seconds(now)
        others = max(0.0, assigned - self.running - self.blocked)
        return others * mean + max(self.running * mean, self.running * now - self.sum_began)

    def part(self, weights: Weights) -> float:
        """Return the share of all slots that it may count on while all other users with tasks want more."""
        return math.prod(each.share.weight / weights[each.parent, each.is_owner] for each in self.line())

    def begin(self, task: LongTask, now: float) -> None:
        task.began_at = now
        self.running += task.width
        self.sum_began += now * task.width

    def pause(self, task: LongTask, now: float) -> None:
        """Charge a task's running time so far, and stop counting."""
        if task.began_at is not None:
            seconds = max(0.0, now - task.began_at)
            task.charged_seconds += seconds
            self.charge(seconds * task.width)
            self.running -= task.width
            self.sum_began -= task.began_at * task.width
            task.began_at = None


Weights = Mapping[tuple[User | None, bool], float]


def weights_of(users: Iterable[User]) -> Weights:
    """Return the sums of the weights of users with the same parent."""
    weights = defaultdict[tuple[User | None, bool], float](float)
    for user in users:
        weights[user.parent, user.is_owner] += user.share.weight
    return weights


def width_of(group: Group) -> float:
    return max(1.0, group.needs.cpus or 0.0)


def update(users: Collection[User], now: float) -> None:
    """Bring the standings of active users up to date."""
    for user in users:
        user.standing = user.used_seconds / user.share.weight
        user.is_long = not user.ended or user.ended_seconds >= LONG_SECONDS * user.ended
    for user in users:
        if user.is_owner:
            user.expect(user.committed(now))


def divide(cost: float, owners: Iterable[User], now: float) -> None:
    """Divide a cost by the slot-seconds that clients have used since the last call."""
    used = {owner: owner.used_by(now) for owner in owners}
    seconds = sum(used[owner] - owner.paid_seconds for owner in used)
    for owner in used if seconds > 0 else ():
        for user in owner.line():
            user.cost += cost * (used[owner] - owner.paid_seconds) / seconds
        owner.paid_seconds = used[owner]


def admit(user: User, others: Iterable[User], slots: int) -> None:
    """Limit how far a user that becomes active is behind the other active ones."""
    least = min((other.standing for other in others), default=-math.inf)
    owed = least * user.share.weight - user.used_seconds
    user.used_seconds += max(0.0, owed - OWED_SECONDS * slots)
    user.standing = user.used_seconds / user.share.weight
