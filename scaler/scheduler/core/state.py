"""Records of the scheduler core: tasks, groups of tasks, clients, workers and managers.

A task's `state` is where the task is and carries what is true there, nothing else:

    Waiting(missing)          some of its dependencies have not ended
    READY                     in a ready queue
    Delayed(until)            ready after a short backoff
    Assigned(worker)          sent to a worker as attempt `task.attempt`
    Recalled(worker, cancel)  asked back from the worker, to be cancelled or to be placed again

A task that ended is in no table, and exactly one entry of a Finished was made for it (none when its client has left).

Only `tasks.py` writes a task's state. Only the methods below write a worker's attributes.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import nlargest
from operator import attrgetter
from typing import ClassVar, Final

from scaler.errors import UsageError
from scaler.needs import MEMORY, Needs, Offers
from scaler.net.identity import LOCAL, Identity
from scaler.policy.view import LATE_SECONDS, Wanted
from scaler.protocol.messages import (
    Done,
    Finished,
    ManagerDetails,
    ManagerStatus,
    Spec,
    StoreDetails,
    StoreReport,
    TaskGroup,
    UnitState,
    UnitStatus,
    WorkerDetails,
    WorkerHeartbeat,
)
from scaler.scheduler.core.accounts import KeyAccount
from scaler.scheduler.core.durable import DurableSession
from scaler.scheduler.core.durations import Paces, Timing
from scaler.scheduler.core.resources import Queue, Stock, offers_of, own_stocks

STARTUP_WEIGHT = 0.3
"""Weight of a new measurement in the moving average of a manager's start-up time, and of its queue."""
PROOF_SECONDS = 1.0
"""Messages received this long after another peer claimed a name prove that its owner is alive."""
TAKEOVER_SECONDS = 5.0
"""A peer without a message for this long may have ended without notice. Claims of a name this close are one."""
PREFETCH_SECONDS = 0.05
"""Work that a slot of a worker has waiting, at least."""
PREFETCH_ROUND_TRIPS = 1.5
"""Work that it has waiting, in round trips to the worker: one is on the way, the rest is the margin."""
ROUND_TRIPS_KEPT = 5
"""Heartbeats of which the fastest counts: a busy process answers late, but the way is not longer for that."""
MAX_ROUND_TRIP_SECONDS = 1.0
"""A longer one, as a worker reports it, does not let it have more tasks."""
ALIVE = (UnitState.WAITING, UnitState.PENDING, UnitState.RUNNING)
MAX_CALLS_OF_TASK = 1 << 32
"""A client's word for more is not believed: counts must stay exact in every reader."""
ARRIVAL_SECONDS = 0.1
"""Resolution of the times at which the tasks of a group arrived."""
MAX_ARRIVALS = 1_000
"""Such times that a group keeps; beyond it, every second one is dropped."""


@dataclass(slots=True, eq=False)
class Function:
    """Counts of all tasks of one name, key, and needs since the start. Tasks that are not alive have ended.

    failed, cancelled: calls, of which a chunk has several. more: calls beyond one per task. untimed: calls that ended
    without a duration, such as those that never ran.
    """

    name: str
    needs: Needs
    key: str = ""
    submitted: int = 0
    failed: int = 0
    cancelled: int = 0
    more: int = 0
    untimed: int = 0
    wall_us: int = 0
    """Total duration of the tasks that ended."""
    viewed: tuple[int, int] = (0, 0)
    """How many had ended when the policy saw the cluster last, and their wall_us."""
    timings: dict[Timing, None] = field(default_factory=dict)
    """Durations of the tasks of its last definitions."""


@dataclass(slots=True, eq=False)
class Group:
    """Tasks of one client and one spec that are alive. rank orders queues: priority, then depth, both descending."""

    client: ClientRecord
    spec: Spec
    functions: tuple[bytes, ...]
    """Ids of the function and, if there is one, of the serializer."""
    size_bytes: int
    """What the group counts in the account of its key."""
    needs: Needs
    rank: tuple[int, int]
    depth: int
    timing: Timing
    function: Function
    submitted: int = 0
    """Calls, as `failed` and `cancelled`."""
    failed: int = 0
    cancelled: int = 0
    live: int = 0
    ready: int = 0
    assigned: int = 0
    calls: dict[bytes, int] = field(default_factory=dict)
    """Living tasks that are chunks of several calls."""
    more: int = 0
    """Calls beyond one per living task."""
    arrivals: list[tuple[float, bytes]] = field(default_factory=list)
    """When its queued tasks arrived, by the scheduler's clock, each time with the last task that arrived then."""

    def arrived(self, task: bytes, now: float) -> None:
        """Note that tasks have arrived, the last of which is this one; forget times of which no task is queued."""
        arrivals = self.arrivals
        if arrivals and now - arrivals[-1][0] < ARRIVAL_SECONDS:
            arrivals[-1] = (arrivals[-1][0], task)
            return
        while arrivals and not self._has_queued(arrivals[0][1]):
            del arrivals[0]
        arrivals.append((now, task))
        if len(arrivals) > MAX_ARRIVALS:
            del arrivals[1:-1:2]

    def oldest(self) -> tuple[float, bytes]:
        """Return when the oldest queued task arrived, and one that arrived then. O(MAX_ARRIVALS).

        Where all of these have left the queue, and earlier tasks came back, it is the last arrival.
        """
        return next((each for each in self.arrivals if self._has_queued(each[1])), self.arrivals[-1])

    @property
    def records(self) -> tuple[Function | ClientRecord | Group, ...]:
        """What counts how the group's calls end."""
        return self.function, self.client, self

    def note_calls(self, columns: TaskGroup) -> int:
        """Note how many calls new tasks have, and return how many these are beyond one per task."""
        more, tasks = 0, self.client.tasks
        for task, calls in zip(columns.ids, columns.calls, strict=True):
            if calls > 1 and task not in self.calls and task in tasks and tasks[task].group is self:
                self.calls[task] = min(calls, MAX_CALLS_OF_TASK)
                more += self.calls[task] - 1
        return more

    def in_calls(self, tasks: int) -> int:
        """Return about how many calls some living tasks have, whose chunks are of the same size as the others'."""
        return tasks + round(self.more * tasks / self.live) if self.more else tasks

    def _has_queued(self, task: bytes) -> bool:
        found = self.client.tasks.get(task)
        return found is not None and found.is_queued


@dataclass(slots=True, eq=False)
class Waiting:
    missing: int


class Ready:
    __slots__ = ()


@dataclass(slots=True, eq=False)
class Delayed:
    until: float


@dataclass(slots=True, eq=False)
class Assigned:
    """One instance per worker, shared by all its tasks."""

    worker: Worker


@dataclass(slots=True, eq=False)
class Recalled:
    worker: Worker
    cancel: bool


@dataclass(slots=True, eq=False)
class WorkerClock:
    """A worker's monotonic clock. offset_seconds: added to it, it is the scheduler's; None: not known yet."""

    offset_seconds: float | None = None
    reported_seconds: float | None = None
    """The offset by the worker's last heartbeat."""

    def keep(self, heartbeat: WorkerHeartbeat) -> None:
        if heartbeat.clock_error_seconds and heartbeat.clock_offset_seconds != self.reported_seconds:
            self.offset_seconds = self.reported_seconds = heartbeat.clock_offset_seconds

    def has_read(self, us: int, now: float) -> None:
        """Note that it has shown this before the scheduler's showed `now`."""
        latest = now - us / 1e6
        if self.offset_seconds is None or self.offset_seconds > latest:
            self.offset_seconds = latest


@dataclass(slots=True, eq=False)
class Ran:
    """When and where the tasks of one Done ran, or those of one Started run, in columns as there."""

    clock: WorkerClock
    ids: list[bytes]
    began_us: list[int]
    duration_us: list[int]
    lanes: list[int]
    inputs_us: list[int]
    """Empty when no task got stored inputs, as inputs_bytes."""
    inputs_bytes: list[int]


@dataclass(slots=True, eq=False)
class Terminated:
    """The task ended; worker is the name of the worker that had it then, empty for none. ran: of that worker's Done.

    Only stale references (a tombstone in a queue) and the history still lead to such a task.
    """

    worker: str
    ran: Ran | None = None

    def alone(self, task: bytes) -> Terminated:
        """Return the same with the columns of this task only, for a record that outlives the others."""
        ran = self.ran
        if ran is None or task not in ran.ids:
            return self if ran is None else Terminated(self.worker)
        at = ran.ids.index(task)
        all_columns = ran.began_us, ran.duration_us, ran.lanes, ran.inputs_us, ran.inputs_bytes
        columns = (column[at : at + 1] for column in all_columns)
        return Terminated(self.worker, Ran(ran.clock, [task], *columns))


READY: Final = Ready()
TERMINATED: Final = Terminated("")
TaskState = Waiting | Ready | Delayed | Assigned | Recalled | Terminated
QUEUED: Final = (Waiting, Ready, Delayed)
"""States of tasks that no worker has."""


def max_number(spec: Spec, losses: int = 0, uncharged: int = 0) -> int:
    """Return the number of the last attempt that a task may have, as far as is known now.

    losses, uncharged: how many of its attempts another one follows that is no retry.
    """
    return 1 + uncharged + (spec.retries + losses if spec.retry_on else spec.max_losses)


@dataclass(slots=True, eq=False)
class AttemptErrors:
    """What went wrong with one task so far; made at the first error, so that healthy tasks carry nothing."""

    failures: int = 0
    """Attempts that raised an exception of `retry_on`, and that another one follows."""
    losses: int = 0
    """The same of attempts that ended because their process or worker did."""
    uncharged: int = 0
    """The same of attempts that ended with a worker that was drained: they count neither as retries nor as losses."""
    interrupted: int = 0
    """Attempts that the cluster ended while they ran."""
    at_time_limit: int = 0
    """Those of them that ended at the time limit of their unit."""
    longest_seconds: float = 0.0
    """How long the longest of them had run."""
    misses: dict[bytes, int] = field(default_factory=dict)
    """How often it could not begin because its worker did not get this object from the storage."""
    lost_workers: set[bytes] = field(default_factory=set)
    last_worker: Worker | None = None
    avoid_until: float = 0.0
    texts: list[str] = field(default_factory=list)
    failed_input: tuple[str, bytes] | None = None
    """Function and id of the task whose failure kept this one from running."""
    needs: Needs | None = None
    """What it needs from now on: to run alone."""


@dataclass(slots=True, eq=False)
class Task:
    """One task. attempt counts how often it was sent to a worker: of attempts people see `number`."""

    id: bytes
    group: Group
    payload: bytes
    references: tuple[bytes, ...]
    state: TaskState = READY
    attempt: int = 0
    dependents: list[Task] | None = None
    errors: AttemptErrors | None = None

    @property
    def needs(self) -> Needs:
        """What it needs of a worker: what its group needs, and perhaps to run alone. Names its ready queue."""
        own = self.errors.needs if self.errors is not None else None
        return own if own is not None else self.group.needs

    @property
    def is_queued(self) -> bool:
        """Tell whether the task is alive and on no worker."""
        return type(self.state) in QUEUED

    @property
    def error_texts(self) -> list[str]:
        return self.errors.texts if self.errors is not None else []

    @property
    def number(self) -> int:
        """The number of its present attempt, or of the next one: it counts how often the task has started."""
        errors = self.errors
        return 1 if errors is None else 1 + errors.failures + errors.losses + errors.uncharged

    @property
    def max_number(self) -> int:
        """The number of the last attempt that it may have, as far as is known now."""
        errors = self.errors
        return (
            max_number(self.group.spec)
            if errors is None
            else max_number(self.group.spec, errors.losses, errors.uncharged)
        )

    def avoids(self, worker: Worker, now: float) -> bool:
        """Tell whether the task should go to another worker for a while: it has failed on this one."""
        errors = self.errors
        return errors is not None and errors.last_worker is worker and now < errors.avoid_until


@dataclass(slots=True, eq=False)
class ResultBatch:
    """The results of one Done, which its worker keeps, too, for as long as some of them are retained here.

    left: how many are, and one while the Done is taken in. released: the worker's list; None for results that no worker
    keeps.
    """

    released: list[int] | None
    number: int
    left: int = 1

    def settle(self) -> None:
        """Note that one result, or the Done itself, is not needed any more."""
        self.left -= 1
        if not self.left and self.released is not None:
            self.released.append(self.number)


NO_BATCH: Final = ResultBatch(None, 0)


@dataclass(slots=True, eq=False)
class RetainedResult:
    """How a task ended, for as long as dependents or a client that has not acknowledged it may still name it."""

    outcome: int
    payload: bytes
    batch: ResultBatch = NO_BATCH
    unacknowledged: bool = True
    uses: int = 0
    failed_input: tuple[str, bytes] = field(init=False)
    """What those that need it name as the failed input: function and id. Set unless it succeeded."""


@dataclass(slots=True, eq=False)
class PeerRecord:
    """Identity and liveness of a client, worker or manager. Times are the core's own."""

    role: ClassVar[str]
    id: bytes
    name: str
    last_message_at: float
    broken_at: float | None = field(default=None, init=False)
    contested_at: float = field(default=-math.inf, init=False)
    """When another peer claimed the name of this one."""

    @property
    def title(self) -> str:
        """The name and what tells people where it is."""
        return self.name

    def received(self, now: float) -> None:
        self.last_message_at = now

    def defends_its_name(self, now: float) -> bool:
        """Return whether this peer has sent something since another one claimed its name, and so is alive.

        Its host may have vanished without a word: then its lease expires, while the other one tries again.
        """
        if now - self.contested_at > TAKEOVER_SECONDS:
            self.contested_at = now
        return self.last_message_at > self.contested_at + PROOF_SECONDS

    def note_connection(self, now: float, *, is_broken: bool) -> None:
        if not is_broken:
            self.broken_at = None
            self.last_message_at = now
        elif self.broken_at is None:
            self.broken_at = now


@dataclass(slots=True, eq=False)
class ClientRoster:
    """Workers that a client knows to have tasks of its with retries=0, or that it was told of and has not answered."""

    known: set[bytes] = field(default_factory=set)
    number: int = 0
    """Of the last Roster that it was sent."""
    unanswered: deque[tuple[int, set[bytes]]] = field(default_factory=deque)
    """Rosters without an answer."""


@dataclass(slots=True, eq=False)
class ClientRecord(PeerRecord):
    """A client: a process, or one inside a task (`via` is the worker that relays its messages)."""

    role = "client"
    via: Worker | None = None
    identity: Identity = LOCAL
    """Whose it is. One inside a task may see what the client of the task may that its process runs now."""
    account: KeyAccount = field(default_factory=lambda: KeyAccount(""))
    tasks: dict[bytes, Task] = field(default_factory=dict)
    groups: dict[Spec, Group] = field(default_factory=dict)
    retained: dict[bytes, RetainedResult] = field(default_factory=dict)
    number: int = 0
    """Of the last Finished that it was sent."""
    unacknowledged: deque[Finished] = field(default_factory=deque)
    submitted: int = 0
    """All calls since it joined; a chunk has several. All but those of living tasks have ended."""
    failed: int = 0
    cancelled: int = 0
    terminated: bool = False
    is_recovered: bool = False
    """The journal brought it back, and the client has not come yet."""
    roster: ClientRoster | None = None
    """None until it submits a task with retries=0."""
    awaited: set[bytes] | None = None
    """Workers that may have tasks with retries=0 of its, and have not reported since the scheduler was restarted.

    None while it has not said which.
    """
    in_doubt: bool = False
    """Any such task that it submits again, and of which nothing is known, may have run."""
    attempt_base: int = 0
    """Attempts at its tasks that follow an attempt of an earlier session have higher numbers."""
    warned: set[Needs] = field(default_factory=set)
    """Requirements of its tasks that nothing here meets, and about which it was warned."""
    told_packages: set[tuple[str, str]] = field(default_factory=set)
    """Functions, and how packages of workers differ from the client's, about which it was warned."""
    session: DurableSession | None = None
    """Set of a client whose tasks and results stay when it leaves."""
    is_detached: bool = False
    """This is a durable session that no client uses now."""

    def attach(self, where: str) -> None:
        """Note that a client on this host, with this pid, uses the durable session."""
        assert self.session is not None
        self.is_detached, self.session.client, self.session.unasked = False, where, set(self.tasks)
        self.name = f"session {self.session.name} ({where})"

    def detach(self, now: float) -> None:
        """Note that the client of the durable session has left."""
        assert self.session is not None
        self.is_detached, self.session.used_at = True, now
        self.name = f"session {self.session.name} (detached)"
        self.number = self.session.awaited = 0
        self.session.owed.clear()
        self.unacknowledged.clear()


@dataclass(slots=True, eq=False)
class WorkerPool:
    """Workers with the same offers that have credit: with a free slot (idle), or with capacity to prefetch."""

    offers: Offers
    workers: int = 0
    idle: OrderedDict[Worker, None] = field(default_factory=OrderedDict)
    prefetching: OrderedDict[Worker, None] = field(default_factory=OrderedDict)


@dataclass(slots=True, eq=False, repr=False)
class Worker(PeerRecord):
    """A worker agent: what it offers, and the tasks that it has. Only its methods change it."""

    role = "worker"
    details: WorkerDetails
    host: str = ""
    pid: int = 0
    shared_memory: Stock | None = None
    """The memory that it shares with other workers of its host; None: it has its own, or it is not known."""
    offers: Offers = field(init=False)
    slots: int = field(init=False)
    limit: int = field(init=False)
    """The most tasks that it may have."""
    stocks: dict[str, Stock] = field(init=False)
    """What is counted of it, by name."""
    counted: dict[bytes, tuple[Needs, tuple[int, ...]]] = field(default_factory=dict)
    """Its tasks that take more than a slot: what each takes, and the indexes of its gpus."""
    extra: float = 0
    """Slots that its tasks take beyond one each, without the blocked ones. While there are any, none waits here."""
    may_exceed: bool = False
    """It may have more than it offers until tasks end: one that had lent its slots went on, or it has reported tasks to
    a restarted scheduler, which had sent it others."""
    reserved: Queue | None = None
    """The queue for whose first task slots are kept free."""
    assigned: Assigned = field(init=False)
    terminated: Terminated = field(init=False)
    """The states of its tasks, and of those that end here."""
    tasks: dict[bytes, Task] = field(default_factory=dict)
    ahead: dict[bytes, Task] = field(default_factory=dict)
    """Waiting tasks that it was sent to run behind another one, by the id of that one: see `followers.py`."""
    blocked: frozenset[bytes] = frozenset()
    """Ids of started tasks that wait for tasks of their own and have lent their slots."""
    by_function: dict[Timing, int] = field(default_factory=dict)
    """Its tasks per function, without the blocked ones."""
    recalled: int = 0
    started: set[bytes] = field(default_factory=set)
    """Tasks that it has reported as begun: when they were asked back, or at its end."""
    has_accounted: bool = False
    """It ends, and has reported all of its tasks that have begun."""
    sent: int = 0
    """Tasks that it was sent so far."""
    side: OrderedDict[Worker, None] | None = None
    """The side of its pool that it is in; None without credit."""
    results: int = 0
    """Done messages that came from it."""
    released: list[int] = field(default_factory=list)
    """Numbers of those whose results it need not keep, until it is sent them."""
    is_reporting: bool = False
    """It comes from an earlier session, and has not reported yet what it has."""
    stalled: bool = False
    draining: bool = False
    is_leaving: bool = False
    """Its agent asked to drain, and ends by itself."""
    quarantined: bool = False
    failures_in_row: int = 0
    paces: Paces = field(default_factory=Paces)
    checks_without_progress: int = 0
    progressed_at: float = field(init=False)
    """When it last finished or began a task."""
    idle_since: float = field(init=False)
    store: int = 0
    """Number of the store that its tasks use; 0: the object storage. Only `Locality.use_store` sets it."""
    heartbeat: WorkerHeartbeat | None = None
    heartbeat_at: float = field(init=False)
    ended_at_heartbeat: int = 0
    """How many of the tasks that it was sent it did not have any more then."""
    clock: WorkerClock = field(default_factory=WorkerClock)
    has_begun: bool = False
    """A task of its has run. Until then its processors may be starting, and what it was sent waits."""
    round_trips: deque[float] = field(default_factory=partial(deque, maxlen=ROUND_TRIPS_KEPT))
    """Seconds, by its last heartbeats."""
    far_seconds: float = 0.0
    """The round trip to a worker that needs a larger prefetch because of it; otherwise 0."""

    def __post_init__(self) -> None:
        if self.details.slots < 1 or self.details.queue_size < 0:
            raise UsageError(f"a worker with slots={self.details.slots} and queue_size={self.details.queue_size}")
        self.offers = offers_of(self.details, self.id)
        self.stocks = own_stocks(self.offers)
        if self.shared_memory is not None:
            self.stocks[MEMORY] = self.shared_memory
        self.slots = self.details.slots
        self.limit = self.usual_limit
        self.assigned = Assigned(self)
        self.terminated = Terminated(self.name)
        self.progressed_at = self.idle_since = self.heartbeat_at = self.last_message_at

    def __repr__(self) -> str:
        return f"<Worker {self.name}>"

    @property
    def usual_limit(self) -> int:
        """The most tasks that it may have, unless it is late: see `LateWorkers`."""
        return self.slots * (1 + self.details.queue_size)

    @property
    def title(self) -> str:
        return f"{self.name} ({self.host}, pid {self.pid})"

    @property
    def busy(self) -> int:
        """Tasks that take a slot or wait for one; blocked tasks do not."""
        return len(self.tasks) - len(self.blocked)

    @property
    def ended_since_heartbeat(self) -> int:
        """Tasks that have left it since its last heartbeat, which does not say yet for how long they are paid."""
        return max(0, self.sent - len(self.tasks) - self.ended_at_heartbeat)

    @property
    def load(self) -> float:
        """Estimated seconds of all tasks that it has, by the present measurement of each function."""
        seconds = 0.0
        for timing, count in self.by_function.items():
            seconds += timing.seconds * count
        return seconds

    def full_load(self, load: float, count: float) -> float:
        """Return the load from which on it gets nothing that would wait. load, count: of its present tasks.

        The news of a far worker are old: a part of what seems to run there has ended. So what runs is not counted.
        """
        if not self.far_seconds:
            return self.slots * PREFETCH_SECONDS
        return self.slots * (PREFETCH_ROUND_TRIPS * self.far_seconds + (load / count if count else 0.0))

    @property
    def is_willing(self) -> bool:
        return not (self.draining or self.is_reporting) and self.broken_at is None

    def count(self, needs: Needs, queue: Queue | None = None) -> int:
        """Return how many tasks with these needs find their resources here now. What is reserved for another queue than
        theirs is not free.
        """
        room = self.limit
        for name, amount in needs.claims:
            stock = self.stocks.get(name)
            if stock is None:
                continue
            if stock.kept_for is not None and (queue is None or not queue.may_pass(stock.kept_for)):
                return 0
            room = min(room, stock.count(amount))
        width = needs.width(self.offers, self.slots)
        return room if width <= 1 else min(room, int((self.slots - self.busy - self.extra) // width))

    def claim(self, task: Task, needs: Needs, reported: tuple[int, ...] | None = None) -> None:
        """Take what a task needs beyond a slot. `take` follows. reported: the gpus that it has already."""
        devices: tuple[int, ...] = ()
        for name, amount in needs.claims:
            if name in self.stocks:
                devices += self.stocks[name].claim(amount, reported)
        self.counted[task.id] = needs, devices
        self.may_exceed = self.may_exceed or reported is not None
        self.extra += needs.width(self.offers, self.slots) - 1

    def allow(self, most: int) -> bool:
        """Set how many tasks the worker may have. Returns False when the limit was the same before."""
        before, self.limit = self.limit, most
        return before != most

    def take(self, tasks: Sequence[Task], now: float) -> None:
        """Add tasks, in this order. `count_function` follows."""
        if len(self.tasks) == len(self.blocked):
            self.progressed_at = now
            self.checks_without_progress = 0
        for task in tasks:
            self.tasks[task.id] = task
        self.sent += len(tasks)

    def add_follower(self, before: bytes, task: Task) -> None:
        """Note that it was sent a task that it runs behind another one."""
        self.ahead[before] = task

    def take_follower(self, before: bytes) -> Task | None:
        """Return the task that it was to run behind this one, and forget that it was."""
        return self.ahead.pop(before, None)

    def drop_followers(self, before: bytes) -> None:
        """Note that it does not run what it was to run behind this task, and behind that, and so on."""
        while (task := self.ahead.pop(before, None)) is not None:
            before = task.id

    def give_back_follower(self, identifier: bytes) -> None:
        """Note that it gives a follower back, with all that it was to run behind it."""
        before = next((each for each, task in self.ahead.items() if task.id == identifier), None)
        if before is not None:
            self.drop_followers(before)

    def count_function(self, timing: Timing, change: int) -> None:
        """Count tasks of a function that came to it or left it, were blocked or go on."""
        count = self.by_function.get(timing, 0) + change
        if count:
            self.by_function[timing] = count
        else:
            del self.by_function[timing]

    def release(self, task: Task) -> None:
        """Remove a task, whose state is still the one that it had here."""
        del self.tasks[task.id]
        if task.id in self.blocked:
            self.blocked -= {task.id}
            is_blocked = True
        else:
            self.count_function(task.group.timing, -1)
            is_blocked = False
        if type(task.state) is Recalled:
            self.recalled -= 1
        if self.started:
            self.started.discard(task.id)
        if self.counted and task.id in self.counted:
            if not is_blocked:
                self._widen(task, -1)
            needs, devices = self.counted.pop(task.id)
            for name, amount in needs.claims:
                if name in self.stocks:
                    self.stocks[name].release(amount, devices)

    def _widen(self, task: Task, sign: int) -> None:
        self.extra += sign * (self.counted[task.id][0].width(self.offers, self.slots) - 1)

    def block(self, task: Task, *, is_blocked: bool) -> None:
        """Note that a started task waits for tasks of its own, and lends its slots, or continues.

        It keeps its memory and gpus. What has come meanwhile runs beside a task that continues.
        """
        if is_blocked != (task.id in self.blocked):
            self.blocked ^= {task.id}
            if task.id in self.counted:
                self._widen(task, -1 if is_blocked else 1)
            self.may_exceed = self.may_exceed or not is_blocked
            timing = task.group.timing
            self.count_function(timing, -1 if is_blocked else 1)

    def count_recall(self, change: int) -> None:
        """Count a task that was asked back (1), or that it keeps all the same (-1)."""
        self.recalled += change

    def keep(self, task: Task) -> None:
        """Note that a task has started: it need not be asked back again, and the worker may leave with it."""
        self.started.add(task.id)
        if type(task.state) is Recalled and not task.state.cancel:
            self.count_recall(-1)

    def account(self) -> None:
        """Note that the worker ends, and has reported all of its tasks that have begun."""
        self.has_accounted = True

    def reserve(self, queue: Queue | None) -> None:
        """Keep slots free for the first task of a queue; None: no more."""
        self.reserved = queue

    def join_side(self, side: OrderedDict[Worker, None] | None) -> None:
        if self.side is not None:
            del self.side[self]
        self.side = side
        if side is not None:
            side[self] = None

    def note_progress(self, now: float, healthy: bool) -> None:
        """Note results. healthy: the code of a task came to its end, so that the worker itself works."""
        if healthy:
            self.failures_in_row = 0
            self.has_begun = True
        self.stalled = False
        self.progressed_at = now
        self.checks_without_progress = 0

    def note_started(self) -> None:
        """Note that a task has begun to run there."""
        self.has_begun = True

    def has_reported(self) -> None:
        self.is_reporting = False

    def begin_results(self) -> ResultBatch:
        """Count a Done."""
        self.results += 1
        return ResultBatch(self.released, self.results)

    def take_released(self) -> list[int]:
        released = self.released.copy()
        self.released.clear()
        return released

    def note_failure(self) -> None:
        self.failures_in_row += 1

    def note_idle(self, now: float) -> None:
        self.idle_since = now

    def check_progress(self, now: float, seconds: float, checks: int) -> bool:
        """Return whether it stalls: this many checks in a row found no progress within `seconds`.

        It gets no more than it can start then, until it finishes something.
        """
        self.checks_without_progress = 0 if now - self.progressed_at < seconds else self.checks_without_progress + 1
        stalls = self.checks_without_progress >= checks and not self.recalled
        self.stalled = self.stalled or stalls
        return stalls

    def drain(self, *, quarantined: bool = False, leaving: bool = False) -> None:
        self.draining = True
        self.is_leaving = self.is_leaving or leaving
        self.quarantined = self.quarantined or quarantined

    def use_store(self, number: int) -> None:
        self.store = number

    def keep_heartbeat(self, heartbeat: WorkerHeartbeat, now: float) -> None:
        self.heartbeat = heartbeat
        self.heartbeat_at = now
        self.ended_at_heartbeat = self.sent - len(self.tasks)
        self.clock.keep(heartbeat)
        self.has_begun = self.has_begun or any(each.initialized and each.running for each in heartbeat.processors)
        if heartbeat.latency_seconds:
            self.round_trips.append(heartbeat.latency_seconds)
            # The first one may be that of a process that was still starting.
            round_trip = min(MAX_ROUND_TRIP_SECONDS, *self.round_trips) if len(self.round_trips) > 1 else 0.0
            self.far_seconds = round_trip if round_trip * PREFETCH_ROUND_TRIPS > PREFETCH_SECONDS else 0.0

    def note_done(self, done: Done, now: float) -> Ran | None:
        """Note when and where tasks ran that are about to be terminated."""
        if not done.lanes:
            return None
        costs = done.inputs_us, done.inputs_bytes
        ran = Ran(self.clock, done.ids, done.began_us, done.duration_us, done.lanes, *costs)
        if done.lanes[-1]:
            self.clock.has_read(done.began_us[-1] + done.duration_us[-1], now)
        self.terminated = Terminated(self.name, ran)
        return ran


@dataclass(slots=True, eq=False)
class StoreRecord(PeerRecord):
    """The store of a host. Only `data/stores.py` changes it."""

    role = "store"
    number: int
    details: StoreDetails
    report: StoreReport | None = None

    @property
    def host(self) -> str:
        return self.name.rpartition("|")[0]


@dataclass(frozen=True, slots=True)
class ScalingInputs:
    """What a scaling decision about one manager was made from, as in its views. Tasks are those that it could run.

    unmeasured: tasks of functions none of which has ended yet. backlog_seconds: what the others take on one slot;
    running ones count half.
    """

    queued: int
    running: int
    unmeasured: int
    backlog_seconds: float
    busy_slots: float
    ended_per_second: float
    units_running: int
    units_pending: int
    units_idle: int
    startup_seconds: float | None
    max_units: int | None
    trouble: str


@dataclass(frozen=True, slots=True)
class ScalingDecided:
    """How many units a manager should have from now on (those that drain not counted), and why."""

    manager_id: str
    units: int
    draining: int
    reason: str
    inputs: ScalingInputs


@dataclass(frozen=True, slots=True)
class UnitEnd:
    """When the service of a unit ends it, when that was first known, and how long the unit may live in all."""

    ends_at: float
    seen_at: float
    limit_seconds: float


@dataclass(slots=True, eq=False)
class ManagerRecord(PeerRecord):
    """A worker manager: its details, its last status, and the last message to it. Only `elastic.py` changes it."""

    role = "manager"
    details: ManagerDetails
    offers: Offers = field(init=False)
    status: ManagerStatus | None = None
    status_at: float = 0.0
    desired: tuple[int, tuple[str, ...], int] | None = None
    """The last Desired: units, those that are drained, how many others drain."""
    wanted: Wanted | None = None
    """The policy's last answer about it; None before the first, and for a manager that the policy leaves alone."""
    wanted_for_tasks: bool = False
    """The policy knew of tasks that it could run when it answered."""
    limited: str = ""
    """Why spend_limit keeps it from starting more units; empty when it does not."""
    decision: ScalingDecided | None = None
    """The last one that was published."""
    startup_seconds: float | None = None
    """Moving average of the time from the start of a unit to its worker, without the time in a queue."""
    dispatch_seconds: float = 0.0
    """How long tasks given to its workers take to begin elsewhere, as these have measured it last; 0: not measured."""
    queue_seconds: float | None = None
    """The same of the time in a queue; None until a unit has left one."""
    queued: dict[str, float] = field(default_factory=dict)
    """The age at which each pending unit was seen in a queue last."""
    running_units: dict[str, Worker] = field(default_factory=dict)
    ends: dict[str, UnitEnd] = field(default_factory=dict)
    """Of units whose end is known."""
    joined_units: set[str] = field(default_factory=set)
    """Units whose worker has come, and whose manager does not know yet."""
    connected_units: set[str] = field(default_factory=set)
    """Units whose worker is connected, by the last Desired."""
    left_units: set[str] = field(default_factory=set)
    """Units whose worker has come and left, while the manager still lists them: they are not pending."""
    unwanted_units: set[str] = field(default_factory=set)
    """Units that live and are to be stopped: their worker has not come yet, or was given up. A worker of such a unit
    that comes after all gets no work."""

    def __post_init__(self) -> None:
        details = self.details
        self.offers = Offers.of(details.capabilities, details.unit_slots, details.unit_memory_bytes or math.inf)

    def note_queued(self) -> None:
        """Note how long units of the last status have waited in a queue."""
        waiting = {unit.unit_id: unit.age_seconds for unit in self.units if unit.state is UnitState.WAITING}
        listed = {unit.unit_id for unit in self.units}
        self.queued = {key: age for key, age in self.queued.items() if key in listed} | waiting

    def measure(self, unit: UnitStatus, took: float) -> None:
        """Note that the worker of a unit has come this long after the unit was started."""
        queued = self.queued.get(unit.unit_id, 0.0)
        if queued or self.queue_seconds is not None:
            self.queue_seconds = _averaged(self.queue_seconds, queued)
        self.startup_seconds = _averaged(self.startup_seconds, max(0.0, took - queued))

    def learn(self, worker: Worker) -> None:
        """Note what one of its workers really offers of the resources that every worker has."""
        self.offers = Offers(self.offers.items, worker.offers.implied)

    @property
    def is_late(self) -> bool:
        """Tasks that its workers get begin elsewhere, and late."""
        return (self.dispatch_seconds or self.details.usual_dispatch_seconds) >= LATE_SECONDS

    @property
    def units(self) -> list[UnitStatus]:
        return self.status.units if self.status is not None else []

    @property
    def trouble(self) -> str:
        """Why it cannot start units now; empty when all is well."""
        return self.status.degraded_reason if self.status is not None else ""

    @property
    def last_failure(self) -> str:
        """Why the youngest of its units that have failed ended; empty when none has."""
        failed = [unit for unit in self.units if unit.state is UnitState.FAILED]
        return min(failed, key=attrgetter("age_seconds")).reason if failed else ""

    @property
    def pending_units(self) -> list[UnitStatus]:
        """Units that were started and whose worker is not connected yet."""
        others = self.running_units.keys() | self.left_units | self.unwanted_units
        return [unit for unit in self.units if unit.state in ALIVE and unit.unit_id not in others]

    @property
    def backlog(self) -> set[str]:
        """Units that stay in their queue although fewer are wanted: those that have waited longest."""
        most = self.details.backlog_units
        waiting = [unit for unit in self.pending_units if unit.state is UnitState.WAITING] if most else []
        return {unit.unit_id for unit in nlargest(most, waiting, key=attrgetter("age_seconds"))}

    @property
    def staying(self) -> list[Worker]:
        """Workers that count for the policy.

        Those out of contact may be lost. Then their manager replaces them, and they must not count twice.
        """
        return [worker for worker in self.running_units.values() if worker.is_willing]


def _averaged(average: float | None, seconds: float) -> float:
    return seconds if average is None else average + STARTUP_WEIGHT * (seconds - average)
