"""The scheduler part: places gangs, stops their members together, and answers when all are ready. Pure."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from scaler.config.addresses import parsed_host
from scaler.extensions.interface import SchedulerPart, sent_to
from scaler.grammar import counted
from scaler.needs import Needs
from scaler.protocol.messages import GangFormed, JoinGang, Outcome, Unanswered
from scaler.scheduler.core.changes import GroupEnded, TasksEnded
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.commands import Command
from scaler.scheduler.core.placement import Placement
from scaler.scheduler.core.placing import GangRules
from scaler.scheduler.core.ready import ReadyQueue
from scaler.scheduler.core.rooms import Now
from scaler.scheduler.core.state import Assigned, ClientRecord, Group, PeerRecord, Task, Worker
from scaler.scheduler.core.tasks import Tasks

RESERVE_AFTER_SECONDS = 1.0
FIRST_SECONDS = 10.0
STOP_AGAIN_SECONDS = 0.5
READY_SECONDS = 60.0
"""Maximum time until all members are ready if the scheduler has restarted since they were placed."""
MAX_COMPARED = 4096
"""Maximum number of idle workers compared per attempt to place a gang."""
_TERM = re.compile(r"gang:[0-9a-f]{1,32}/[0-9]{1,6}")
"""A gang's id, and the maximum number of its members on a host; 0: no maximum."""
_NOT_ALL_STARTED = b"another member of its gang could not start"
_HALF_BEGUN = "its gang, part of which began before the scheduler was restarted"


@dataclass(slots=True, eq=False)
class LiveGang:
    """since: when it first found too few slots. seconds: duration of its next reservation.

    ready: clients of the members that are ready, with their questions, by task. placed: the members, once placed by
    this scheduler. due_at: when all members must be ready or submitted after a restart; some may have begun or ended.
    """

    since: float = math.inf
    seconds: float = FIRST_SECONDS
    ready: dict[bytes, tuple[ClientRecord, JoinGang]] = field(default_factory=dict)
    placed: Sequence[Task] = ()
    due_at: float = math.inf


class Gangs(SchedulerPart, GangRules):
    """Places each gang in one step, as soon as enough slots are free at once.

    If the first gang finds too few free slots for `RESERVE_AFTER_SECONDS`, workers with enough slots are reserved for
    it, and no task of the same or a lower rank may start there. Reservations are exclusive, so gangs cannot deadlock,
    and limited in time, because reserved slots are idle: the limit doubles each time, until it exceeds the duration of
    any task in the way. After each reservation, the slots are open to other tasks for an equal time.

    Members have retries=0, so they are never prefetched or retried alone: the client restarts the whole gang.

    Invariant: a worker is reserved for a gang exactly if it is in `kept`.
    """

    changes = (TasksEnded, GroupEnded)
    messages = (JoinGang,)

    def __init__(self, _settings: Any = None) -> None:
        self._gangs: dict[Group, LiveGang] = {}
        """All gangs with live members; exact at the end of each step."""
        self._stopping: dict[Group, None] = {}
        """Failed gangs with members on workers out of contact, whose loss may have caused the failure."""
        self.kept: tuple[Worker, ...] = ()
        self._kept_for: ReadyQueue | None = None
        self._until = self._again_at = -math.inf
        """End of the reservation, and earliest start of the next one."""
        self._placement: Placement
        self._tasks: Tasks

    def bound(self, cluster: ClusterState) -> None:
        super().bound(cluster)
        self._subscribe()

    def gangs(self) -> GangRules:
        return self

    def refusal(self, needs: Needs) -> str:
        return "" if _TERM.fullmatch(needs.gang) and needs.gang_size else f"{needs.gang!r} names no gang"

    def begin(self, placement: Placement, tasks: Tasks) -> None:
        self._placement, self._tasks = placement, tasks

    # -- placement

    def place(self, queue: ReadyQueue, now: float) -> int:
        first = queue.first()
        if first is None:
            return 0
        gang, size = self._gangs[first.group], queue.needs.gang_size
        if queue.total < size:
            if first.group.assigned or gang.ready or gang.placed:  # a worker returned a member
                self._stop(first.group, _NOT_ALL_STARTED)
            elif first.group.live < size:  # others ended before a restart, or are not submitted yet
                self._expect_others(gang)
            return 0
        if queue.needs.is_limited and not self.cluster.rooms.resources.room(queue):
            self._wait_for_limits(queue, now)
            return 0
        candidates = self._candidates(queue)
        tasks = self._take(queue, size) if len(candidates) >= size else []
        workers = self._claim(queue, tasks, candidates) if tasks else []
        if not workers:
            self._wait(queue, gang)
            return 0
        by_worker: dict[Worker, list[Task]] = {}
        for task, worker in zip(tasks, workers, strict=True):
            by_worker.setdefault(worker, []).append(task)
        for worker, members in by_worker.items():
            inputs = {task.id: self._tasks.inputs_of(task) for task in members if task.references}
            self._tasks.assign(members, worker, inputs, now)
            self._placement.update(worker)
        gang.placed, gang.due_at = tasks, math.inf
        if self._kept_for is queue:
            self._release()
        return size

    def _wait_for_limits(self, queue: ReadyQueue, now: float) -> None:
        resources = self.cluster.rooms.resources
        if resources.reserves(queue, 0, now, True):
            resources.reserve(queue, [*self.cluster.workers.values()], now)

    def _candidates(self, queue: ReadyQueue) -> list[Worker]:
        """Return the workers with free slots for a gang, one entry per slot, on few hosts."""
        needs, by_host = queue.needs, dict[str, list[Worker]]()
        for worker in islice(self._placement.idle(needs), MAX_COMPARED):
            reserved = worker.claims.reserved
            if reserved is None or reserved is queue or queue.may_pass(reserved):
                width = needs.width(worker.offers, worker.slots)
                free = min(worker.slots - worker.claims.extra, worker.limit) - worker.busy
                room = min(int(free // width), worker.count(needs, queue))
                by_host.setdefault(worker.host, []).extend([worker] * min(room, needs.gang_size))
        most = _per_host(needs)
        return [worker for each in sorted(by_host.values(), key=len, reverse=True) for worker in each[:most]]

    @staticmethod
    def _take(queue: ReadyQueue, size: int) -> list[Task]:
        """Take all members, in order of rank, or none if their key is at its limit."""
        tasks: list[Task] = []
        while len(tasks) < size and (task := queue.take()) is not None:
            tasks.append(task)
        if len(tasks) < size:
            _put_back(queue, tasks)
            return []
        return sorted(tasks, key=lambda task: task.id)

    @staticmethod
    def _claim(queue: ReadyQueue, tasks: list[Task], candidates: list[Worker]) -> list[Worker]:
        """Claim the members' resources, which workers may share. Returns a worker for each, or puts all back."""
        if not queue.needs.is_counted:
            return candidates[: len(tasks)]
        workers: list[Worker] = []
        for worker in candidates:
            if len(workers) < len(tasks) and worker.claims.count(queue.needs, queue):
                worker.claims.claim(tasks[len(workers)].id, queue.needs)
                workers.append(worker)
        if len(workers) == len(tasks):
            return workers
        for task, worker in zip(tasks, workers, strict=False):
            worker.claims.release(task.id, is_blocked=False)
        _put_back(queue, tasks)
        return []

    # -- reservation

    def _wait(self, queue: ReadyQueue, gang: LiveGang) -> None:
        now, first = self.cluster.now, queue.first()
        gang.since = min(gang.since, now)
        workers = self.cluster.workers
        if self._kept_for is queue and not all(each.is_willing and workers.get(each.id) is each for each in self.kept):
            self._release()
        is_due = now >= max(gang.since + RESERVE_AFTER_SECONDS, self._again_at)
        if is_due and (self._kept_for is None or queue.first_rank < self._kept_for.first_rank):
            tasks = self._take(queue, queue.needs.gang_size)
            _put_back(queue, tasks)
            if not tasks and first is not None and self.cluster.ready.turns.may_reserve(first.group, 0):
                self._wait_for_limits(queue, self.cluster.own_time(now))  # the key is at its limit
            if not (tasks and self._reserve(queue, gang.seconds)):
                gang.since = now  # compare all workers again later, not in every step

    def _reserve(self, queue: ReadyQueue, seconds: float) -> bool:
        """Reserve workers with enough slots, the least loaded first. Returns whether the connected workers suffice."""
        needs, left, at_host = queue.needs, queue.needs.gang_size, Counter[str]()
        found: list[Worker] = []
        for worker in sorted(self.cluster.workers.values(), key=lambda worker: worker.load / worker.slots):
            room = min(_slots(worker, needs), _per_host(needs) - at_host[worker.host], left)
            is_free = worker.claims.reserved is None or worker in self.kept
            if room > 0 and is_free and worker.is_willing and needs.fits(worker.offers):
                found.append(worker)
                at_host[worker.host] += room
                left -= room
        if left:
            return False
        self._release()
        self._kept_for, self.kept = queue, tuple(found)
        self._until = self.next_at = self.cluster.now + seconds
        for worker in found:
            worker.claims.reserve(queue)
            waiting = islice(reversed(worker.tasks.values()), max(0, worker.busy - worker.slots))
            fixed = worker.blocked | worker.started
            chosen = [task for task in waiting if type(task.state) is Assigned and task.id not in fixed]
            self._tasks.recall(worker, reversed(chosen))
        return True

    def _release(self) -> None:
        for worker in self.kept:
            if worker.claims.reserved is self._kept_for:
                worker.claims.reserve(None)
        self.kept, self._kept_for = (), None

    def on_time(self, now: Now) -> Iterable[Command]:
        if self._kept_for is not None and now.clock >= self._until:
            first = self._kept_for.first()
            self._release()
            if first is not None:
                gang = self._gangs[first.group]
                self._again_at = now.clock + gang.seconds
                gang.seconds *= 2
        for group in list(self._stopping):
            self._stop(group)
        for group, gang in list(self._gangs.items()):
            if gang.due_at <= now.clock:
                gang.due_at = math.inf
                self._start_again(group, gang)
        again = now.clock + STOP_AGAIN_SECONDS if self._stopping else math.inf
        due_at = min((gang.due_at for gang in self._gangs.values()), default=math.inf)
        self.next_at = min(again, due_at, math.inf if self._kept_for is None else self._until)
        return ()

    def _expect_others(self, gang: LiveGang) -> None:
        if gang.due_at == math.inf:
            gang.due_at = self.cluster.now + READY_SECONDS
            self.next_at = min(self.next_at, gang.due_at)

    def _start_again(self, group: Group, gang: LiveGang) -> None:
        """Stop a ready member, which makes its gang fail as lost. Without assigned members, fail an incomplete gang."""
        if group.live < group.needs.gang_size and not group.assigned:
            self._stop(group, _NOT_ALL_STARTED)
        for identifier in gang.ready:
            task = self.cluster.living_task(identifier)
            if task is not None and type(task.state) is Assigned:
                self._tasks.preempt(task.state.worker, task, _HALF_BEGUN)
                break

    # -- members

    def began(self, group: Group) -> None:
        self._gangs[group] = LiveGang()
        self._subscribe(TasksEnded, GroupEnded)

    def _subscribe(self, *changes: type) -> None:
        """Subscribe to task ends only while gangs exist."""
        self.changes = changes  # type: ignore[misc,assignment]
        self.cluster.changes.resolve()

    def on_changes(self, changes: Sequence[Any], _now: Now) -> Iterable[Command]:
        for change in changes:
            if isinstance(change, GroupEnded):
                self._forget(change.group)
                continue
            stops = [*change.run_starts[1:], len(change.ids)]
            for group, start, stop in zip(change.run_groups, change.run_starts, stops, strict=True):
                if group.needs.gang and any(change.outcomes[start:stop]):
                    self._stop(group)
        return ()

    def _forget(self, group: Group) -> None:
        self._gangs.pop(group, None)
        self._stopping.pop(group, None)
        if self._kept_for is not None and self._kept_for.needs.gang == group.needs.gang:
            self._release()
        if not self._gangs:
            self._subscribe()

    def _stop(self, group: Group, why: bytes = b"") -> None:
        """Cancel all members; with `why`, fail queued members as lost. Members on workers out of contact are cancelled
        later."""
        self._stopping.pop(group, None)
        for task in self._members(group):
            worker = None if task.is_queued else task.state.worker  # type: ignore[union-attr]
            if why and worker is None:
                self._tasks.end(task, Outcome.WORKER_LOST, why)
            elif isinstance(worker, Worker) and worker.broken_at is not None:
                self._stopping[group] = None
                self.next_at = min(self.next_at, self.cluster.now + STOP_AGAIN_SECONDS)
            else:
                self._tasks.cancel(group.client, [task.id])

    def _members(self, group: Group) -> list[Task]:
        """Return the live members, if possible without searching all tasks of the client."""
        gang, tasks = self._gangs.get(group), group.client.tasks
        known = *(gang.placed if gang is not None else ()), *self.cluster.ready.queues.get(group.needs, ())
        found = [
            each for each in {task.id: task for task in known}.values() if each.group is group and each.id in tasks
        ]
        return found if len(found) >= group.live else [task for task in tasks.values() if task.group is group]

    def on_message(self, peer: PeerRecord, message: JoinGang, state: ClusterState) -> Iterable[Command]:
        assert isinstance(peer, ClientRecord), "only clients send it"
        task = state.living_task(message.task)
        gang = None if task is None else self._gangs.get(task.group)
        if task is None or gang is None or peer.via is None or peer.via.tasks.get(task.id) is not task:
            return sent_to(peer, Unanswered("the task is not a member of a gang", number=message.number))
        gang.ready[task.id] = peer, message
        if len(gang.ready) < task.needs.gang_size:
            if not gang.placed:
                self._expect_others(gang)
            return ()
        gang.due_at = math.inf
        ready = [gang.ready[identifier] for identifier in sorted(gang.ready)]
        names = [client.via.host if client.via is not None else "" for client, _ in ready]
        hosts = [
            name if parsed_host(question.host)[1] and len(set(names)) > 1 else question.host
            for name, (_, question) in zip(names, ready, strict=True)
        ]
        return [
            command
            for rank, (client, question) in enumerate(ready)
            for command in sent_to(client, GangFormed(rank, hosts, ready[0][1].port, number=question.number))
        ]

    # -- explanation

    def shortage(self, queue: ReadyQueue, willing: Sequence[Worker]) -> str:
        needs, size = queue.needs, queue.needs.gang_size
        by_host = Counter[str]()
        for worker in willing:
            by_host[worker.host] += _slots(worker, needs)
        most = sum(min(slots, _per_host(needs)) for slots in by_host.values())
        per_host = f" with at most {_per_host(needs)} on a host" if _per_host(needs) < size else ""
        here = f"{counted(most, 'slot')}{per_host}"
        if size > most + self._addable(needs):
            return f"its gang of {size} is too large for the cluster, whose workers offer {here}"
        if size > most:
            return f"its gang of {size} waits for more workers: the current workers offer {here}"
        kept = ""
        if self._kept_for is not None:
            whose = "it" if self._kept_for is queue else "another gang"
            kept = f"; slots of {counted(len(self.kept), 'worker')} are reserved for {whose}"
        free = min(size, len(self._candidates(queue)))
        return f"its gang of {size} waits until {size} of {here} are free at once; now {free} are{kept}"

    def _addable(self, needs: Needs) -> float:
        """Return the number of members that additional units of all managers could run."""
        found = 0.0
        for manager in self.cluster.rooms.scaling.managers.values():
            facts = manager.details
            if needs.fits(manager.offers) and not facts.fixed:
                units = math.inf if facts.max_slots < 0 else facts.max_slots // facts.unit_slots - len(manager.running)
                found += max(0, units) * min(_per_host(needs), facts.unit_slots)
        return found


def _per_host(needs: Needs) -> int:
    return needs.gang_per_host or needs.gang_size


def _slots(worker: Worker, needs: Needs) -> int:
    return int(worker.slots // needs.width(worker.offers, worker.slots))


def _put_back(queue: ReadyQueue, tasks: Iterable[Task]) -> None:
    for task in reversed([*tasks]):
        queue.put_back(task)
