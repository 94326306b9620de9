"""Which worker gets which task: placement of ready tasks, and balancing of those that wait behind others.

A worker's credit is its slots, plus a prefetch worth `PREFETCH_SECONDS` by measured task time, or 1.5 round trips to
the worker where these are more, at least one task per slot, at most its queue size. Free slots are filled first,
breadth first; then prefetches, each worker its share. A task that may run at most once (retries=0) is never prefetched:
if its worker is lost, whether it ran must be known.

Balancing takes back what waits behind a running task while another worker has nothing to do. At once: a worker is idle,
nothing that fits it is ready, and others have tasks waiting that will not start soon. Every `load_balance_seconds`: a
worker that finished nothing for `load_balance_trigger_times` checks has its waiting tasks taken back, and gets no more
than it can start until it finishes something.

Tasks that take memory, gpus or several cpus are placed where these are free, counted from the moment they are sent. A
task that takes several slots is sent only when they are free, and then nothing waits behind it. When the first such
task of a queue has found no room for a while, `reservations.py` keeps room free for it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice

from scaler.needs import PIN, Needs
from scaler.policy.view import Allocation
from scaler.protocol.messages import MAX_BATCH_BYTES, Outcome
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.locality import MAX_MOVED, WORTH_MOVING_SECONDS
from scaler.scheduler.core.ready import ReadyQueue
from scaler.scheduler.core.reservations import Reservations
from scaler.scheduler.core.rules import Rules
from scaler.scheduler.core.state import Assigned, Task, Worker, WorkerPool
from scaler.scheduler.core.tasks import Tasks

MAX_PLACED_PER_STEP = 4096
"""Keeps a step short when very much becomes placeable at once; the shell steps again at once."""
MAX_INPUT_BYTES = MAX_BATCH_BYTES // 2
"""The most bytes of values that one task may get from the tasks that it depends on: they travel in one message."""
_TOO_MUCH_INPUT = (
    f"MAX_INPUT_BYTES is {MAX_INPUT_BYTES}, and the values that the task depends on are larger together: "
    "let fewer tasks feed it, or combine their values in steps"
).encode()
_PINNED_LOST = b"the worker on which it was to run is not connected"
MAX_ASKED_IN_VAIN = 64
"""How many workers one pass asks that take nothing: the first tasks may not run there, or not be sent ahead."""
MAX_AVOIDING = 64
"""How many tasks that should go elsewhere are passed over for one worker in one step."""

MAX_IDLE_SERVED = 64
MAX_OVERLOADED_COMPARED = 64
"""How many idle and overloaded workers one step compares: keeps a step short in a large cluster."""
MAX_TASKS_COMPARED = 512
"""How many tasks of an overloaded worker are compared for an idle one."""
MAX_TRIED = 256
"""Pairs of idle and overloaded workers that one step looks at."""
POLL_AGAIN_SECONDS = 0.005


def _worker_of(pin: str) -> bytes:
    """Return the id of the worker that a need names; empty for what is no id."""
    try:
        return bytes.fromhex(pin.removeprefix(PIN))
    except ValueError:
        return b""


class Placement:
    """The workers with credit, the pass that uses it up, and balancing."""

    def __init__(self, state: ClusterState, tasks: Tasks, allocation: Allocation, config: Rules) -> None:
        self._ready = state.ready
        self._workers = state.workers
        self._locality = state.data.locality
        self._tasks = tasks
        self._allocation = allocation
        self._check_seconds = config.load_balance_seconds
        self._checks = config.load_balance_trigger_times
        self._pools = state.pools
        self._overloaded = state.overloaded
        self._pool_of: dict[Worker, WorkerPool] = {}
        self._fitting: dict[Needs, list[WorkerPool]] = {}
        self.touched: dict[Worker, None] = {}
        """Workers whose tasks changed in this step."""
        self.has_backlog = False
        """The last pass left ready tasks that no worker has room for."""
        self.next_check = state.now + self._check_seconds
        self._reservations = Reservations()
        self.poll_again_at: float | None = None
        """Set when a task was left where it is because it starts soon."""

    # -- workers

    def add(self, worker: Worker) -> None:
        pool = self._pools.get(worker.offers)
        if pool is None:
            pool = self._pools[worker.offers] = WorkerPool(worker.offers)
            self._fitting.clear()
        pool.workers += 1
        self._pool_of[worker] = pool
        self._locality.join(worker)
        self.update(worker)

    def remove(self, worker: Worker) -> None:
        worker.join_side(None)
        self._locality.leave(worker)
        self._reservations.drop(worker)
        self.touched.pop(worker, None)
        self._overloaded.pop(worker, None)
        pool = self._pool_of.pop(worker)
        pool.workers -= 1
        if not pool.workers:
            del self._pools[worker.offers]
            self._fitting.clear()

    def update(self, worker: Worker) -> None:
        """Note that a worker's tasks or willingness changed. Call once per worker and batch."""
        count = len(worker.tasks) - len(worker.blocked)
        slots = worker.slots
        if count > slots:
            self._overloaded[worker] = None
        elif self._overloaded:
            self._overloaded.pop(worker, None)
        side: OrderedDict[Worker, None] | None = None
        if worker.draining or worker.is_reporting or worker.broken_at is not None or count >= worker.limit:
            pass
        elif count + worker.extra <= slots - 1:
            side = self._pool_of[worker].idle
        elif (
            not worker.extra
            and not worker.stalled
            and (count < 2 * slots or (load := worker.load) < worker.full_load(load, count))
        ):
            side = self._pool_of[worker].prefetching
        if side is not worker.side:
            worker.join_side(side)
            if self._locality.is_spread:
                self._locality.due[worker.store] = None

    def _pools_for(self, needs: Needs) -> list[WorkerPool]:
        """Return the pools whose workers may run such tasks, in the order in which they are filled."""
        pools = [pool for pool in self._pools.values() if needs.fits(pool.offers)]
        if self._allocation.prefer_least_capable:
            pools.sort(key=lambda pool: len(pool.offers.items))
        if len(self._fitting) > 1024:
            self._fitting.clear()
        self._fitting[needs] = pools
        return pools

    # -- the pass

    def place(self, now: float) -> bool:
        """Give ready tasks to workers with credit. Returns True when more could be placed in another step."""
        for worker in self.touched:
            if not worker.tasks:
                worker.note_idle(now)
            self.update(worker)
        self.touched.clear()
        budget = MAX_PLACED_PER_STEP
        waiting = self._ready.waiting()
        if self._reservations.by_queue:
            self._reservations.expire(now)
        for queue in waiting:
            if queue.needs.pin:
                budget -= self._give_pinned(queue, now)
                if budget <= 0:
                    break
                continue
            pools = self._fitting.get(queue.needs)
            if pools is None:
                pools = self._pools_for(queue.needs)
            placed = self._fill(queue, pools, budget, now)
            if queue.needs.is_counted and self._reservations.due(queue, placed, now):
                self._reserve(queue, pools, now)
            if placed and len(waiting) > 1:
                self._ready.rotate(queue)
            budget -= placed
            if budget <= 0:
                break
        if self._locality.is_spread:
            self._locality.end_pass(now)
        self.has_backlog = any(queue.count or queue.preferred for queue in waiting)
        return budget <= 0

    def _fill(self, queue: ReadyQueue, pools: list[WorkerPool], budget: int, now: float) -> int:
        """Use up credit for one requirement: free slots first, then prefetches. Returns how many tasks were placed."""
        is_only_worker = sum([pool.workers for pool in pools]) == 1
        placed = in_vain = 0
        for prefetch in (False, True):
            if queue.preferred:
                placed += self._offer_near(queue, pools, prefetch, is_only_worker, budget - placed, now)
            given = 1
            while given and queue.count and placed < budget and in_vain < MAX_ASKED_IN_VAIN:
                given, refused = self._offer(queue, pools, prefetch, is_only_worker, budget - placed, now)
                placed += given
                in_vain += refused
            if queue.preferred:
                placed += self._offer_elsewhere(queue, pools, prefetch, is_only_worker, budget - placed, now)
        return placed

    def _give_pinned(self, queue: ReadyQueue, now: float) -> int:
        """Give tasks to the one worker that they need, or end them when it is gone. Returns how many were taken."""
        worker = self._workers.get(_worker_of(queue.needs.pin))
        if worker is not None:
            placed = self._give(worker, queue, queue.total, True, now) if worker.side is not None else 0
            self.update(worker)
            return placed
        lost = list(queue)
        for task in lost:
            self._tasks.end(task, Outcome.WORKER_LOST, _PINNED_LOST)
        return len(lost)

    def _offer_near(
        self, queue: ReadyQueue, pools: list[WorkerPool], prefetch: bool, is_only_worker: bool, budget: int, now: float
    ) -> int:
        """Offer tasks that prefer a store to its workers. Returns how many were placed."""
        sides = [pool.prefetching if prefetch else pool.idle for pool in pools]
        placed = 0
        for number in [number for number in self._locality.due if number in queue.stores]:
            workers = [
                worker
                for worker in self._locality.stores[number].workers
                if worker.side is not None and any(worker.side is side for side in sides)
            ]
            while workers and placed < budget and number in queue.stores:
                share = -(-min(queue.stores[number].count, budget - placed) // len(workers))
                left = []
                for worker in workers:
                    free = worker.slots - worker.busy
                    given = self._give(worker, queue, share if prefetch else min(share, free), is_only_worker, now)
                    side = worker.side
                    self.update(worker)
                    if given and worker.side is side:
                        left.append(worker)
                    placed += given
                workers = left
        return placed

    def _offer_elsewhere(
        self, queue: ReadyQueue, pools: list[WorkerPool], prefetch: bool, is_only_worker: bool, budget: int, now: float
    ) -> int:
        """Offer tasks to workers of other stores than they prefer. Returns how many were placed."""
        sides = [pool.prefetching if prefetch else pool.idle for pool in pools]
        placed = 0
        in_vain: set[int] = set()
        for side, worker in [(pool, worker) for pool in sides for worker in islice(pool, MAX_MOVED)][:MAX_MOVED]:
            given = worker.store not in in_vain
            while given and placed < budget and queue.preferred and worker.side is side:
                given = self._give(worker, queue, 1, is_only_worker, now) > 0
                self.update(worker)
                placed += given
            if not given:
                in_vain.add(worker.store)
            if worker.side is side:
                side.move_to_end(worker)
        return placed

    def _offer(
        self, queue: ReadyQueue, pools: list[WorkerPool], prefetch: bool, is_only_worker: bool, budget: int, now: float
    ) -> tuple[int, int]:
        """Offer each worker with credit its share, once. Returns how many tasks were placed, and asked in vain."""
        sides = [pool.prefetching if prefetch else pool.idle for pool in pools]
        workers = sum(map(len, sides))
        if not workers:
            return 0, 0
        spread = -(-queue.count // workers)
        abundant = queue.count // sum([len(pool.idle) + len(pool.prefetching) for pool in pools])
        placed = in_vain = 0
        most = min(queue.count, budget) + MAX_ASKED_IN_VAIN
        for side, worker in [(pool, worker) for pool in sides for worker in islice(pool, most)]:
            share = (
                spread
                if prefetch
                else max(min(spread, worker.slots - len(worker.tasks) + len(worker.blocked)), abundant)
            )
            given = self._give(worker, queue, share, is_only_worker, now)
            self.update(worker)
            if worker.side is side:
                side.move_to_end(worker)
            placed += given
            in_vain += not given
            if not queue.count or placed >= budget or in_vain >= MAX_ASKED_IN_VAIN:
                break
        return placed, in_vain

    def _give(self, worker: Worker, queue: ReadyQueue, share: int, is_only_worker: bool, now: float) -> int:
        """Assign up to share tasks, within the worker's credit. Returns how many left the queue for this worker."""
        share = self._room(worker, queue, share)
        needs = queue.needs
        avoiding: list[Task] = []
        chosen: list[Task] = []
        inputs: dict[bytes, tuple[bytes, ...]] = {}
        tasks = worker.tasks
        slots = worker.slots
        limit = worker.limit
        count = len(tasks) - len(worker.blocked) + worker.extra
        load = worker.load if count else 0.0
        full_load = worker.full_load(load, count)
        take = partial(self._locality.take, queue, worker, now) if queue.preferred else queue.take
        while len(chosen) < share and count < limit:
            if count > slots - 1 and (worker.extra or worker.stalled or (load >= full_load and count >= 2 * slots)):
                break
            task = take()
            if task is None:
                break
            group = task.group
            is_unknown = False
            if not group.spec.retries:
                if count > slots - 1:
                    queue.put_back(task)
                    break
                roster = group.client.roster
                is_unknown = roster is None or worker.id not in roster.known
            if (
                is_unknown
                or task.id in tasks
                or (task.errors is not None and not is_only_worker and task.avoids(worker, now))
            ):
                avoiding.append(task)
                if len(avoiding) == MAX_AVOIDING:
                    break
                continue
            if task.references:
                inputs[task.id] = self._tasks.inputs_of(task)
                if sum(map(len, inputs[task.id])) > MAX_INPUT_BYTES:
                    queue.put_back(task)
                    self._tasks.end(task, Outcome.REJECTED, _TOO_MUCH_INPUT)
                    continue
            if needs.is_counted:
                worker.claim(task, needs)
                count = len(tasks) + len(chosen) - len(worker.blocked) + worker.extra
            chosen.append(task)
            load += group.timing.seconds
            count += 1
        if chosen:
            self._tasks.assign(chosen, worker, inputs, now)
        for task in reversed(avoiding):
            queue.put_back(task)
        if queue.taken:
            queue.taken.clear()
        return len(chosen)

    @staticmethod
    def _room(worker: Worker, queue: ReadyQueue, share: int) -> int:
        """Return how much of its share may go to a worker, by what is reserved there and by what it has free."""
        if worker.reserved is not None and worker.reserved is not queue:
            if not queue.may_pass(worker.reserved):
                return 0
            share = 1  # the task behind the first one may be of a rank that may not
        if queue.needs.is_counted:
            share = min(share, worker.count(queue.needs, queue))
        return share

    def _reserve(self, queue: ReadyQueue, pools: list[WorkerPool], now: float) -> None:
        """Keep room free for the first task of a queue on the worker that will have it first, as far as is known."""
        here = set(pools)
        workers = [worker for worker, pool in self._pool_of.items() if pool in here and worker.is_willing]
        worker = self._reservations.reserve(queue, workers, now)
        if worker is not None and worker.reserved is queue and worker.busy > worker.slots:
            self._recall_last(worker, None, now)

    # -- balancing

    def balance(self, now: float) -> None:
        """Recall tasks from workers that make no progress, and for idle workers."""
        self.poll_again_at = None
        if now >= self.next_check:
            self.next_check = now + self._check_seconds
            for worker in list(self._overloaded):
                if worker.check_progress(now, self._check_seconds, self._checks):
                    self._recall_last(worker, None, now)
                    self.update(worker)
        pools = [pool for pool in self._pools.values() if pool.idle]
        if not pools or not self._overloaded:
            return
        overloaded = list(islice(self._overloaded, MAX_OVERLOADED_COMPARED))
        busiest = self._busiest(overloaded, now)
        served = tried = 0
        for pool in pools:
            # What no worker with these offers and this store should run is compared once for all of them.
            candidates: dict[int, Iterator[Worker]] = {}
            for idle in list(islice(pool.idle, MAX_IDLE_SERVED - served)):
                served += 1
                if idle.reserved is not None:
                    continue
                if idle.store not in candidates:
                    candidates[idle.store] = iter(self._locality.nearest(busiest, idle))
                for worker in candidates[idle.store]:
                    tried += 1
                    if tried > MAX_TRIED or (not worker.recalled and self._recall_last(worker, idle, now)):
                        break
                if self._locality.is_spread:
                    pool.idle.move_to_end(idle)
        if len(self._overloaded) > MAX_OVERLOADED_COMPARED:
            # Those compared go to the back, so that the next step compares others.
            for worker in overloaded:
                self._overloaded.move_to_end(worker)

    def _busiest(self, overloaded: list[Worker], now: float) -> list[Worker]:
        """Return those from which it is worth to take tasks, the busiest first.

        What a worker does within a round trip is done before it is asked, or its answer arrives.
        """
        candidates = [
            (max(worker.load / worker.slots, now - worker.progressed_at) - worker.far_seconds, index, worker)
            for index, worker in enumerate(overloaded)
            if not worker.recalled
        ]
        worth = [row for row in candidates if row[0] >= WORTH_MOVING_SECONDS]
        if len(worth) < len(candidates):
            self.poll_again_at = now + POLL_AGAIN_SECONDS
        return [worker for _, _, worker in sorted(worth, reverse=True)]

    def _recall_last(self, worker: Worker, idle: Worker | None, now: float) -> int:
        """Recall tasks that would start last: all that wait, or an idle worker's share. Returns how many."""
        wanted = worker.busy - worker.slots
        last: Iterable[Task] = reversed(worker.tasks.values())
        if idle is not None:
            wanted = max(1, wanted * idle.slots // (idle.slots + worker.slots))
            last = islice(last, MAX_TASKS_COMPARED)
        is_far = idle is not None and idle.store != worker.store
        chosen: list[Task] = []
        for behind, task in enumerate(last):
            if len(chosen) >= wanted or (is_far and behind >= worker.busy - worker.slots):
                break
            if task.id in worker.blocked or task.id in worker.started:
                continue
            if idle is not None and (not task.needs.fits(idle.offers) or task.avoids(idle, now)):
                continue
            if idle is not None and is_far and task.references:
                if not self._locality.may_compare(task, now):
                    break
                if not self._locality.may_move(task, worker, idle, behind, now):
                    continue
            if idle is not None and task.needs.is_counted:
                if not idle.count(task.needs):
                    continue
                wanted = 0  # one of them: what is left there then is not known
            if type(task.state) is Assigned:
                chosen.append(task)
        self._tasks.recall(worker, reversed(chosen))
        return len(chosen)
