"""What the core knows: tasks, groups of tasks, clients, workers and managers. Plain records; rules live beside them.

A task's `state` says where it is and carries what is true there, nothing else:

    Waiting(missing)          some of its dependencies have not ended
    READY                     in a ready queue
    Delayed(until)            will be ready after a short back-off
    Assigned(worker)          sent to a worker as attempt `task.attempt`
    Recalled(worker, cancel)  asked back from the worker, to be cancelled or to be placed anew

A task that ended is in no table, and exactly one entry of a Finished was made for it (none when its client is gone).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from scaler.needs import Needs, Offers
from scaler.protocol.messages import (
    Finished,
    ManagerDetails,
    ManagerStatus,
    RunGroup,
    Spec,
    WorkerDetails,
    WorkerHeartbeat,
)
from scaler.scheduler.core.facts import ScalingDecided, TasksEnded

UNKNOWN_DURATION_SECONDS = 0.05
"""What a task is taken to last before its function was ever measured."""
DURATION_WEIGHT = 0.2
"""Weight of a new measurement in the moving average of a function's duration."""


class Timing:
    """Measured duration of one function: an exponential moving average."""

    __slots__ = ("measured", "seconds")

    def __init__(self) -> None:
        self.seconds = UNKNOWN_DURATION_SECONDS
        self.measured = 0

    def observe(self, seconds: float) -> None:
        if self.measured:
            self.seconds += DURATION_WEIGHT * (seconds - self.seconds)
        else:
            self.seconds = seconds
        self.measured += 1


class Function:
    """What was counted of all tasks of one name since the start. Those that ended are those that are not alive."""

    __slots__ = ("failed", "name", "submitted", "wall_us")

    def __init__(self, name: str) -> None:
        self.name = name
        self.submitted = 0
        self.failed = 0
        self.wall_us = 0
        """What those that ended took."""


class Group:
    """Tasks of one client and one spec that are alive. rank orders queues: priority, then depth, both descending."""

    __slots__ = ("assigned", "client", "depth", "function", "live", "needs", "rank", "ready", "spec", "timing")

    def __init__(
        self, client: Client, spec: Spec, needs: Needs, depth: int, timing: Timing, function: Function
    ) -> None:
        self.client = client
        self.function = function
        self.spec = spec
        self.needs = needs
        self.depth = depth
        self.rank = (-spec.priority, -depth)
        self.timing = timing
        self.live = 0
        self.ready = 0
        self.assigned = 0


class Waiting:
    __slots__ = ("missing",)

    def __init__(self, missing: int) -> None:
        self.missing = missing


class Ready:
    __slots__ = ()


class Delayed:
    __slots__ = ("until",)

    def __init__(self, until: float) -> None:
        self.until = until


class Assigned:
    """One instance per worker, shared by all tasks that it has. gone: what they become when they end there."""

    __slots__ = ("terminated", "worker")

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.terminated = Terminated(worker.name)


class Recalled:
    __slots__ = ("cancel", "worker")

    def __init__(self, worker: Worker, cancel: bool) -> None:
        self.worker = worker
        self.cancel = cancel


class Terminated:
    """It ended; worker is the name of the one that had it then, empty when none did.

    Only stale mentions (a tombstone in a queue) and the history still meet such a task.
    """

    __slots__ = ("worker",)

    def __init__(self, worker: str) -> None:
        self.worker = worker


READY: Final = Ready()
TERMINATED: Final = Terminated("")
TaskState = Waiting | Ready | Delayed | Assigned | Recalled | Terminated


class AttemptErrors:
    """What went wrong with one task so far; made at the first trouble, so that healthy tasks carry nothing."""

    __slots__ = ("avoid_until", "failures", "last_worker", "lost_workers", "texts")

    def __init__(self) -> None:
        self.failures = 0
        self.lost_workers: set[bytes] = set()
        self.last_worker: Worker | None = None
        self.avoid_until = 0.0
        self.texts: list[str] = []


class Task:
    """One task. attempt counts the times it was sent to a worker."""

    __slots__ = ("attempt", "dependents", "errors", "group", "id", "payload", "references", "state")

    def __init__(self, identifier: bytes, group: Group, payload: bytes, references: tuple[bytes, ...]) -> None:
        self.id = identifier
        self.group = group
        self.payload = payload
        self.references = references
        self.state: TaskState = READY
        self.attempt = 0
        self.dependents: list[Task] | None = None
        self.errors: AttemptErrors | None = None


class RetainedResult:
    """How a task ended, as long as somebody may still name it: dependents, or a client that has not seen it."""

    __slots__ = ("outcome", "payload", "unacknowledged", "uses")

    def __init__(self, outcome: int, payload: bytes) -> None:
        self.outcome = outcome
        self.payload = payload
        self.unacknowledged = True
        self.uses = 0


class Client:
    """A client: a process, or one that lives in a task (`via` is the worker that relays for it)."""

    __slots__ = (
        "batch",
        "batch_bytes",
        "broken_at",
        "ended",
        "failed",
        "groups",
        "id",
        "last_message_at",
        "name",
        "number",
        "retained",
        "seen",
        "submitted",
        "tasks",
        "terminated",
        "unacknowledged",
        "via",
    )

    def __init__(self, identifier: bytes, name: str, via: Worker | None, now: float) -> None:
        self.id = identifier
        self.name = name
        self.via = via
        self.tasks: dict[bytes, Task] = {}
        self.groups: dict[Spec, Group] = {}
        self.retained: dict[bytes, RetainedResult] = {}
        self.number = 0
        self.seen = 0
        self.unacknowledged: deque[Finished] = deque()
        self.batch: Finished | None = None
        self.batch_bytes = 0
        self.ended: TasksEnded | None = None
        """What the history keeps of `batch`."""
        self.submitted = 0
        """Tasks that ever were its; those that are not in `tasks` have ended."""
        self.failed = 0
        self.last_message_at = now
        self.broken_at: float | None = None
        self.terminated = False


class Worker:
    """A worker agent.

    held: how many tasks it has per function, without the blocked ones. progressed_at: when it last finished or began
    a task. blocked: ids of started tasks that wait for tasks of their own and have lent their slots.
    """

    __slots__ = (
        "assigned",
        "blocked",
        "broken_at",
        "checks_without_progress",
        "details",
        "draining",
        "failures_in_row",
        "heartbeat",
        "heartbeat_at",
        "held",
        "hostname",
        "id",
        "idle_since",
        "known",
        "last_message_at",
        "limit",
        "name",
        "nested",
        "offers",
        "outgoing",
        "outgoing_bytes",
        "pid",
        "progressed_at",
        "quarantined",
        "recalled",
        "sent",
        "slots",
        "stalled",
        "tasks",
        "to_define",
    )

    def __init__(self, identifier: bytes, details: WorkerDetails, hostname: str, pid: int, now: float) -> None:
        self.id = identifier
        self.details = details
        self.hostname = hostname
        self.pid = pid
        self.name = f"{hostname}|{pid}|{identifier.hex()[:8]}"
        """What people see."""
        self.offers = Offers.of(details.capabilities)
        self.slots = details.slots
        self.limit = details.slots * (1 + details.queue_size)
        self.tasks: dict[bytes, Task] = {}
        self.blocked: set[bytes] = set()
        self.assigned = Assigned(self)
        self.held: dict[Timing, int] = {}
        self.recalled = 0
        self.stalled = False
        self.draining = False
        self.quarantined = False
        self.sent = 0
        """Tasks that it was sent so far."""
        self.failures_in_row = 0
        self.checks_without_progress = 0
        self.known: set[bytes] = set()
        self.to_define: list[tuple[bytes, bytes]] = []
        self.outgoing: dict[Group, RunGroup] = {}
        self.outgoing_bytes = 0
        self.nested: set[bytes] = set()
        self.heartbeat: WorkerHeartbeat | None = None
        self.heartbeat_at = now
        self.last_message_at = now
        self.broken_at: float | None = None
        self.progressed_at = now
        self.idle_since = now

    @property
    def busy(self) -> int:
        """How many tasks take a slot or wait for one: those that wait for tasks of their own do not."""
        return len(self.tasks) - len(self.blocked)

    @property
    def load(self) -> float:
        """Estimated seconds of all that it has to do, by what is known of each function now."""
        seconds = 0.0
        for timing, count in self.held.items():
            seconds += timing.seconds * count
        return seconds

    def hold(self, timing: Timing) -> None:
        """Count a task of this function."""
        self.held[timing] = self.held.get(timing, 0) + 1

    def release(self, timing: Timing) -> None:
        """Count one task of this function less."""
        count = self.held[timing] - 1
        if count:
            self.held[timing] = count
        else:
            del self.held[timing]


@dataclass(slots=True)
class ManagerRecord:
    """A worker manager: what it said it is, its last status, and what it was last told."""

    id: bytes
    details: ManagerDetails
    offers: Offers
    joined: int
    last_message_at: float
    status: ManagerStatus | None = None
    status_at: float = 0.0
    broken_at: float | None = None
    told: tuple[int, tuple[str, ...]] | None = None
    decision: ScalingDecided | None = None
    """The last one that was made into a fact."""
    startup_seconds: float | None = None
    running_units: dict[str, Worker] = field(default_factory=dict)
    joined_units: set[str] = field(default_factory=set)
    """Units whose worker has come, and whose manager has not been told."""
    left_units: set[str] = field(default_factory=set)
    """Units whose worker has come and gone, as long as the manager still lists them: they are not pending."""
    unwanted_units: set[str] = field(default_factory=set)
    """Units that live and are to be stopped: their worker has not come yet, or was given up. It gets no work when it
    comes after all."""
