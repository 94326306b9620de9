"""Placement of ready tasks on workers, and balancing of tasks queued at workers.

A worker's credit is its slots plus a prefetch. The prefetch covers `PREFETCH_SECONDS` of measured task time or 1.5
round trips to the worker, whichever is longer: at least one task per slot, and at most the worker's queue size. Free
slots are filled first, breadth first; prefetches follow in equal shares. A task with retries=0 is never prefetched: if
its worker is lost, the scheduler must know whether the task ran. Tasks that count against a cluster limit are not
prefetched either, nor are long tasks while owners or priorities contend.

Balancing recalls queued tasks in three cases. If a worker is idle and no ready task fits it, tasks that will not start
soon are recalled from overloaded workers. If a worker finishes nothing for `STALLED_CHECKS` checks, its tasks are
recalled, and it gets no prefetch until a task finishes. If a ready task should precede queued tasks, these are
recalled.

Tasks that need memory, GPUs, or several CPUs are placed where these are free. A task counts as using them from dispatch
on. Nothing is prefetched behind a task that uses several slots. The `resources` extension reserves capacity for tasks
that wait.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from heapq import heapify, heappop, heapreplace
from itertools import islice

from scaler.needs import Needs, pinned_worker
from scaler.protocol.messages import Drain, Outcome
from scaler.scheduler.core.attempt_texts import MAX_INPUT_BYTES, TOO_MUCH_INPUT
from scaler.scheduler.core.changes import Action
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.outbox import Outbox
from scaler.scheduler.core.ready import MAX_AT_ONCE, NO_RANK, Give, ReadyQueue, Side
from scaler.scheduler.core.state import CHECK_SECONDS, Assigned, Group, Task, Worker, WorkerPool
from scaler.scheduler.core.tasks import Tasks

MAX_PLACED_PER_STEP = 4096
"""Limits the duration of a step. The shell starts the next step immediately."""
_PINNED_LOST = b"the worker on which it was to run is not connected"
MAX_ASKED_IN_VAIN = 64  # a pass ends after this many workers have taken nothing
MAX_HELD_BACK = 4  # a pass gives up after this many workers did not prefetch the first task
MAX_AVOIDING = 64  # maximum tasks to skip per step because they avoid a worker
MAX_IDLE_SERVED = 64
MAX_OVERLOADED_COMPARED = 64
"""Maximum idle and overloaded workers compared per step. Limits the duration of a step in a large cluster."""
MAX_TASKS_COMPARED, MAX_TRIED = 512, 256
POLL_AGAIN_SECONDS = 0.005
WORTH_MOVING_SECONDS = 0.003
"""Seconds to move a task. A task that starts sooner is not moved."""


class Placement:
    def __init__(self, state: ClusterState, tasks: Tasks, outbox: Outbox) -> None:
        self._state = state
        self._ready = state.ready
        self._workers = state.workers
        self._stores = state.rooms.stores
        self._tasks = tasks
        self._outbox = outbox
        self._pools = state.pools
        self._overloaded = state.pools.overloaded
        self._pool_of: dict[Worker, WorkerPool] = {}
        self.touched: dict[Worker, None] = {}
        self.has_backlog = False
        self.next_check = state.now + CHECK_SECONDS
        self._resources = state.rooms.resources
        self._near = state.rooms.near
        self._prepares = state.rooms.environments.prepares
        self._gangs = state.rooms.gangs
        self._gangs.begin(self, tasks)
        self.poll_again_at = math.inf
        """Whether balancing left tasks in place because they start soon."""
        self._held_back = 0
        """In a pass over a queue: number of workers that do not prefetch its first task."""
        self._next_recall = 0.0

    # -- workers

    def add(self, worker: Worker) -> None:
        pool = self._pools.get(worker.offers)
        if pool is None:
            pool = self._pools[worker.offers] = WorkerPool(worker.offers)
            self._pools.fitting.clear()
        pool.workers += 1
        self._pool_of[worker] = pool
        self._stores.worker_joined(worker)
        self.update(worker)

    def remove(self, worker: Worker) -> None:
        worker.join_side(None)
        self._stores.worker_left(worker)
        self._near.left(worker)
        self._state.rooms.environments.left(worker)
        self.touched.pop(worker, None)
        self._overloaded.pop(worker, None)
        pool = self._pool_of.pop(worker)
        pool.workers -= 1
        if not pool.workers:
            del self._pools[worker.offers]
            self._pools.fitting.clear()

    def update(self, worker: Worker) -> None:
        """Move a worker to the side (idle, prefetching, none) that matches its load. Call once per worker and batch."""
        count = len(worker.tasks) - len(worker.blocked)
        slots, extra = worker.slots, worker.claims.extra
        if count > slots:
            self._overloaded[worker] = None
        elif self._overloaded:
            self._overloaded.pop(worker, None)
        side: OrderedDict[Worker, None] | None = None
        if worker.draining or worker.reports.is_awaited or worker.broken_at is not None or count >= worker.limit:
            pass
        elif count + extra <= slots - 1:
            side = self._pool_of[worker].idle
        elif (
            not extra
            and not worker.progress.is_stalled
            and (count < 2 * slots or (load := worker.load) < worker.full_load(load, count))
        ):
            side = self._pool_of[worker].prefetching
        if side is not worker.side:
            worker.join_side(side)
            if self._stores.is_spread:
                self._stores.came_free(worker)

    def drain(self, worker: Worker, reason: str, *, quarantined: bool = False, leaving: bool = False) -> None:
        """Stop dispatching to a worker, and send it a Drain. leaving: its agent requested the drain and exits."""
        worker.drain(quarantined=quarantined, leaving=leaving)
        self.update(worker)
        self._outbox.send(worker.id, Drain(reason))
        self._state.changes.add(Action, "drained", worker.id, f"{worker.name}: {reason}")

    # -- the pass

    def place(self, now: float) -> bool:
        """Dispatch ready tasks to workers with credit. Returns True if another step could place more."""
        for worker in self.touched:
            if not worker.tasks:
                worker.progress.at = now
            self.update(worker)
        self.touched.clear()
        self._near.again_at = math.inf
        if self._ready.turns.is_shared:
            self._ready.turns.begin(now)
        if self._resources.reservations:
            self._resources.expire(now)
        waiting = [queue for queue in self._ready.queues.values() if queue.count or queue.preferred]
        budget = self._fill_all(waiting, now) if waiting else MAX_PLACED_PER_STEP
        if self._stores.is_spread:
            self._stores.end_pass(now)
        self.has_backlog = any(each.first_rank != NO_RANK for each in waiting if each.count or each.preferred)
        return budget <= 0

    def _fill_all(self, waiting: list[ReadyQueue], now: float) -> int:
        """Place tasks from queues while workers have credit, and reserve resources. Returns the rest of the budget."""
        pools, ready, budget = self._pools.values(), self._ready, MAX_PLACED_PER_STEP
        has_credit, placed = any(pool.idle or pool.prefetching for pool in pools), dict[ReadyQueue, int]()
        is_long = len(waiting) > MAX_AT_ONCE and ready.turns.is_shared
        for portion in ready.portions(waiting) if is_long else (waiting,):
            filled = dict.fromkeys(ready.in_turn(portion, is_for_all=has_credit), 0)
            if len(filled) == 1:
                (queue,) = filled
                filled[queue] = self._fill(queue, budget, now)
                budget -= filled[queue]
            else:
                budget = self._fill_in_turn(filled, budget, now)
            placed |= filled
            if budget <= 0 or not any(pool.idle for pool in pools):
                break
        counted = [queue for queue in placed if queue.needs.is_counted]
        for queue, is_due in self._ready.which_wait(counted, placed) if counted and budget > 0 else ():
            if self._resources.reserves(queue, placed[queue], now, is_due):
                self._reserve(queue, now)
        return budget

    def _fill_in_turn(self, placed: dict[ReadyQueue, int], budget: int, now: float) -> int:
        """Place tasks from several queues, and count them. Returns the rest of the budget."""
        take_turns = self._ready.turns.is_shared
        left = [(queue.next_turn() if take_turns else (), place, queue) for place, queue in enumerate(placed)]
        heapify(left)
        while left and budget > 0:
            turn, place, queue = left[0]
            if take_turns and (present := queue.next_turn()) > turn:  # keys only increase unless a task is put back
                heapreplace(left, (present, place, queue))
                continue
            count = self._fill(queue, 1 if take_turns else budget, now)
            placed[queue] += count
            budget -= count
            if take_turns and count and queue.total:
                continue
            heappop(left)
            if placed[queue]:
                self._ready.rotate(queue)
        return budget

    def _fill(self, queue: ReadyQueue, budget: int, now: float) -> int:
        """Place tasks of one requirement, first in free slots, then as prefetches. Returns their number."""
        if queue.needs.is_fixed:
            return self._fill_fixed(queue, now)
        pools = self._pools.fitting.get(queue.needs) or self._pools.that_fit(queue.needs)
        if queue.needs.is_limited and not self._resources.room(queue):
            return 0
        give = partial(self._give, queue, sum([pool.workers for pool in pools]) == 1, now)
        placed = in_vain = 0
        for prefetch in (False, True):
            self._held_back = 0
            sides = [pool.prefetching if prefetch else pool.idle for pool in pools]
            if queue.preferred:
                placed += queue.offer_near(sides, prefetch, budget - placed, give)
            near = self._near.offer(queue, sides, prefetch, budget - placed, give, now) if queue.needs.near else None
            placed += near or 0
            given = int(near is None)
            while given and queue.count and placed < budget and in_vain < MAX_ASKED_IN_VAIN:
                given, refused = self._offer(queue, pools, sides, prefetch, budget - placed, give)
                placed += given
                in_vain += refused
            if queue.preferred:
                placed += queue.offer_elsewhere(sides, budget - placed, give)
            elif not queue.count:
                break
        return placed

    def idle(self, needs: Needs) -> Iterator[Worker]:
        """Yield the workers that have a free slot and fit these needs."""
        for pool in self._pools.fitting.get(needs) or self._pools.that_fit(needs):
            yield from (each for each in pool.idle if not self._prepares(each, needs.environment))

    def _fill_fixed(self, queue: ReadyQueue, now: float) -> int:
        if queue.needs.gang:
            return int(self._gangs.place(queue, now))
        worker = self._workers.get(pinned_worker(queue.needs.pin))
        if worker is not None:
            return self._give(queue, True, now, worker, queue.total) if worker.side is not None else 0
        for task in (lost := list(queue)):
            self._tasks.end(task, Outcome.WORKER_LOST, _PINNED_LOST)
        return len(lost)

    def _offer(
        self, queue: ReadyQueue, pools: list[WorkerPool], sides: list[Side], prefetch: bool, budget: int, give: Give
    ) -> tuple[int, int]:
        """Offer each worker with credit its share, once. Returns the numbers of placed tasks and of workers that took
        none."""
        workers = sum(map(len, sides))
        if not workers:
            return 0, 0
        spread = -(-queue.count // workers)
        abundant = queue.count // sum([len(pool.idle) + len(pool.prefetching) for pool in pools])
        placed = in_vain = 0
        most = min(queue.count, budget) + MAX_ASKED_IN_VAIN
        for side, worker in [(pool, worker) for pool in sides for worker in islice(pool, most)]:
            free = worker.slots - len(worker.tasks) + len(worker.blocked)
            share = spread if prefetch else max(min(spread, free), abundant)
            given = give(worker, share)
            if worker.side is side:
                side.move_to_end(worker)
            placed += given
            in_vain += not given
            is_vain = in_vain >= MAX_ASKED_IN_VAIN or (prefetch and self._held_back >= MAX_HELD_BACK)
            if not queue.count or placed >= budget or is_vain:
                break
        return placed, in_vain

    def _give(self, queue: ReadyQueue, is_only_worker: bool, now: float, worker: Worker, share: int) -> int:
        """Assign up to `share` tasks, within the worker's credit. Returns the number of tasks assigned."""
        needs = queue.needs
        if needs.is_counted or needs.environment or worker.claims.reserved is not None:
            share = self._room(worker, queue, share)
        avoiding: list[Task] = []
        chosen: list[Task] = []
        inputs: dict[bytes, tuple[bytes, ...]] = {}
        tasks = worker.tasks
        slots = worker.slots
        limit = worker.limit
        claims, is_stalled = worker.claims, worker.progress.is_stalled
        count = len(tasks) - len(worker.blocked) + claims.extra
        load = worker.load if count else 0.0
        full_load = worker.full_load(load, count) if count + share > slots else math.inf  # not needed for free slots
        is_restricted = needs.is_limited or self._ready.turns.is_shared
        has_preferred = len(queue.preferred) > 0
        take = queue.taker(worker, now) if has_preferred else queue.take
        while len(chosen) < share and count < limit:
            if count > slots - 1 and (claims.extra or is_stalled or (load >= full_load and count >= 2 * slots)):
                break
            task = take()
            if task is None:
                break
            is_checked = is_restricted or not task.group.spec.retries
            if count > slots - 1 and is_checked and self._is_held_back(task.group, worker, chosen):
                queue.put_back(task)
                break
            if task.id in tasks or (task.errors is not None and not is_only_worker and task.avoids(worker, now)):
                avoiding.append(task)
                if len(avoiding) == MAX_AVOIDING:
                    break
                continue
            if task.references:
                values = inputs[task.id] = self._tasks.inputs_of(task)
                if sum(map(len, values)) > MAX_INPUT_BYTES:
                    queue.put_back(task)
                    self._tasks.end(task, Outcome.REJECTED, TOO_MUCH_INPUT)
                    continue
            if needs.is_counted:
                claims.claim(task.id, needs)
                count = len(tasks) + len(chosen) - len(worker.blocked) + claims.extra
            chosen.append(task)
            load += task.group.timing.seconds
            count += 1
        if chosen:
            self._tasks.assign(chosen, worker, inputs, now)
        for task in reversed(avoiding):
            queue.put_back(task)
        if has_preferred:
            queue.end_turn()
        self.update(worker)
        return len(chosen)

    def _is_held_back(self, group: Group, worker: Worker, chosen: Sequence[Task]) -> bool:
        """Return whether this worker must not prefetch a task."""
        turns = self._ready.turns
        if not group.spec.retries or group.needs.is_limited:
            self._held_back = MAX_HELD_BACK  # no worker prefetches it
        elif turns.is_shared and turns.holds_back(group, worker, chosen):
            self._held_back += 1
        else:
            return False
        return True

    def _room(self, worker: Worker, queue: ReadyQueue, share: int) -> int:
        if self._prepares(worker, queue.needs.environment):
            return 0
        reserved = worker.claims.reserved
        if reserved is not None and reserved is not queue:
            if not queue.may_pass(reserved):
                return 0
            share = 1  # the second task may have too low a rank to pass
        if queue.needs.is_counted:
            share = min(share, worker.count(queue.needs, queue))
        return share

    def _reserve(self, queue: ReadyQueue, now: float) -> None:
        pools = self._pools.fitting.get(queue.needs) or self._pools.that_fit(queue.needs)
        workers = [worker for worker, pool in self._pool_of.items() if pool in pools and worker.is_willing]
        worker = self._resources.reserve(queue, workers, now)
        if worker is not None and worker.claims.reserved is queue and worker.busy > worker.slots:
            self._recall_last(worker, None, now)

    # -- balancing

    def balance(self, now: float) -> None:
        """Recall tasks from stalled workers, from overloaded workers for idle workers, and where a ready task should
        go first."""
        self.poll_again_at = math.inf
        if now >= self.next_check:
            self._relieve_stalled(now)
        if self._ready.turns.is_shared and self.has_backlog:
            self._recall_for_ready(now)
        pools = [pool for pool in self._pools.values() if pool.idle]
        if not pools or not self._overloaded:
            return
        overloaded = list(islice(self._overloaded, MAX_OVERLOADED_COMPARED))
        busiest = self._busiest(overloaded, now)
        served = tried = 0
        for pool in pools:
            # Workers with equal offers and location share one iterator, so that each rejected candidate is compared
            # only once.
            candidates: dict[int, Iterator[Worker]] = {}
            for idle in list(islice(pool.idle, MAX_IDLE_SERVED - served)):
                served += 1
                if idle.claims.reserved is not None:
                    continue
                place = self._stores.place_of(idle)
                if place not in candidates:
                    candidates[place] = iter(self._stores.nearest(busiest, idle))
                for worker in candidates[place]:
                    tried += 1
                    if tried > MAX_TRIED or (not worker.recalled and self._recall_last(worker, idle, now)):
                        break
                if self._stores.is_spread:
                    pool.idle.move_to_end(idle)
        if len(self._overloaded) > MAX_OVERLOADED_COMPARED:
            for worker in overloaded:  # the next step compares other workers
                self._overloaded.move_to_end(worker)

    def _recall_for_ready(self, now: float) -> None:
        """Recall queued tasks that a ready task should precede."""
        if now >= self._next_recall:
            self._next_recall = now + POLL_AGAIN_SECONDS
            for worker, tasks in self._ready.turns.to_recall(list(islice(self._overloaded, MAX_OVERLOADED_COMPARED))):
                self._tasks.recall(worker, tasks)
                self._overloaded.move_to_end(worker)  # the next step compares other workers

    def _relieve_stalled(self, now: float) -> None:
        self.next_check = now + CHECK_SECONDS
        for worker in list(self._overloaded):
            if worker.progress.check(now, is_recalled=worker.recalled > 0):
                self._recall_last(worker, None, now)
                self.update(worker)

    def _busiest(self, overloaded: list[Worker], now: float) -> list[Worker]:
        """Return the workers to recall tasks from, busiest first. Work that ends within a round trip does not count."""
        candidates = [
            (max(worker.load / worker.slots, now - worker.progress.at) - worker.reports.far_seconds, index, worker)
            for index, worker in enumerate(overloaded)
            if not worker.recalled
        ]
        worth = [row for row in candidates if row[0] >= WORTH_MOVING_SECONDS]
        if len(worth) < len(candidates):
            self.poll_again_at = now + POLL_AGAIN_SECONDS
        return [worker for _, _, worker in sorted(worth, reverse=True)]

    def _recall_last(self, worker: Worker, idle: Worker | None, now: float) -> int:
        """Recall the tasks that would start last: all queued tasks, or an idle worker's share. Returns their number."""
        wanted = worker.busy - worker.slots
        last: Iterable[Task] = reversed(worker.tasks.values())
        if idle is not None:
            wanted = max(1, wanted * idle.slots // (idle.slots + worker.slots))
            last = islice(last, MAX_TASKS_COMPARED)
        is_far = idle is not None and self._stores.place_of(idle) != self._stores.place_of(worker)
        chosen: list[Task] = []
        for behind, task in enumerate(last):
            if len(chosen) >= wanted or (is_far and behind >= worker.busy - worker.slots):
                break
            if task.id in worker.blocked or task.id in worker.started:
                continue
            if idle is not None:
                if not self._may_move(task, worker, idle, now):
                    continue
                if is_far and task.references:
                    may_move = self._stores.may_move(task, worker, idle, behind, now)
                    if may_move is None:
                        break
                    if not may_move:
                        continue
                if task.needs.is_counted:
                    if not idle.count(task.needs):
                        continue
                    wanted = 0  # only one task, because the remaining capacity is unknown
            if type(task.state) is Assigned:
                chosen.append(task)
        self._tasks.recall(worker, reversed(chosen))
        return len(chosen)

    def _may_move(self, task: Task, worker: Worker, idle: Worker, now: float) -> bool:
        may_run = task.needs.fits(idle.offers) and not self._prepares(idle, task.needs.environment)
        may_run = may_run and not task.avoids(idle, now)
        return may_run and (not task.needs.near or self._near.may_move(task, worker, idle, now))
