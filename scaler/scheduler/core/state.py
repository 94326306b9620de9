"""Records of the scheduler core: tasks, groups of tasks, clients, durable sessions, workers, and managers.

The meaning of a task's `state`:

    Waiting(missing)          some dependencies are still live
    READY                     in a ready queue
    Delayed(until)            in backoff before the next attempt
    Assigned(worker)          sent to a worker as attempt `task.attempt`
    Recalled(worker, cancel)  recalled from the worker, to cancel it or place it again

A terminated task is in no table. Exactly one entry in a Finished message reports it (none if its client has left).

Only `tasks.py` writes a task's state. Only the methods below write a worker's counters.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Final

from scaler.errors import UsageError
from scaler.needs import Needs, Offers
from scaler.net.connection import LOCAL, Identity
from scaler.protocol.messages import Done, Finished, ManagerDetails, Spec, TaskGroup, WorkerDetails, WorkerHeartbeat
from scaler.scheduler.core.accounts import KeyAccount
from scaler.scheduler.core.resources import Claims, offers_of

UNKNOWN_DURATION_SECONDS = 0.05
"""Assumed task duration (seconds) for a function that was never measured."""
BUCKETS = 65
"""Number of histogram buckets: one per bit length of a 64-bit duration in microseconds."""
MAX_ATTEMPT_ERRORS = 8
"""Maximum errors from earlier attempts that a task keeps."""
MOST_WEIGHT = 512
"""Number of tasks in a histogram at which all counts are halved."""


@dataclass(slots=True, eq=False)
class Timing:
    """Durations of one function's tasks, in histograms whose buckets double in width. seconds: the mean, initially an
    assumption. Call `refresh` after each batch. Updates are O(1). Old durations lose weight, so the histogram soon
    reflects a change in a function's durations.
    """

    seconds: float = UNKNOWN_DURATION_SECONDS
    counts: list[float] = field(default_factory=lambda: [0] * BUCKETS)
    sums_us: list[float] = field(default_factory=lambda: [0] * BUCKETS)
    total_us: float = 0
    measured: float = 0
    longest_us: int = 0
    halved: int = 0
    has_chunks: bool = False
    """Whether tasks are chunks of several calls, so that durations are not per call."""
    taken: float = 0
    taken_us: float = 0
    """Values of `measured` and `total_us` after the last batch."""

    def add(self, microseconds: int) -> Timing:
        digits = microseconds.bit_length()
        self.counts[digits] += 1
        self.sums_us[digits] += microseconds
        self.total_us += microseconds
        self.measured += 1
        if microseconds > self.longest_us:  # noqa: PLR1730 (max() costs a third of this call, which each task makes)
            self.longest_us = microseconds
        return self

    def refresh(self) -> tuple[float, float, float]:
        """Evaluate a batch. Returns its number of tasks, their time, and their usual time (microseconds)."""
        tasks, batch_us = self.measured - self.taken, self.total_us - self.taken_us
        # Use the mean from before the batch, which excludes the batch itself. The first batch is its own reference.
        usual_us = tasks * self.seconds * 1e6 if self.taken else batch_us
        self.seconds = self.total_us * 1e-6 / self.measured
        if self.measured >= MOST_WEIGHT:
            self.counts = [count / 2 for count in self.counts]
            self.sums_us = [microseconds / 2 for microseconds in self.sums_us]
            self.total_us /= 2
            self.measured /= 2
            self.halved += 1
        self.taken, self.taken_us = self.measured, self.total_us
        return tasks, batch_us, usual_us


PROOF_SECONDS = 1.0
"""Messages received this long after a takeover attempt prove that the current owner is alive."""
TAKEOVER_SECONDS = 5.0
"""Seconds without a message after which a peer may have died. Takeover attempts within this time count as one."""
PREFETCH_SECONDS = 0.05
"""Minimum seconds of prefetched work per slot."""
PREFETCH_ROUND_TRIPS = 1.5
"""Amount of prefetched work, in round trips to the worker: one for work in flight, the rest as margin."""
ROUND_TRIPS_KEPT = 5
"""Number of heartbeats from which the fastest round trip is taken, because a busy process answers late."""
MAX_ROUND_TRIP_SECONDS = 1.0
"""Cap for the round trip (seconds) that determines a worker's prefetch."""
CHECK_SECONDS = 1.0
STALLED_CHECKS = 2
"""Consecutive checks without progress after which a worker's queued tasks are recalled."""
MAX_CALLS_OF_TASK = 1 << 32
"""Maximum calls per task that a client may claim, so that counts remain exact for every reader."""
ARRIVAL_SECONDS = 0.1
MAX_ARRIVALS = 1_000
"""Maximum arrival times per group. Above this, every second arrival is dropped."""


@dataclass(slots=True, eq=False)
class Function:
    """Counts of all tasks with one name, key, and needs since the scheduler started.

    Tasks that are no longer live have ended. failed, cancelled: numbers of calls (a chunk has several). more: calls
    beyond one per task. untimed: ended calls without a duration, such as calls that never ran.
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
    timings: dict[Timing, None] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Group:
    """Live tasks of one client and spec. Outlives its last task briefly, because another one may follow. owner: the
    client, or for nested tasks, the client outside all tasks. rank: sort key in queues, by descending priority, then
    depth."""

    client: ClientRecord
    owner: ClientRecord
    spec: Spec
    functions: tuple[bytes, ...]
    size_bytes: int
    needs: Needs
    rank: tuple[int, int]
    depth: int
    timing: Timing
    function: Function
    submitted: int = 0
    """Number of calls, like `failed` and `cancelled`."""
    failed: int = 0
    cancelled: int = 0
    live: int = 0
    is_active: bool = False
    """Whether the group has live tasks and takes turns."""
    ready: int = 0
    assigned: int = 0
    calls: dict[bytes, int] = field(default_factory=dict)
    more: int = 0
    arrivals: list[tuple[float, bytes]] = field(default_factory=list)
    """Arrival times (clock time) of queued tasks, each with the last task that arrived then."""

    def arrived(self, task: bytes, now: float) -> None:
        """Record the arrival of tasks. task: the last that arrived. Drops times without queued tasks."""
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
        """Return the arrival time of the oldest queued task, and a task that arrived then. Without queued tasks, return
        the last arrival. O(MAX_ARRIVALS)."""
        return next((each for each in self.arrivals if self._has_queued(each[1])), self.arrivals[-1])

    @property
    def records(self) -> tuple[Function | ClientRecord | Group, ...]:
        return self.function, self.client, self

    def note_calls(self, columns: TaskGroup) -> int:
        more, tasks = 0, self.client.tasks
        for task, calls in zip(columns.ids, columns.calls, strict=True):
            if calls > 1 and task not in self.calls and task in tasks and tasks[task].group is self:
                self.calls[task] = min(calls, MAX_CALLS_OF_TASK)
                more += self.calls[task] - 1
        return more

    def in_calls(self, tasks: int) -> int:
        """Return the approximate number of calls in some live tasks, assuming chunks of equal size."""
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
    """ahead: display text of the task that preempts this task; empty if this task continues once started."""

    worker: Worker
    cancel: bool
    ahead: str = ""


@dataclass(slots=True, eq=False)
class WorkerClock:
    """A worker's monotonic clock. offset_seconds: added to convert to the scheduler's clock; None: unknown."""

    offset_seconds: float | None = None
    reported_seconds: float | None = None


@dataclass(slots=True, eq=False)
class Ran:
    """When and where the tasks in one Done ran, or the tasks in one Started are running, in columns."""

    clock: WorkerClock
    ids: list[bytes]
    began_us: list[int]
    duration_us: list[int]
    lanes: list[int]
    inputs_us: list[int]
    """Empty, like `inputs_bytes`, if no task had stored inputs."""
    inputs_bytes: list[int]


@dataclass(slots=True, eq=False)
class Terminated:
    """worker: name, or empty. ran: columns of its Done. Only tombstones and the history refer to terminated tasks."""

    worker: str
    ran: Ran | None = None

    def alone(self, task: bytes) -> Terminated:
        """Return a copy with only this task's columns, for a record that outlives the batch."""
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


def max_number(spec: Spec, losses: int = 0, uncharged: int = 0) -> int:
    """Return the number of the last allowed attempt, given earlier losses and uncharged attempts."""
    return 1 + uncharged + (spec.retries + losses if spec.retry_on else spec.max_losses)


@dataclass(slots=True, eq=False)
class AttemptErrors:
    """Errors of one task. Created at the first error, so that healthy tasks cost nothing."""

    failures: int = 0
    """Retried attempts that raised an exception listed in `retry_on`."""
    losses: int = 0
    """Retried attempts that were lost with their processor or worker."""
    uncharged: int = 0
    """Retried attempts that count neither as retries nor as losses, such as those on drained workers."""
    interrupted: int = 0
    at_time_limit: int = 0
    longest_seconds: float = 0.0
    misses: dict[bytes, int] = field(default_factory=dict)
    """By object: number of attempts that could not begin because the worker could not fetch the object from the
    storage."""
    lost_workers: set[bytes] = field(default_factory=set)
    last_worker: Worker | None = None
    avoid_until: float = 0.0
    texts: list[str] = field(default_factory=list)
    failed_input: tuple[str, bytes] | None = None
    """Function and id of the task whose failure prevented this task."""
    needs: Needs | None = None
    """Overrides the group's needs, to run the task alone."""

    def add(self, text: str) -> None:
        """Append an error text. At the limit, replace the last text."""
        self.texts[MAX_ATTEMPT_ERRORS - 1 :] = [text]


@dataclass(slots=True, eq=False)
class Task:
    """A task. attempt: number of dispatches; users see `number` instead."""

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
        own = self.errors.needs if self.errors is not None else None
        return own if own is not None else self.group.needs

    @property
    def is_queued(self) -> bool:
        return type(self.state) in QUEUED

    @property
    def error_texts(self) -> list[str]:
        return self.errors.texts if self.errors is not None else []

    @property
    def number(self) -> int:
        """Number of the current or next attempt, counting only started attempts."""
        errors = self.errors
        return 1 if errors is None else 1 + errors.failures + errors.losses + errors.uncharged

    @property
    def max_number(self) -> int:
        errors = self.errors or AttemptErrors()
        return max_number(self.group.spec, errors.losses, errors.uncharged)

    def avoids(self, worker: Worker, now: float) -> bool:
        """Return whether the task should avoid this worker for now, after a failure there."""
        errors = self.errors
        return errors is not None and errors.last_worker is worker and now < errors.avoid_until


@dataclass(slots=True, eq=False)
class ResultBatch:
    """Results in one Done, which the worker also keeps while the scheduler retains any of them.

    left: number of retained results, plus one while the Done is processed. released: list of the worker's releasable
    batches; None if no worker keeps the results.
    """

    released: list[int] | None
    number: int
    left: int = 1

    def settle(self) -> None:
        self.left -= 1
        if not self.left and self.released is not None:
            self.released.append(self.number)


NO_BATCH: Final = ResultBatch(None, 0)


@dataclass(slots=True, eq=False)
class KeptResults:
    """Done messages with results that a worker keeps. released: numbers of the messages that it may drop, not yet sent
    to it.
    """

    number: int = 0
    released: list[int] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class RetainedResult:
    """The end of a task, retained until no dependent needs it and its client has acknowledged it."""

    outcome: int
    payload: bytes
    batch: ResultBatch = NO_BATCH
    unacknowledged: bool = True
    uses: int = 0
    failed_input: tuple[str, bytes] = field(init=False)
    """Function and id of the failed input that dependents report. Unset if the task succeeded."""


@dataclass(slots=True, eq=False)
class PeerRecord:
    """Identity and liveness of a peer. Times are core time."""

    role: ClassVar[str]
    id: bytes
    name: str
    last_message_at: float
    broken_at: float | None = field(default=None, init=False)
    contested_at: float = field(default=-math.inf, init=False)

    @property
    def title(self) -> str:
        return self.name

    def defends_its_name(self, now: float) -> bool:
        """Return whether this peer has proved that it is alive since another peer claimed its name."""
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
class ClientRecord(PeerRecord):
    """A client process, or a client inside a task (`via`: the worker that relays its messages)."""

    role = "client"
    via: Worker | None = None
    identity: Identity = LOCAL
    """Identity of the client. If the client is inside a task, identity of the task's client."""
    account: KeyAccount = field(default_factory=lambda: KeyAccount(""))
    tasks: dict[bytes, Task] = field(default_factory=dict)
    groups: dict[Spec, Group] = field(default_factory=dict)
    retained: dict[bytes, RetainedResult] = field(default_factory=dict)
    number: int = 0
    unacknowledged: deque[Finished] = field(default_factory=deque)
    submitted: int = 0
    """Number of calls since the client joined. Calls of tasks that are not live have ended."""
    failed: int = 0
    cancelled: int = 0
    terminated: bool = False
    is_absent: bool = False
    """Whether the client is disconnected and gets no messages. Set only by the `durability` extension."""
    is_back: bool = False
    """Whether the client had an earlier session with this scheduler or its predecessor."""
    attempt_base: int = 0
    """Lower bound for attempt numbers, above all numbers of earlier sessions."""
    is_durable: bool = False
    """Whether the client's tasks and results outlive its connection. Set only by the `durability` extension."""
    owner: ClientRecord | None = None
    """For a client inside a task: the client outside all tasks, if known."""


@dataclass(slots=True, eq=False)
class WorkerPool:
    """Workers with equal offers. idle: workers with a free slot. prefetching: workers with capacity to prefetch."""

    offers: Offers
    workers: int = 0
    idle: OrderedDict[Worker, None] = field(default_factory=OrderedDict)
    prefetching: OrderedDict[Worker, None] = field(default_factory=OrderedDict)


@dataclass(slots=True, eq=False)
class Reports:
    """A worker's reports about itself. at: time of the last heartbeat, or of joining."""

    at: float
    heartbeat: WorkerHeartbeat | None = None
    ended: int = 0
    """Number of tasks that had ended or been returned by the last heartbeat."""
    clock: WorkerClock = field(default_factory=WorkerClock)
    round_trips: deque[float] = field(default_factory=partial(deque, maxlen=ROUND_TRIPS_KEPT))
    far_seconds: float = 0.0
    """Round trip (seconds) if long enough to need a larger prefetch; otherwise 0."""
    is_awaited: bool = False
    """Whether the worker reconnected from an earlier session and has not reported its tasks yet."""

    def add(self, heartbeat: WorkerHeartbeat, now: float, ended: int) -> None:
        self.heartbeat, self.at, self.ended = heartbeat, now, ended
        if heartbeat.clock_error_seconds and heartbeat.clock_offset_seconds != self.clock.reported_seconds:
            self.clock.offset_seconds = self.clock.reported_seconds = heartbeat.clock_offset_seconds
        if heartbeat.latency_seconds:
            self.round_trips.append(heartbeat.latency_seconds)
            # The first round trip may include the start of the process.
            round_trip = min(MAX_ROUND_TRIP_SECONDS, *self.round_trips) if len(self.round_trips) > 1 else 0.0
            self.far_seconds = round_trip if round_trip * PREFETCH_ROUND_TRIPS > PREFETCH_SECONDS else 0.0

    @property
    def degraded_reason(self) -> str:
        return self.heartbeat.degraded_reason if self.heartbeat is not None else ""


@dataclass(slots=True, eq=False)
class WorkerProgress:
    """Whether a worker makes progress. at: when results last arrived, or when an idle worker got a task."""

    at: float
    checks_without: int = 0
    is_stalled: bool = False
    """Whether the worker gets no prefetch until a task ends."""
    failures_in_row: int = 0
    is_quarantined: bool = False
    has_begun: bool = False
    """Whether any task has started. Until then, processors may still be starting."""

    def check(self, now: float, *, is_recalled: bool) -> bool:
        """Return whether several consecutive checks found no progress, and stop prefetching if so."""
        self.checks_without = 0 if now - self.at < CHECK_SECONDS else self.checks_without + 1
        stalls = self.checks_without >= STALLED_CHECKS and not is_recalled
        self.is_stalled = self.is_stalled or stalls
        return stalls


@dataclass(slots=True, eq=False, repr=False)
class Worker(PeerRecord):
    """A worker agent: its offers and its tasks. Only its methods modify its counters."""

    role = "worker"
    details: WorkerDetails
    host: str = ""
    pid: int = 0
    offers: Offers = field(init=False)
    slots: int = field(init=False)
    limit: int = field(init=False)
    claims: Claims = field(init=False)
    assigned: Assigned = field(init=False)
    terminated: Terminated = field(init=False)
    """States shared by its assigned tasks and by its ended tasks."""
    tasks: dict[bytes, Task] = field(default_factory=dict)
    blocked: frozenset[bytes] = frozenset()
    """Ids of started tasks that wait for their own tasks and lend out their slots."""
    by_function: dict[Timing, int] = field(default_factory=dict)
    recalled: int = 0
    started: set[bytes] = field(default_factory=set)
    """Tasks that the worker reported as started, in reply to a recall or before it exited."""
    has_accounted: bool = False
    sent: int = 0
    side: OrderedDict[Worker, None] | None = None
    results: KeptResults = field(default_factory=KeptResults)
    draining: bool = False
    is_leaving: bool = False
    """Whether the agent requested the drain and exits by itself."""
    progress: WorkerProgress = field(init=False)
    reports: Reports = field(init=False)

    def __post_init__(self) -> None:
        if self.details.slots < 1 or self.details.queue_size < 0:
            raise UsageError(f"a worker with slots={self.details.slots} and queue_size={self.details.queue_size}")
        self.offers = offers_of(self.details, self.id)
        self.slots = self.details.slots
        self.claims = Claims(self.offers, self.slots)
        self.limit = self.usual_limit
        self.assigned = Assigned(self)
        self.terminated = Terminated(self.name)
        self.progress = WorkerProgress(self.last_message_at)
        self.reports = Reports(self.last_message_at)

    def __repr__(self) -> str:
        return f"<Worker {self.name}>"

    @property
    def usual_limit(self) -> int:
        """Maximum number of tasks on a worker that is not late (see `LateWorkers`)."""
        return self.slots * (1 + self.details.queue_size)

    @property
    def title(self) -> str:
        return f"{self.name} ({self.host}, pid {self.pid})"

    @property
    def busy(self) -> int:
        """Tasks that use a slot or wait for one, excluding blocked tasks."""
        return len(self.tasks) - len(self.blocked)

    @property
    def load(self) -> float:
        seconds = 0.0
        for timing, count in self.by_function.items():
            seconds += timing.seconds * count
        return seconds

    def full_load(self, load: float, count: float) -> float:
        """Return the load above which no task is prefetched. load, count: load and number of its current tasks.

        The view of a distant worker is one round trip old, so its running tasks are not counted.
        """
        far_seconds = self.reports.far_seconds
        if not far_seconds:
            return self.slots * PREFETCH_SECONDS
        return self.slots * (PREFETCH_ROUND_TRIPS * far_seconds + (load / count if count else 0.0))

    @property
    def is_willing(self) -> bool:
        return not (self.draining or self.reports.is_awaited) and self.broken_at is None

    def count(self, needs: Needs, queue: object = None) -> int:
        """Return how many tasks with these needs fit into resources that are free and not reserved for other queues."""
        room = min(self.limit, self.claims.count(needs, queue))
        width = needs.width(self.offers, self.slots)
        return room if width <= 1 else min(room, int((self.slots - self.busy - self.claims.extra) // width))

    def allow(self, most: int) -> bool:
        before, self.limit = self.limit, most
        return before != most

    def take(self, tasks: Sequence[Task], now: float) -> None:
        """Add tasks in order. Call `count_function` next."""
        if len(self.tasks) == len(self.blocked):
            self.progress.at = now
            self.progress.checks_without = 0
        for task in tasks:
            self.tasks[task.id] = task
        self.sent += len(tasks)

    def count_function(self, timing: Timing, change: int) -> None:
        count = self.by_function.get(timing, 0) + change
        if count:
            self.by_function[timing] = count
        else:
            del self.by_function[timing]

    def release(self, task: Task) -> None:
        """Remove a task. Call before its state changes."""
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
        if self.claims.by_task:
            self.claims.release(task.id, is_blocked)

    def block(self, task: Task, *, is_blocked: bool) -> None:
        """Block or unblock a task that waits for its own tasks. Blocked tasks lend out their slots, nothing else."""
        if is_blocked != (task.id in self.blocked):
            self.blocked ^= {task.id}
            self.claims.block(task.id, is_blocked)
            timing = task.group.timing
            self.count_function(timing, -1 if is_blocked else 1)

    def count_recall(self, change: int) -> None:
        self.recalled += change

    def keep(self, task: Task) -> None:
        """Record that a task has started, even if the worker is lost later. Voids a recall."""
        self.started.add(task.id)
        if type(task.state) is Recalled and not task.state.cancel:
            self.count_recall(-1)

    def join_side(self, side: OrderedDict[Worker, None] | None) -> None:
        if self.side is not None:
            del self.side[self]
        self.side = side
        if side is not None:
            side[self] = None

    def drain(self, *, quarantined: bool = False, leaving: bool = False) -> None:
        self.draining = True
        self.is_leaving = self.is_leaving or leaving
        self.progress.is_quarantined = self.progress.is_quarantined or quarantined

    def keep_heartbeat(self, heartbeat: WorkerHeartbeat, now: float) -> None:
        self.reports.add(heartbeat, now, self.sent - len(self.tasks))
        if any(each.initialized and each.running for each in heartbeat.processors):
            self.progress.has_begun = True

    def note_done(self, done: Done, now: float, own_now: float) -> None:
        """Record that results arrived. now: clock time. own_now: core time."""
        self.progress.at, self.progress.checks_without, self.progress.is_stalled = own_now, 0, False
        if not done.lanes:
            return
        costs = done.inputs_us, done.inputs_bytes
        clock = self.reports.clock
        ran = Ran(clock, done.ids, done.began_us, done.duration_us, done.lanes, *costs)
        if done.lanes[-1]:
            latest = now - (done.began_us[-1] + done.duration_us[-1]) / 1e6
            if clock.offset_seconds is None or clock.offset_seconds > latest:
                clock.offset_seconds = latest
        self.terminated = Terminated(self.name, ran)


@dataclass(slots=True, eq=False)
class ManagerRecord(PeerRecord):
    role = "manager"
    details: ManagerDetails
