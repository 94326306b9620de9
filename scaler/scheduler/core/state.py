"""Records of the scheduler core: tasks, groups of tasks, clients, workers and managers.

A task's `state` says where the task is and carries what is true there, nothing else:

    Waiting(missing)          some of its dependencies have not ended
    READY                     in a ready queue
    Delayed(until)            ready after a short backoff
    Assigned(worker)          sent to a worker as attempt `task.attempt`
    Recalled(worker, cancel)  asked back from the worker, to be cancelled or to be placed anew

A task that ended is in no table, and exactly one entry of a Finished was made for it (none when its client has left).

Only `tasks.py` writes a task's state. Only the methods below write a worker's attributes.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from scaler.needs import Needs, Offers
from scaler.protocol.messages import Finished, ManagerDetails, ManagerStatus, Spec, WorkerDetails, WorkerHeartbeat

UNKNOWN_DURATION_SECONDS = 0.05
"""Assumed duration of a task whose function was never measured."""
DURATION_WEIGHT = 0.2
"""Weight of a new measurement in the moving average of a function's duration."""


_NONE: Final[frozenset[bytes]] = frozenset()
"""Shared by all workers without such ids: a set of its own each would cost memory that every step visits."""


class Timing:
    """Measured duration of one function: an exponential moving average."""

    def __init__(self) -> None:
        self.seconds = UNKNOWN_DURATION_SECONDS
        self.measured = 0

    def observe(self, seconds: float) -> None:
        if self.measured:
            self.seconds += DURATION_WEIGHT * (seconds - self.seconds)
        else:
            self.seconds = seconds
        self.measured += 1


@dataclass(slots=True, eq=False)
class Function:
    """Counts of all tasks of one name since the start. The tasks that ended are those that are not alive."""

    name: str
    submitted: int = 0
    failed: int = 0
    wall_us: int = 0
    """Total duration of the tasks that ended."""


class Group:
    """Tasks of one client and one spec that are alive. rank orders queues: priority, then depth, both descending."""

    def __init__(self, client: Client, spec: Spec, depth: int, timing: Timing, function: Function) -> None:
        self.client = client
        self.function = function
        self.spec = spec
        self.needs = Needs(spec.needs)
        self.depth = depth
        self.rank = (-spec.priority, -depth)
        self.timing = timing
        self.live = 0
        self.ready = 0
        self.assigned = 0


@dataclass(slots=True, eq=False)
class Waiting:
    missing: int


class Ready:
    __slots__ = ()


@dataclass(slots=True, eq=False)
class Delayed:
    until: float


class Assigned:
    """One instance per worker, shared by all its tasks. terminated: their state once they end there."""

    __slots__ = ("terminated", "worker")

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.terminated = Terminated(worker.name)


@dataclass(slots=True, eq=False)
class Recalled:
    worker: Worker
    cancel: bool


@dataclass(slots=True, eq=False)
class Terminated:
    """The task ended; worker is the name of the worker that had it then, empty for none.

    Only stale references (a tombstone in a queue) and the history still lead to such a task.
    """

    worker: str


READY: Final = Ready()
TERMINATED: Final = Terminated("")
TaskState = Waiting | Ready | Delayed | Assigned | Recalled | Terminated


class AttemptErrors:
    """What went wrong with one task so far; made at the first error, so that healthy tasks carry nothing."""

    def __init__(self) -> None:
        self.failures = 0
        self.lost_workers: set[bytes] = set()
        self.last_worker: Worker | None = None
        self.avoid_until = 0.0
        self.texts: list[str] = []


@dataclass(slots=True, eq=False)
class Task:
    """One task. attempt counts how often it was sent to a worker."""

    id: bytes
    group: Group
    payload: bytes
    references: tuple[bytes, ...]
    state: TaskState = READY
    attempt: int = 0
    dependents: list[Task] | None = None
    errors: AttemptErrors | None = None

    def avoids(self, worker: Worker, now: float) -> bool:
        """Tell whether the task should go to another worker for a while: it has failed on this one."""
        errors = self.errors
        return errors is not None and errors.last_worker is worker and now < errors.avoid_until


@dataclass(slots=True, eq=False)
class RetainedResult:
    """How a task ended, for as long as dependents or a client that has not acknowledged it may still name it."""

    outcome: int
    payload: bytes
    unacknowledged: bool = True
    uses: int = 0


class Peer:
    """Identity and liveness of a client, worker or manager. Times are the core's own."""

    def __init__(self, identifier: bytes, name: str, now: float) -> None:
        self.id = identifier
        self.name = name
        self.last_message_at = now
        self.broken_at: float | None = None

    def received(self, now: float) -> None:
        """Note a message of this peer."""
        self.last_message_at = now

    def broke(self, now: float) -> None:
        """Note that the connection is gone."""
        self.broken_at = now

    def resumed(self, now: float) -> None:
        """Note that the connection is back."""
        self.broken_at = None
        self.last_message_at = now


class Client(Peer):
    """A client: a process, or one inside a task (`via` is the worker that relays its messages)."""

    def __init__(self, identifier: bytes, name: str, via: Worker | None, now: float) -> None:
        super().__init__(identifier, name, now)
        self.via = via
        self.tasks: dict[bytes, Task] = {}
        self.groups: dict[Spec, Group] = {}
        self.retained: dict[bytes, RetainedResult] = {}
        self.number = 0
        """Of the last Finished that it was sent."""
        self.unacknowledged: deque[Finished] = deque()
        self.submitted = 0
        """All tasks since it joined; those that are not in `tasks` have ended."""
        self.failed = 0
        self.terminated = False


class WorkerPool:
    """Workers with the same offers that have credit: with a free slot (idle), or with capacity to prefetch."""

    def __init__(self, offers: Offers) -> None:
        self.offers = offers
        self.workers = 0
        self.idle: OrderedDict[Worker, None] = OrderedDict()
        self.prefetching: OrderedDict[Worker, None] = OrderedDict()


class Worker(Peer):
    """A worker agent: what it offers, the tasks that it has, and what it was told.

    by_function: its tasks per function, without the blocked ones. blocked: ids of started tasks that wait for tasks of
    their own and have lent their slots. progressed_at: when it last finished or began a task.
    """

    def __init__(self, identifier: bytes, details: WorkerDetails, hostname: str, pid: int, now: float) -> None:
        super().__init__(identifier, f"{hostname}|{pid}|{identifier.hex()[:8]}", now)
        self.details = details
        self.hostname = hostname
        self.pid = pid
        self.offers = Offers.of(details.capabilities)
        self.slots = details.slots
        self.limit = details.slots * (1 + details.queue_size)
        self.assigned = Assigned(self)
        self.tasks: dict[bytes, Task] = {}
        self.blocked: AbstractSet[bytes] = _NONE
        self.by_function: dict[Timing, int] = {}
        self.recalled = 0
        self.sent = 0
        """Tasks that it was sent so far."""
        self.side: OrderedDict[Worker, None] | None = None
        """The side of its pool that it is in; None without credit."""
        self.stalled = False
        self.draining = False
        self.quarantined = False
        self.failures_in_row = 0
        self.checks_without_progress = 0
        self.progressed_at = now
        self.idle_since = now
        self.heartbeat: WorkerHeartbeat | None = None
        self.heartbeat_at = now
        self.announced: set[bytes] = set()
        """Ids of the functions and serializers that it was sent."""
        self.nested: AbstractSet[bytes] = _NONE
        """Ids of the clients inside its tasks."""

    @property
    def busy(self) -> int:
        """The number of tasks that take a slot or wait for one; blocked tasks do not."""
        return len(self.tasks) - len(self.blocked)

    @property
    def load(self) -> float:
        """Estimated seconds of all tasks that it has, by the present measurement of each function."""
        seconds = 0.0
        for timing, count in self.by_function.items():
            seconds += timing.seconds * count
        return seconds

    @property
    def is_willing(self) -> bool:
        """True while it may get tasks."""
        return not self.draining and self.broken_at is None

    # -- its tasks

    def take(self, task: Task) -> None:
        """Add a task that is sent to it."""
        self.tasks[task.id] = task
        self.sent += 1
        timing = task.group.timing
        self.by_function[timing] = self.by_function.get(timing, 0) + 1

    def release(self, task: Task) -> None:
        """Remove a task, whose state still says how it was here."""
        del self.tasks[task.id]
        if task.id in self.blocked:
            self.blocked -= {task.id}
        else:
            self._discount(task.group.timing)
        if type(task.state) is Recalled:
            self.recalled -= 1

    def block(self, task: Task) -> None:
        """Note that a started task waits for tasks of its own."""
        self.blocked |= {task.id}
        self._discount(task.group.timing)

    def unblock(self, task: Task) -> None:
        """Note that a blocked task continues."""
        self.blocked -= {task.id}
        timing = task.group.timing
        self.by_function[timing] = self.by_function.get(timing, 0) + 1

    def _discount(self, timing: Timing) -> None:
        count = self.by_function[timing] - 1
        if count:
            self.by_function[timing] = count
        else:
            del self.by_function[timing]

    def count_recall(self, change: int) -> None:
        """Count a task that was asked back (1), or that it keeps all the same (-1)."""
        self.recalled += change

    def join_side(self, side: OrderedDict[Worker, None] | None) -> None:
        """Move to a side of its pool."""
        if self.side is not None:
            del self.side[self]
        self.side = side
        if side is not None:
            side[self] = None

    # -- how it does

    def note_progress(self, now: float, *, healthy: bool) -> None:
        """Note results. healthy: the code of a task came to its end, so that the worker itself works."""
        if healthy:
            self.failures_in_row = 0
        self.stalled = False
        self.progressed_at = now
        self.checks_without_progress = 0

    def note_begin(self, now: float) -> None:
        """Note that it gets tasks after it had none: its progress is measured from now on."""
        self.progressed_at = now
        self.checks_without_progress = 0

    def note_idle(self, now: float) -> None:
        """Note that it has no tasks."""
        self.idle_since = now

    def note_failure(self) -> None:
        """Count an infrastructure failure."""
        self.failures_in_row += 1

    def note_check(self, *, has_progressed: bool) -> None:
        """Count a balancing check in which it made no progress, or forget the earlier ones."""
        self.checks_without_progress = 0 if has_progressed else self.checks_without_progress + 1

    def stall(self) -> None:
        """Give it no more than it can start until it finishes something."""
        self.stalled = True

    def drain(self, *, quarantined: bool = False) -> None:
        """Give it no more tasks."""
        self.draining = True
        self.quarantined = self.quarantined or quarantined

    def keep_heartbeat(self, heartbeat: WorkerHeartbeat, now: float) -> None:
        """Keep its last heartbeat."""
        self.heartbeat = heartbeat
        self.heartbeat_at = now

    # -- what it was told

    def announce(self, identifier: bytes) -> None:
        """Note that it is sent a function or serializer."""
        self.announced.add(identifier)

    def withdraw(self, identifiers: list[bytes]) -> None:
        """Note that it is told to forget functions or serializers."""
        self.announced.difference_update(identifiers)

    def add_nested(self, client: bytes) -> None:
        """Add a client inside one of its tasks."""
        self.nested |= {client}

    def remove_nested(self, client: bytes) -> None:
        """Remove a client inside one of its tasks."""
        self.nested -= {client}


@dataclass(frozen=True, slots=True)
class ScalingInputs:
    """What a scaling decision about one manager was made from. Tasks are those that its workers could run."""

    queued: int
    running: int
    unmeasured: int
    """Of these: tasks of functions none of which has ended yet."""
    backlog_seconds: float
    """What the others take on one slot; running ones count half."""
    units_running: int
    units_pending: int
    units_idle: int
    startup_seconds: float | None
    """Measured; None until a unit has connected."""
    max_units: int | None
    """None for any number."""
    trouble: str


@dataclass(frozen=True, slots=True)
class ScalingDecided:
    """How many units a manager should have from now on (those that drain not counted), and why, as one sentence."""

    manager_id: str
    units: int
    draining: int
    reason: str
    inputs: ScalingInputs


class ManagerRecord(Peer):
    """A worker manager: its details, its last status, and what it was last told. Only `elastic.py` writes it."""

    def __init__(self, identifier: bytes, details: ManagerDetails, joined: int, now: float) -> None:
        super().__init__(identifier, details.manager_id, now)
        self.details = details
        self.offers = Offers.of(details.capabilities)
        self.joined = joined
        self.status: ManagerStatus | None = None
        self.status_at = 0.0
        self.told: tuple[int, tuple[str, ...]] | None = None
        self.decision: ScalingDecided | None = None
        """The last one that was published."""
        self.startup_seconds: float | None = None
        self.running_units: dict[str, Worker] = {}
        self.joined_units: set[str] = set()
        """Units whose worker has come, and whose manager has not been told."""
        self.left_units: set[str] = set()
        """Units whose worker has come and gone, while the manager still lists them: they are not pending."""
        self.unwanted_units: set[str] = set()
        """Units that live and are to be stopped: their worker has not come yet, or was given up. A worker of such a
        unit that comes after all gets no work."""
