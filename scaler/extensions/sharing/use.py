"""Slot-seconds used by groups, keys, and clients, divided by their weights. Pure.

A user's standing has two parts. Ended tasks count with their durations, which lose half of their weight every
`HALF_LIFE_SECONDS`. Tasks on workers count from dispatch with their expected duration: a running task with the mean of
the tasks that ran longer, other tasks with the overall mean. A user that becomes active again has an advantage of at
most `OWED_SECONDS` on all slots.
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
"""Minimum mean duration of long tasks."""
LEAD_SECONDS, STICKY_SECONDS = 1.0, 0.25
"""See `Leads`."""
MOST_MEASURED = 64
"""Number of tasks at which the sums of a mean duration are halved, so that older tasks lose weight."""
NEGLIGIBLE = 0.1
"""Durations of one magnitude are dropped once their weighted number of tasks is below this value."""


@dataclass(slots=True, eq=False)
class LongTask:
    """A task that the worker has reported as running. since: core time of its start, or of its last change between
    running and waiting for nested tasks (which are charged instead). ran, waited: seconds before `since`."""

    user: User
    width: float
    since: float
    is_blocked: bool = False
    ran: float = 0.0
    waited: float = 0.0

    def __post_init__(self) -> None:
        self.user.sent -= self.width
        self._count(self.width)

    def _count(self, slots: float) -> None:
        if self.is_blocked:
            self.user.blocked += slots
            for user in self.user.line():
                user.lent += slots
        else:
            self.user.running += slots
            self.user.sum_began += slots * self.since

    def block(self, now: float, *, is_blocked: bool) -> None:
        if is_blocked != self.is_blocked:
            self.stop(now)
            self.is_blocked, self.since = is_blocked, now
            self._count(self.width)

    def stop(self, now: float) -> None:
        """Charge the running time so far, and stop counting."""
        self._count(-self.width)
        seconds = max(0.0, now - self.since)
        if self.is_blocked:
            self.waited += seconds
        else:
            self.ran += seconds
            for user in self.user.line():
                user.used_seconds += seconds * self.width
                user.total_seconds += seconds * self.width


@dataclass(slots=True, eq=False)
class User:
    """A group of keys, a key, or a client with all its nested tasks. The user with the lowest standing goes first.
    parent: a client's key, or a key's group if it has one."""

    title: str
    parent: User | None = None
    share: Share = NO_SHARE
    taken: float = 0.0
    """Slots that the user's tasks occupy, if the user is limited."""
    used_seconds: float = 0.0
    standing: float = 0.0
    is_long: bool = True
    """Whether the user's tasks are long or of unknown length."""
    leads: bool = False
    """Whether the user was first among its siblings at the last update, if it has wide tasks."""
    is_owner: bool = False
    """Whether the user is a client outside tasks, which owns its tasks."""
    groups: dict[Group, None] = field(default_factory=dict)
    """The user's live task groups, including the groups of its clients."""
    stopped: int = 0
    """Number of the user's preempted tasks."""
    active_at: float = -math.inf
    """Time at which the user's last group began or ended."""
    ended: float = 0.0
    ended_seconds: float = 0.0
    lengths: dict[int, tuple[float, float]] = field(default_factory=dict)
    """Number and total duration of ended tasks that were reported as running, by binary order of magnitude."""
    mean_seconds: float = UNKNOWN_DURATION_SECONDS
    """Mean duration of the user's ended and running tasks."""
    total_seconds: float = 0.0
    """Slot-seconds charged since the scheduler started."""
    cost: float = 0.0
    paid_seconds: float = 0.0
    """Slot-seconds used by the time of the last division of costs."""
    running: float = 0.0
    """Slots of tasks reported as running. blocked: slots of blocked tasks. sent: slots of other tasks on workers."""
    blocked: float = 0.0
    sent: float = 0.0
    lent: float = 0.0
    """Slots lent by the user's blocked tasks."""
    sum_began: float = 0.0
    """Sum over running tasks of `since` times slots."""

    def expected_seconds(self, elapsed: float) -> float:
        """Return the expected duration of a task that has run for this time: the mean of longer tasks. A task that
        outlasts all earlier tasks is expected to run as long again."""
        longer = [each for each in self.lengths.values() if each[1] > elapsed * each[0]]
        if longer:
            return sum([seconds for _, seconds in longer]) / sum([count for count, _ in longer])
        longest = max([seconds / count for count, seconds in self.lengths.values()], default=0.0)
        return max(UNKNOWN_DURATION_SECONDS, 2 * elapsed - longest)

    def note_length(self, seconds: float) -> float:
        """Record the duration of an ended task that was reported as running. Returns the error of the estimate."""
        expected = self.expected_seconds(seconds)
        magnitude = math.frexp(seconds)[1]
        count, total = self.lengths.get(magnitude, (0.0, 0.0))
        if count >= MOST_MEASURED:
            self.lengths = {each: (a / 2, b / 2) for each, (a, b) in self.lengths.items() if a > NEGLIGIBLE}
            count, total = count / 2, total / 2
        self.lengths[magnitude] = count + 1, total + seconds
        return abs(expected - seconds)

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
        """Set the share, and scale earlier use so that the standing does not change."""
        self.used_seconds *= share.weight / self.share.weight
        self.share = share

    def expect(self, seconds: float) -> None:
        """Count a dispatched task until the next `update` includes it."""
        for user in self.line():
            user.standing += seconds / user.share.weight

    def line(self) -> list[User]:
        """Return the user, its key, and its group."""
        parent = self.parent
        if parent is None:
            return [self]
        return [self, parent] if parent.parent is None else [self, parent, parent.parent]

    @property
    def top(self) -> User:
        """An owner orders by itself within its key, and a key by its group, if it has one, and then by itself."""
        return self if self.parent is None or self.is_owner else self.parent

    @property
    def name(self) -> str:
        return self.title.partition(" ")[2]

    @property
    def path(self) -> str:
        """Titles of the user's group, key, and client, if any."""
        return " ".join([user.title for user in self.line()[::-1]])

    @property
    def is_listed(self) -> bool:
        """Whether to list the user: a client while it has tasks, a key or group if it has a share or ever had a
        task."""
        return bool(self.groups) or not (self.is_owner or (self.share == NO_SHARE and not self.total_seconds))

    def used_by(self, now: float) -> float:
        """Return the slot-seconds that a client has used since the start, including its running tasks."""
        return self.total_seconds + max(0.0, self.running * now - self.sum_began)

    @property
    def is_full(self) -> bool:
        return any(0 < user.share.max_slots <= user.taken for user in self.line())

    def count_slots(self) -> bool:
        """Count the slots that the user's tasks occupy, except slots lent by blocked tasks.

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
        """Return the slot-seconds to count for the user's tasks on workers."""
        running = self.running * self.expected_seconds(now - self.sum_began / self.running) if self.running else 0.0
        tasks = self.ended + self.running
        self.mean_seconds = (self.ended_seconds + running) / tasks if tasks else UNKNOWN_DURATION_SECONDS
        self.is_long = not self.ended or self.mean_seconds >= LONG_SECONDS
        return max(0.0, self.sent) * self.mean_seconds + running

    def part(self, weights: Weights) -> float:
        """Return the user's guaranteed share of all slots (0 to 1), given the weights of users with tasks."""
        return math.prod(each.share.weight / weights[each.parent, each.is_owner] for each in self.line())


Weights = Mapping[tuple[User | None, bool], float]


def weights_of(users: Iterable[User]) -> Weights:
    """Return the sums of the weights of users with the same parent."""
    weights = defaultdict[tuple[User | None, bool], float](float)
    for user in users:
        weights[user.parent, user.is_owner] += user.share.weight
    return weights


def width_of(group: Group) -> float:
    return max(1.0, group.needs.cpus or 0.0)


class Leads:
    """Lets wide tasks start next to narrow tasks of the same key or group, which take each slot that becomes free.

    A wide task that is first among its siblings may exceed the shares of its key and group by `LEAD_SECONDS`. It stays
    first until it is `STICKY_SECONDS` ahead, because the slots that it got became free one after another.
    """

    def __init__(self) -> None:
        self._active: Collection[User] = ()
        self._least: dict[User, float] = {}
        """Lowest standing among the siblings of users with wide tasks, or infinity."""

    def update(self, active: Collection[User], now: float, *, counts: bool) -> None:
        """Update the standings of active users. counts: whether to recount the tasks on workers."""
        self._active = active
        self._least.clear()
        for user in active:
            user.standing = user.used_seconds / user.share.weight
        for user in active:
            if user.is_owner:
                if counts:
                    assigned = sum([group.assigned * width_of(group) for group in user.groups])
                    user.sent = max(0.0, assigned - user.running - user.blocked)
                user.expect(user.committed(now))

    def standings(self, owner: User, width: float = 1.0) -> tuple[float, float, float]:
        """Return the standings of an owner's group (or else key), key, and the owner, for a task with this width."""
        found, lead, leads = list[float](), 0.0, width > 1
        for user in owner.line():
            found.append(user.standing - lead / user.share.weight if leads else user.standing)
            if leads:
                if user not in self._least:
                    self._least[user] = least = least_sibling(user, self._active)
                    user.leads = user.standing <= least + STICKY_SECONDS * user.leads
                leads = user.leads
                lead = lead or (LEAD_SECONDS * width if self._least[user] < math.inf else 0.0)
        return found[-1], found[1], found[0]


def least_sibling(user: User, users: Iterable[User]) -> float:
    """Return the lowest standing among the other users with the same parent, or infinity."""
    others = (each.standing for each in users if each.parent is user.parent and each is not user)
    return min(others, default=math.inf)


def divide(cost: float, owners: Iterable[User], now: float) -> None:
    """Divide a cost in proportion to the slot-seconds that clients have used since the last call."""
    used = {owner: owner.used_by(now) for owner in owners}
    seconds = sum(used[owner] - owner.paid_seconds for owner in used)
    for owner in used if seconds > 0 else ():
        for user in owner.line():
            user.cost += cost * (used[owner] - owner.paid_seconds) / seconds
        owner.paid_seconds = used[owner]


def admit(user: User, users: Iterable[User], slots: int) -> None:
    """Limit how far a user that becomes active is behind active users."""
    least = least_sibling(user, users)
    owed = least * user.share.weight - user.used_seconds if least < math.inf else 0.0
    user.used_seconds += max(0.0, owed - OWED_SECONDS * slots)
    user.standing = user.used_seconds / user.share.weight
