"""Selects started tasks to stop in favor of ready tasks. Pure. A preemptible task is stopped for the next ready task if
the ready task has a higher priority, or if the ready task's owner has less than its share of the slots. These rules
prevent unnecessary losses:

- The ready task needs no more than the stopped task frees, and no slot would become free soon anyway.
- A stop for a share saves at least as much waiting time as it loses work, and leaves the losing owner its share.
- A slot that an owner got in turn while the other owner was waiting is safe for a while.
- A task first runs for `LEAST_SECONDS`, doubled after each stop, and therefore completes eventually.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from scaler.extensions.sharing.use import User, width_of
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.ready import ReadyQueue
from scaler.scheduler.core.state import Assigned, Group, Recalled, Task, Worker

PERIOD_SECONDS, SECONDS_PER_TASK = 0.1, 1e-4
"""Interval between checks: SECONDS_PER_TASK for each running preemptible task, but at least PERIOD_SECONDS."""
MAX_STOPPED = 16
"""Maximum number of tasks stopped per check and queue."""
MAX_IDLE_COMPARED = 64
LEAST_SECONDS, MOST_FOR_SHARES = 1.0, 8.0
PATIENCE_SECONDS, SOON_SECONDS = 0.05, 1.0
"""Conditions for a stop in favor of a higher priority: minimum wait so far, and minimum expected further wait."""
SHARE_PATIENCE_SECONDS, SHARE_SOON_SECONDS = 1.0, 5.0
"""The same two times for a stop in favor of a task whose owner has less than its share."""
IN_TURN_SECONDS = 30.0
"""Both times for such a stop if the other owner got its slot in turn."""
ROUNDING = 1e-6
LEAD_SECONDS = 1.0

Reason = tuple[Group, bool]
"""A waiting group, and whether it waits for slots of tasks with lower priority (True) or for its share (False)."""


@dataclass(slots=True, eq=False)
class Candidate:
    """A started task that may be stopped. ahead: the group in whose favor it is being stopped."""

    task: Task
    attempt: int
    began_at: float
    ahead: Group | None = None

    @property
    def worker(self) -> Worker:
        state = self.task.state
        assert isinstance(state, Assigned | Recalled), "other tasks are not running"
        return state.worker

    @property
    def width(self) -> float:
        return width_of(self.task.group)

    @property
    def may_stop(self) -> bool:
        worker = self.worker  # a task queued behind the stopped task would start instead
        return worker.is_willing and worker.busy <= worker.slots and self.task.id not in worker.blocked

    def left_seconds(self, now: float) -> float:
        """Return the expected remaining run time, or the run time so far if unknown or exceeded."""
        ran, timing = now - self.began_at, self.task.group.timing
        usual = timing.seconds if timing.measured else self.task.group.spec.expected_seconds
        return usual - ran if usual > ran else ran


class Preemption:
    def __init__(self, user_of: Callable[[Group], User], shown: Callable[[Group], User]) -> None:
        """user_of: returns the owner of a group. shown: returns the owner, or its key."""
        self._user_of, self._shown = user_of, shown
        self._slots_of: Callable[[User], float]
        self.candidates: dict[bytes, Candidate] = {}
        self.stops: Counter[bytes] = Counter()
        """Number of stops of each task."""
        self._since: dict[Reason, float] = {}
        self._slots: defaultdict[User, float] = defaultdict(float)
        self._standings: defaultdict[User, float] = defaultdict(float)
        """Changes in slots and standings due to stops in progress."""
        self._surplus: dict[User, float] = {}

    @property
    def pause_seconds(self) -> float:
        return max(PERIOD_SECONDS, SECONDS_PER_TASK * len(self.candidates)) if self.candidates else math.inf

    # -- running tasks

    def began(self, task: Task, began_at: float) -> None:
        known = self.candidates.get(task.id)
        if known is None or known.attempt != task.attempt:
            self.candidates[task.id] = Candidate(task, task.attempt, began_at)

    def ended(self, tasks: Iterable[bytes]) -> None:
        for task in tasks:
            self.candidates.pop(task, None)
            self.stops.pop(task, None)

    def retried(self, task: Task) -> bool:
        """Called when an attempt ended without a result. Returns whether it was stopped for another task."""
        candidate = self.candidates.pop(task.id, None)
        was_stopped = candidate is not None and candidate.ahead is not None
        if was_stopped:
            self.stops[task.id] += 1
        return was_stopped

    def is_behind(self, worker: Worker) -> bool:
        """Return whether all slots of a worker have tasks that may be stopped. No task should be queued there."""
        return bool(self.candidates) and sum(task in self.candidates for task in worker.tasks) >= worker.slots

    # -- choice of the tasks to stop

    def choose(
        self, cluster: ClusterState, slots_of: Callable[[User], float], now: float
    ) -> Iterator[tuple[Worker, Task, str]]:
        """Yield workers, the task to stop, and a text about the task to start. slots_of: returns a user's share of the
        slots."""
        self._slots_of = slots_of
        stopping: Counter[Group] = Counter()
        running = self._running(stopping, now)
        earlier: list[ReadyQueue] = []
        before, self._since = self._since, {}
        for queue in cluster.ready.waiting():
            first = queue.first()
            room = cluster.rooms.resources.room(queue) if queue.needs.is_limited else MAX_STOPPED
            if first is None or queue.needs.gang or not room:
                continue
            fitting: list[Candidate] | None = None
            for group in (first.group, *self._user_of(first.group).groups):
                left = min(cluster.ready.turns.wanted(group), room) - stopping[group]
                if left <= 0 or group.needs != queue.needs or group.rank[0] != first.group.rank[0]:
                    continue
                if fitting is None:
                    fitting = [each for each in running if _fits(queue, each)] if not _has_room(cluster, queue) else []
                    fitting = [each for each in fitting if not any(_fits(other, each) for other in earlier)]
                for each, why in islice(
                    self._for(group, fitting, cluster.own_time(group.oldest()[0]), before, now), left
                ):
                    each.ahead = group
                    stopping[group] += 1
                    self._count(each, group, now)
                    yield each.worker, each.task, f"a task of {self._shown(group).title} {why}"
            earlier.append(queue)

    def _running(self, stopping: Counter[Group], now: float) -> list[Candidate]:
        """Return the tasks that may be stopped, in order of preference. stopping: receives the number of stops in
        progress, by favored group."""
        running: list[Candidate] = []
        for counts in (self._surplus, self._slots, self._standings):
            counts.clear()
        for each in self.candidates.values():
            state = each.task.state
            if type(state) is Recalled and each.ahead is not None:
                stopping[each.ahead] += 1
                self._count(each, each.ahead, now)
            elif type(state) is Assigned and each.task.attempt == each.attempt:
                if each.ahead is not None:
                    each.ahead, each.began_at = None, math.inf  # the worker cannot stop the task
                running.append(each)
        return sorted(running, key=lambda each: (-each.task.group.rank[0], (now - each.began_at) * each.width))

    def _for(
        self, group: Group, fitting: list[Candidate], arrived_at: float, before: Mapping[Reason, float], now: float
    ) -> Iterator[tuple[Candidate, str]]:
        """Yield the tasks to stop in favor of a group, chosen from the fitting tasks in order of preference."""
        gainer = self._user_of(group)
        newest = self._newest(fitting)
        waits: dict[bool, float] = {}
        for each in fitting:
            lower, ran = each.task.group.rank[0] - group.rank[0], now - each.began_at
            gains, loses = _apart(gainer, self._user_of(each.task.group))
            if each.ahead is not None or lower < 0 or (not lower and not self._is_owed(gains, loses, group, each)):
                continue
            reason = group, lower > 0
            waited = now - self._since.setdefault(reason, before.get(reason, now))
            least = LEAST_SECONDS * 2 ** min(self.stops[each.task.id], 64)
            patience, soon = PATIENCE_SECONDS, SOON_SECONDS
            if not lower:
                patience, soon = SHARE_PATIENCE_SECONDS, SHARE_SOON_SECONDS
                if newest[loses[-1]] > arrived_at + PERIOD_SECONDS:  # the ready task was waiting
                    patience = soon = IN_TURN_SECONDS
                soon, least = max(ran, soon), min(least, MOST_FOR_SHARES)
            if reason[1] not in waits:
                others = (
                    x for x in fitting if x.ahead is None and (lower or self._user_of(x.task.group) is not gainer)
                )
                waits[reason[1]] = min((x.left_seconds(now) for x in others), default=0.0)
            if waited >= patience and waits[reason[1]] >= soon and ran >= least and each.may_stop:
                if not lower:
                    self._give(gains[-1], loses[-1], each, now)
                waits.clear()
                yield each, f"with priority {group.spec.priority}" if lower else "with less than its share"

    def _newest(self, candidates: Iterable[Candidate]) -> Mapping[User, float]:
        """Return the latest start of these tasks, by user."""
        newest: dict[User, float] = {}
        for each in candidates:
            for user in self._user_of(each.task.group).line():
                newest[user] = max(newest.get(user, -math.inf), each.began_at)
        return newest

    def _is_owed(self, gains: list[User], loses: list[User], group: Group, candidate: Candidate) -> bool:
        """Return whether, after a stop, gaining users have at most their shares, and losing users at least theirs."""
        gained, lost = width_of(group), candidate.width
        return bool(gains and loses) and (
            all(self._beyond(user) + gained <= ROUNDING for user in gains)
            and all(self._beyond(user) - lost >= -ROUNDING for user in loses)
        )

    def _beyond(self, user: User) -> float:
        """Return how many slots a user has beyond its share."""
        if user not in self._surplus:
            has = sum(group.assigned * width_of(group) for group in user.groups) - user.lent
            self._surplus[user] = has - self._slots_of(user)
        return self._surplus[user] + self._slots[user]

    def _give(self, gainer: User, loser: User, candidate: Candidate, now: float) -> None:
        """Reduce the gainer's counted use until the gainer has the next turn for the freed slot."""
        rest = self._rest(candidate, now) / loser.share.weight
        lead = gainer.standing + self._standings[gainer] - (loser.standing + self._standings[loser] - rest)
        if lead > -LEAD_SECONDS:
            gainer.used_seconds -= (lead + LEAD_SECONDS) * gainer.share.weight
            gainer.standing -= lead + LEAD_SECONDS

    def _rest(self, candidate: Candidate, now: float) -> float:
        """Return the expected slot-seconds that an owner is no longer charged once its task has stopped."""
        mean = self._user_of(candidate.task.group).mean_seconds
        return max(0.0, mean - (now - candidate.began_at)) * candidate.width

    def _count(self, candidate: Candidate, group: Group, now: float) -> None:
        """Count a stop in progress as completed."""
        rest, gained = self._rest(candidate, now), width_of(group)
        for user in self._user_of(candidate.task.group).line():
            self._slots[user] -= candidate.width
            self._standings[user] -= rest / user.share.weight
        for user in (owner := self._user_of(group)).line():
            self._slots[user] += gained
            self._standings[user] += owner.mean_seconds * gained / user.share.weight


def _apart(gainer: User, loser: User) -> tuple[list[User], list[User]]:
    """Return two owners' lines (owner, key, group), each without users common to both."""
    gains, loses = [*gainer.line()], [*loser.line()]
    return [each for each in gains if each not in loses], [each for each in loses if each not in gains]


def _fits(queue: ReadyQueue, candidate: Candidate) -> bool:
    """Return whether the next task of a queue fits the candidate's worker once the candidate has ended."""
    needs, worker, freed = queue.needs, candidate.worker, candidate.task.needs
    claims = worker.claims
    if not needs.fits(worker.offers) or claims.reserved not in (None, queue):
        return False
    if not needs.is_counted and not claims.extra:
        return True
    offers, slots = worker.offers, worker.slots
    if needs.width(offers, slots) > slots - worker.busy - claims.extra + freed.width(offers, slots):
        return False
    amounts = dict(freed.claims)
    return claims.count(needs, queue) > 0 or all(amounts.get(name, 0) >= amount for name, amount in needs.claims)


def _has_room(cluster: ClusterState, queue: ReadyQueue) -> bool:
    pools = [pool for pool in cluster.pools.values() if queue.needs.fits(pool.offers)]
    idle = (worker for pool in pools for worker in islice(pool.idle, MAX_IDLE_COMPARED))
    return any(worker.count(queue.needs, queue) > 0 for worker in idle)
