"""Placement: which worker gets which ready task. Once per step, O(1) per task placed.

A worker's credit is its slots, plus a prefetch worth `PREFETCH_SECONDS` by measured task time, at least one task per
slot, at most its queue size. Free slots are filled first, breadth first; then prefetches, each worker its share. A task
that may run at most once (retries=0) is never prefetched: if its worker is lost, whether it ran must be known.
"""

from __future__ import annotations

from collections import OrderedDict

from scaler.needs import Needs, Offers
from scaler.policy.view import Allocation
from scaler.protocol.messages import MAX_BATCH_BYTES, Outcome
from scaler.scheduler.core.outbox import Outbox
from scaler.scheduler.core.ready import ReadyQueue, ReadyQueues
from scaler.scheduler.core.state import Task, Worker
from scaler.scheduler.core.tasks import Tasks

PREFETCH_SECONDS = 0.05
MAX_PLACED_PER_STEP = 4096
"""Keeps a step short when very much becomes placeable at once; the shell steps again at once."""


MAX_INPUT_BYTES = MAX_BATCH_BYTES // 2
"""The most bytes of values that one task may get from the tasks that it depends on: they travel in one message."""
_TOO_MUCH_INPUT = (
    f"MAX_INPUT_BYTES is {MAX_INPUT_BYTES}, and the values that the task depends on are larger together: "
    "let fewer tasks feed it, or combine their values in steps"
).encode()
MAX_ASKED_IN_VAIN = 64
"""How many workers one pass asks that take nothing: the first tasks may not run there, or not be sent ahead."""
MAX_AVOIDING = 64
"""How many tasks that should go elsewhere are passed over for one worker in one step."""


class Pool:
    """Workers with the same offers that have credit: with a free slot (idle), or with room to prefetch (room)."""

    __slots__ = ("idle", "offers", "room", "workers")

    def __init__(self, offers: Offers) -> None:
        self.offers = offers
        self.workers = 0
        self.idle: OrderedDict[Worker, None] = OrderedDict()
        self.room: OrderedDict[Worker, None] = OrderedDict()


class Placement:
    """The workers with credit, and the pass that uses it up."""

    __slots__ = ("_allocation", "_fitting", "_outbox", "_pool_of", "_pools", "_ready", "_tasks", "overloaded")

    def __init__(self, ready: ReadyQueues, tasks: Tasks, outbox: Outbox, allocation: Allocation) -> None:
        self._ready = ready
        self._tasks = tasks
        self._outbox = outbox
        self._allocation = allocation
        self._pools: dict[Offers, Pool] = {}
        self._pool_of: dict[Worker, Pool] = {}
        self._fitting: dict[Needs, list[Pool]] = {}
        self.overloaded: OrderedDict[Worker, None] = OrderedDict()
        """Workers that have tasks waiting behind running ones: whom balancing may relieve."""

    # -- workers

    def add(self, worker: Worker) -> None:
        pool = self._pools.get(worker.offers)
        if pool is None:
            pool = self._pools[worker.offers] = Pool(worker.offers)
            self._fitting.clear()
        pool.workers += 1
        self._pool_of[worker] = pool
        self.update(worker)

    def remove(self, worker: Worker) -> None:
        pool = self._pool_of.pop(worker)
        pool.idle.pop(worker, None)
        pool.room.pop(worker, None)
        self.overloaded.pop(worker, None)
        pool.workers -= 1
        if not pool.workers:
            del self._pools[worker.offers]
            self._fitting.clear()

    def update(self, worker: Worker) -> None:
        """Note that a worker's tasks or willingness changed. Call once per worker and batch."""
        pool = self._pool_of[worker]
        count = len(worker.tasks) - len(worker.blocked)
        slots = worker.slots
        if count > slots:
            self.overloaded[worker] = None
        else:
            self.overloaded.pop(worker, None)
        if worker.draining or worker.broken_at is not None or count >= worker.limit:
            pool.idle.pop(worker, None)
            pool.room.pop(worker, None)
        elif count < slots:
            pool.room.pop(worker, None)
            pool.idle[worker] = None
        else:
            pool.idle.pop(worker, None)
            if not worker.stalled and (count < 2 * slots or worker.load < slots * PREFETCH_SECONDS):
                pool.room[worker] = None
            else:
                pool.room.pop(worker, None)

    def fitting(self, needs: Needs) -> list[Pool]:
        """Return the pools whose workers may run such tasks, in the order in which they are filled."""
        pools = self._fitting.get(needs)
        if pools is None:
            pools = [pool for pool in self._pools.values() if needs.fits(pool.offers)]
            if self._allocation.prefer_least_capable:
                pools.sort(key=lambda pool: len(pool.offers.items))
            if len(self._fitting) > 1024:
                self._fitting.clear()
            self._fitting[needs] = pools
        return pools

    @property
    def pools(self) -> list[Pool]:
        return list(self._pools.values())

    # -- the pass

    def place(self, now: float) -> bool:
        """Give ready tasks to workers with credit. Returns True when more could be placed in another step."""
        budget = MAX_PLACED_PER_STEP
        waiting = self._ready.waiting()
        for queue in waiting:
            pools = self.fitting(queue.needs)
            if not pools:
                continue
            left = self._fill(queue, pools, budget, now)
            if left < budget and len(waiting) > 1:
                self._ready.rotate(queue)
            budget = left
            if budget <= 0:
                return True
        return False

    def _fill(self, queue: ReadyQueue, pools: list[Pool], budget: int, now: float) -> int:
        """Use up credit for one requirement: free slots first, then prefetches. Returns what is left of the budget."""
        alone = sum(pool.workers for pool in pools) == 1
        in_vain = 0
        for prefetch in (False, True):
            placed = 1
            while placed and queue.count and budget > 0:
                placed = 0
                sides = [pool.room if prefetch else pool.idle for pool in pools]
                workers = sum(map(len, sides))
                everybody = sum(len(pool.idle) + len(pool.room) for pool in pools)
                if not workers:
                    break
                spread = -(-queue.count // workers)
                abundant = queue.count // everybody
                for side in sides:
                    for _ in range(len(side)):
                        if not queue.count or budget <= 0:
                            return budget
                        worker = next(iter(side))
                        share = spread if prefetch else max(min(spread, worker.slots - worker.busy), abundant)
                        given = self._give(worker, queue, share, alone, now)
                        self.update(worker)
                        if worker in side:
                            side.move_to_end(worker)
                        if given:
                            placed += given
                            budget -= given
                        else:
                            in_vain += 1
                            if in_vain == MAX_ASKED_IN_VAIN:
                                return budget
        return budget

    def _give(self, worker: Worker, queue: ReadyQueue, share: int, alone: bool, now: float) -> int:
        """Assign up to share tasks, within the worker's credit. Returns how many left the queue for this worker."""
        avoiding: list[Task] = []
        tasks = worker.tasks
        slots = worker.slots
        limit = worker.limit
        count = len(tasks) - len(worker.blocked)
        load = worker.load if count else 0.0
        full_load = slots * PREFETCH_SECONDS
        given = 0
        if not count:
            worker.progressed_at = now
            worker.checks_without_progress = 0
        while given < share and count < limit:
            if count >= slots and (worker.stalled or (load >= full_load and count >= 2 * slots)):
                break
            task = queue.take()
            if task is None:
                break
            group = task.group
            group.ready -= 1
            if count >= slots and group.spec.retries == 0:
                self._put_back(queue, task)
                break
            if task.id in tasks or (task.errors is not None and not alone and avoids(task, worker, now)):
                avoiding.append(task)
                if len(avoiding) == MAX_AVOIDING:
                    break
                continue
            inputs = self._tasks.inputs_of(task) if task.references else ()
            if inputs and sum(map(len, inputs)) > MAX_INPUT_BYTES:
                self._put_back(queue, task)
                self._tasks.end(task, Outcome.REJECTED, _TOO_MUCH_INPUT)
                continue
            group.assigned += 1
            task.attempt += 1
            task.state = worker.assigned
            timing = group.timing
            worker.hold(timing)
            load += timing.seconds
            tasks[task.id] = task
            self._outbox.run(worker, task, inputs)
            count += 1
            given += 1
        for task in reversed(avoiding):
            self._put_back(queue, task)
        return given

    @staticmethod
    def _put_back(queue: ReadyQueue, task: Task) -> None:
        task.group.ready += 1
        queue.add_first(task)


def avoids(task: Task, worker: Worker, now: float) -> bool:
    """Tell whether a task should go elsewhere for a while: it has failed on this worker."""
    errors = task.errors
    return errors is not None and errors.last_worker is worker and now < errors.avoid_until
