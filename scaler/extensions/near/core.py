"""Places tasks with the option `near` on workers that have run their name. Pure.

A name's *gain* is the extra time of the first task on a processor, compared with later tasks. A ready task waits for a
worker with its name, even if another worker is idle, if the task is expected to start there within the gain. During
this wait, no task with the name is prefetched. A task that would start later, or that has waited for the gain, may run
on any worker.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from scaler.extensions.interface import SchedulerPart
from scaler.grammar import listed, timed
from scaler.needs import NEAR
from scaler.protocol.messages import Outcome
from scaler.scheduler.core.changes import TasksEnded
from scaler.scheduler.core.commands import Command
from scaler.scheduler.core.placement import MAX_HELD_BACK
from scaler.scheduler.core.placing import Nearness
from scaler.scheduler.core.ready import Give, ReadyQueue, Side
from scaler.scheduler.core.rooms import Now
from scaler.scheduler.core.state import ClientRecord, Task, Worker

MAX_NAMES = 256
"""Names remembered per worker."""
MAX_COMPARED = 64
"""Maximum number of workers compared per queue and placement."""
WEIGHT = 0.25
"""Weight of the last task in a mean duration."""
CLAIM_SECONDS = 0.02
"""Seconds for which an idle worker is reserved for ready tasks with its names."""
LEAST_SECONDS = 1e-4
_NO_NAMES: Final[OrderedDict[str, set[int]]] = OrderedDict()


@dataclass(slots=True, eq=False)
class Name:
    """Workers that have been sent tasks of a name. first, later: mean seconds of the first task on each processor, and
    of later tasks; 0: unknown."""

    workers: dict[Worker, None] = field(default_factory=dict)
    first: float = 0.0
    later: float = 0.0

    @property
    def gain(self) -> float:
        return max(0.0, self.first - self.later) if self.later else 0.0

    def wait(self, worker: Worker, task: Task, now: float) -> float:
        """Return the estimated seconds until a worker starts another task of this name."""
        busy, timing = worker.busy, task.group.timing
        if busy < worker.slots:
            return 0.0
        load = worker.load
        if self.later:  # the function's mean includes first tasks
            load += worker.by_function.get(timing, 0) * (self.later - timing.seconds)
        elapsed = max(0.0, now - worker.progress.at)
        seconds = load / busy * (busy - worker.slots + 1) / worker.slots - elapsed
        return seconds if seconds > 0 else elapsed

    def startable(self, task: Task, seconds: float, now: float) -> int:
        """Return the number of tasks that the workers with this name will start within this time."""
        count = 0
        for worker in islice(self.workers, MAX_COMPARED):
            if worker.is_willing and task.needs.fits(worker.offers):
                left = seconds - self.wait(worker, task, now)
                count += 1 + int(left * worker.slots / max(LEAST_SECONDS, self.later)) if left > 0 else 0
        return count


class Names(SchedulerPart, Nearness):
    """Chooses workers by name. Called by the core during placement, where an exception ends the scheduler."""

    changes = (TasksEnded,)
    refusal = ""

    def __init__(self, _settings: Any = None) -> None:
        self.changes = ()  # type: ignore[assignment,misc]  # until the first name
        self.names: dict[str, Name] = {}
        """Names that a worker has run."""
        self.lanes: dict[str, OrderedDict[str, set[int]]] = {}
        """Processors that ended a task, by worker and name. A worker's names are in the order of their last use."""
        self._since: dict[ReadyQueue, float] = {}
        """Queues that wait although another worker is idle, with the start times of the wait."""
        self._claims: set[tuple[Worker, ClientRecord, int]] = set()
        """Workers for which tasks of their names are ready, by owner and priority."""
        self._claimed_at: float | None = None

    def near(self) -> Nearness:
        return self

    def offer(
        self, queue: ReadyQueue, sides: Sequence[Side], prefetch: bool, budget: int, give: Give, now: float
    ) -> int:
        task = queue.first() if any(sides) else None
        placed, waits = 0, False
        if task is not None and not (prefetch and queue in self._since):
            name = self.names.get(queue.needs.near, Name())
            own = [each for each in islice(name.workers, MAX_COMPARED) if any(each.side is side for side in sides)]
            placed = self._give(queue, own, budget, give, prefetch=prefetch)
            if queue.count and placed < budget:
                others, most = self._elsewhere(queue, task, name, sides, prefetch, now)
                more = self._give(queue, others, min(most, budget - placed), give, prefetch=prefetch)
                placed += more
                if waits := not prefetch and queue.count > 0 and len(others) > 0 and more >= most:
                    self.again_at = min(self.again_at, self._since.setdefault(queue, now) + name.gain)
        if not (waits or (queue.count and (prefetch or placed))):
            self._since.pop(queue, None)
        return placed

    def _elsewhere(
        self, queue: ReadyQueue, task: Task, name: Name, sides: Sequence[Side], prefetch: bool, now: float
    ) -> tuple[list[Worker], int]:
        """Return the workers without the name that may take its tasks, fewest names first, and the number of tasks."""
        others = [each for side in sides for each in islice(side, MAX_COMPARED) if each not in name.workers]
        if any(worker.is_willing for worker in name.workers):
            self._note_claims(now)
            others = [each for each in others if not self._is_claimed(each, task, now)]
            within = name.gain - (now - self._since.get(queue, now))
            most = max(0, queue.count - name.startable(task, within, now))
        else:
            most = others[0].slots if prefetch and others else queue.count
        return sorted(others, key=lambda each: len(self.lanes.get(each.name, ()))), most

    def _give(self, queue: ReadyQueue, workers: Sequence[Worker], budget: int, give: Give, *, prefetch: bool) -> int:
        placed = 0
        while workers and queue.count and placed < budget:
            share = -(-min(queue.count, budget - placed) // len(workers))
            left = []
            in_vain = 0
            for worker in workers:
                if not queue.count or placed >= budget or (prefetch and in_vain >= MAX_HELD_BACK):
                    break
                side = worker.side
                given = give(worker, share if prefetch else min(share, worker.slots - worker.busy))
                placed += given
                in_vain += not given
                if given:
                    self._sent(worker, queue.needs.near)
                if side is not None and worker.side is side:
                    side.move_to_end(worker)
                    left += [worker] * (given > 0)
            workers = left
        return placed

    def _note_claims(self, now: float) -> None:
        """Record which workers have ready tasks with their names, once per placement."""
        if now != self._claimed_at:
            self._claimed_at = now
            self._claims.clear()
            for queue in self.cluster.ready.queues.values():
                name = self.names.get(queue.needs.near)
                task = queue.first() if name is not None and not queue.needs.is_counted else None
                if name is not None and task is not None:
                    owner, priority = task.group.owner, task.group.rank[0]
                    self._claims.update((each, owner, priority) for each in islice(name.workers, MAX_COMPARED))

    def _is_claimed(self, worker: Worker, task: Task, now: float) -> bool:
        is_kept = worker.busy >= worker.slots or now - worker.progress.at < CLAIM_SECONDS
        return is_kept and (worker, task.group.owner, task.group.rank[0]) in self._claims

    def may_move(self, task: Task, worker: Worker, idle: Worker, now: float) -> bool:
        name = self.names.get(task.needs.near)
        if name is None or worker not in name.workers or idle in name.workers:
            return True
        return name.wait(worker, task, now) > name.gain

    def why_waits(self, task: Task) -> str:
        near = task.needs.near
        if near not in self.names:
            return ""
        name = self.names[near]
        less = f" and would take {timed(name.gain)} less there" if name.gain else ""
        workers = listed([each.name for each in islice(name.workers, MAX_COMPARED)], 3)
        return f"it prefers workers with {near.removeprefix(NEAR)!r}{less}: {workers}"

    # -- workers' names

    def _sent(self, worker: Worker, near: str) -> None:
        names = self.lanes.setdefault(worker.name, OrderedDict())
        if near not in names:
            if not self.changes:  # the first name
                del self.changes
                self.cluster.changes.resolve()
            self.names.setdefault(near, Name()).workers[worker] = None
            if len(names) >= MAX_NAMES:
                self._forget(worker, names.popitem(last=False)[0])
        names.setdefault(near, set())
        names.move_to_end(near)

    def left(self, worker: Worker) -> None:
        for near in self.lanes.pop(worker.name, ()):
            self._forget(worker, near)

    def _forget(self, worker: Worker, near: str) -> None:
        del self.names[near].workers[worker]
        if not self.names[near].workers:
            del self.names[near]

    def on_changes(self, changes: Sequence[TasksEnded], _now: Now) -> Iterable[Command]:
        for ended in changes:
            stops = [*ended.run_starts[1:], len(ended)]
            for group, start, stop in zip(ended.run_groups, ended.run_starts, stops, strict=True):
                for index in range(start, stop) if group.needs.near else ():
                    self._measure(group.needs.near, ended, index)
        return ()

    def _measure(self, near: str, ended: TasksEnded, index: int) -> None:
        names, ran = self.lanes.get(ended.run_of(index)[1], _NO_NAMES), ended.ran(index)
        if near not in names or ran is None or ended.outcomes[index] != Outcome.SUCCESS:
            return
        name, lane, seconds = self.names[near], ran[0].lanes[ran[1]], ended.duration_us[index] / 1e6
        if lane in names[near]:
            name.later += (seconds - name.later) * (WEIGHT if name.later else 1)
        else:
            name.first += (seconds - name.first) * (WEIGHT if name.first else 1)
            names[near].add(lane)
