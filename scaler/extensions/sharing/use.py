"""What keys and their clients use: slot-seconds over weight. Pure.

A user has used the slot-seconds of its ended tasks, of which half are forgotten after `HALF_LIFE_SECONDS`, and is
charged for the tasks that it has on workers: what they ran so far, or what its tasks usually take. A user that becomes
active again is owed at most `OWED_SECONDS` of all slots, so that it never keeps others out for longer.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from scaler.scheduler.core.state import PREFETCH_SECONDS, UNKNOWN_DURATION_SECONDS, Group

HALF_LIFE_SECONDS = 120.0
OWED_SECONDS = 10.0
LONG_SECONDS = PREFETCH_SECONDS / 2
"""Mean duration from which tasks are long."""
MOST_MEASURED = 64
"""Tasks in the mean duration after which older ones lose weight."""


@dataclass(slots=True, eq=False)
class Running:
    """A task that runs for long. began_at: core time; None while it waits for its own tasks, which are charged instead.
    charged_seconds: charged so far. blocked_seconds: how long it waited."""

    user: User
    width: float
    began_at: float | None
    charged_seconds: float = 0.0
    blocked_at: float = 0.0
    blocked_seconds: float = 0.0


@dataclass(slots=True, eq=False)
class User:
    """Use of a key, or of a client outside of tasks with all its nested tasks. standing: the lowest has its turn."""

    key: User | None = None
    weight: float = 1.0
    used_seconds: float = 0.0
    standing: float = 0.0
    is_long: bool = True
    """Its tasks are long, or of unknown length."""
    groups: dict[Group, None] = field(default_factory=dict)
    """Live groups of an owner, and of all owners for a key."""
    active_at: float = -math.inf
    """When its last group began or ended."""
    ended: float = 0.0
    ended_seconds: float = 0.0
    sent_at: float = math.inf
    """Since when it has tasks on workers, before the first of them ended."""
    running: int = 0
    blocked: int = 0
    sum_began: float = 0.0
    """Sum of `began_at` of its running tasks."""

    def mean_seconds(self, now: float) -> float:
        """Return the duration of its tasks. Before the first one ends: twice as long as they run already."""
        if self.ended:
            return self.ended_seconds / self.ended
        return max(UNKNOWN_DURATION_SECONDS, 2 * (now - self.sent_at))

    def note_ended(self, tasks: int, seconds: float) -> None:
        if self.ended >= MOST_MEASURED:
            self.ended /= 2
            self.ended_seconds /= 2
        self.ended += tasks
        self.ended_seconds += seconds

    def charge(self, seconds: float) -> None:
        self.used_seconds += seconds
        if self.key is not None:
            self.key.used_seconds += seconds

    def expect(self, seconds: float) -> None:
        """Charge a task that is sent now, until the next `update`."""
        self.standing += seconds / self.weight
        if self.key is not None:
            self.key.standing += seconds / self.key.weight

    def committed(self, now: float) -> float:
        """Return the slot-seconds of its tasks on workers: what they ran or what they usually take."""
        assigned = sum(group.assigned * width_of(group) for group in self.groups)
        if not self.ended:
            self.sent_at = min(self.sent_at, now) if assigned else math.inf
        mean = self.mean_seconds(now)
        others = max(0.0, assigned - self.running - self.blocked)
        return others * mean + max(self.running * mean, self.running * now - self.sum_began)

    def begin(self, task: Running, now: float) -> None:
        task.began_at = now
        self.running += 1
        self.sum_began += now

    def pause(self, task: Running, now: float) -> None:
        """Charge what a task has run since it began or continued."""
        if task.began_at is not None:
            seconds = max(0.0, now - task.began_at)
            task.charged_seconds += seconds
            self.charge(seconds * task.width)
            self.running -= 1
            self.sum_began -= task.began_at
            task.began_at = None


def width_of(group: Group) -> float:
    return max(1.0, group.needs.cpus or 0.0)


def update(users: Collection[User], now: float) -> None:
    """Bring the standings of active users up to date."""
    for user in users:
        user.standing = user.used_seconds / user.weight
        user.is_long = not user.ended or user.ended_seconds >= LONG_SECONDS * user.ended
    for user in users:
        if user.key is not None:
            user.expect(user.committed(now))


def admit(user: User, others: Iterable[User], slots: int) -> None:
    """Limit what a user that becomes active is owed, relative to the active others."""
    least = min((other.standing for other in others), default=-math.inf)
    owed = least * user.weight - user.used_seconds
    user.used_seconds += max(0.0, owed - OWED_SECONDS * slots)
    user.standing = user.used_seconds / user.weight
