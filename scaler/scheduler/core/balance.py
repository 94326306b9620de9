"""Balancing: take back what waits behind a running task while another worker has nothing to do.

Two occasions. At once: a worker is idle, nothing that fits it is ready, and others have tasks waiting that will not
start soon. Every `load_balance_seconds`: a worker that finished nothing for `load_balance_trigger_times` looks has its
waiting tasks taken back, and gets no more than it can start until it finishes something.
"""

from __future__ import annotations

from collections import deque
from itertools import islice

from scaler.scheduler.core.outbox import Outbox
from scaler.scheduler.core.placement import Placement, avoids
from scaler.scheduler.core.state import Assigned, Recalled, Task, Worker

WORTH_MOVING_SECONDS = 0.003
"""A task that starts sooner than this is left where it is: moving it takes as long."""
MAX_IDLE_SERVED = 64
MAX_OVERLOADED_COMPARED = 64
"""How many idle and overloaded workers one step looks at: keeps a step short in a large cluster."""
MAX_TASKS_COMPARED = 512
"""How many tasks of an overloaded worker are looked at for an idle one."""
POLL_AGAIN_SECONDS = 0.005


class Balance:
    __slots__ = ("_check_seconds", "_checks", "_next_check", "_outbox", "_placement", "poll_again_at")

    def __init__(self, placement: Placement, outbox: Outbox, check_seconds: float, checks: int, now: float) -> None:
        self._placement = placement
        self._outbox = outbox
        self._check_seconds = check_seconds
        self._checks = checks
        self._next_check = now + check_seconds
        self.poll_again_at: float | None = None

    @property
    def next_check(self) -> float:
        return self._next_check

    def step(self, now: float) -> None:
        """Recall tasks for idle workers, and from workers that make no progress."""
        if now >= self._next_check:
            self._next_check = now + self._check_seconds
            self._relieve_stalled(now)
        self.poll_again_at = None
        if self._placement.overloaded:
            self._serve_idle(now)

    def _serve_idle(self, now: float) -> None:
        placement = self._placement
        pools = [pool for pool in placement.pools if pool.idle]
        if not pools:
            return
        overloaded = list(islice(placement.overloaded, MAX_OVERLOADED_COMPARED))
        busiest = self._busiest(overloaded, now)
        served = 0
        for pool in pools:
            # What no worker with these offers can run is asked about once for all of them.
            candidates = deque(busiest)
            for idle in islice(pool.idle, MAX_IDLE_SERVED - served):
                served += 1
                while candidates:
                    worker = candidates.popleft()
                    waiting = worker.busy - worker.slots
                    wanted = max(1, waiting * idle.slots // (idle.slots + worker.slots))
                    if self._recall_last(worker, wanted, idle, now):
                        del busiest[worker]
                        break
        if len(placement.overloaded) > MAX_OVERLOADED_COMPARED:
            # Those compared go to the back, so that the next step looks at others.
            for worker in overloaded:
                placement.overloaded.move_to_end(worker)

    def _busiest(self, overloaded: list[Worker], now: float) -> dict[Worker, None]:
        """Return those from which it is worth to take tasks, the busiest first."""
        candidates = [
            (max(worker.load / worker.slots, now - worker.progressed_at), index, worker)
            for index, worker in enumerate(overloaded)
            if not worker.recalled
        ]
        worth = [row for row in candidates if row[0] >= WORTH_MOVING_SECONDS]
        if len(worth) < len(candidates):
            self.poll_again_at = now + POLL_AGAIN_SECONDS
        worth.sort(reverse=True)
        return dict.fromkeys(worker for _, _, worker in worth)

    def _recall_last(self, worker: Worker, wanted: int, idle: Worker | None, now: float) -> int:
        """Recall tasks from the end of a worker's queue: those that would start last. Returns how many."""
        chosen: list[Task] = []
        last = reversed(worker.tasks.values())
        for task in last if idle is None else islice(last, MAX_TASKS_COMPARED):
            if len(chosen) >= wanted or worker.busy - len(chosen) <= worker.slots:
                break
            if task.id in worker.blocked:
                continue
            if idle is not None and (not task.group.needs.fits(idle.offers) or avoids(task, idle, now)):
                continue
            if type(task.state) is Assigned:
                chosen.append(task)
        for task in reversed(chosen):
            task.state = Recalled(worker, cancel=False)
            worker.recalled += 1
            self._outbox.recall(worker, task, kill=False)
        return len(chosen)

    def _relieve_stalled(self, now: float) -> None:
        for worker in list(self._placement.overloaded):
            if now - worker.progressed_at < self._check_seconds:
                worker.checks_without_progress = 0
                continue
            worker.checks_without_progress += 1
            if worker.checks_without_progress >= self._checks and not worker.recalled:
                worker.stalled = True
                self._recall_last(worker, len(worker.tasks), None, now)
                self._placement.update(worker)
