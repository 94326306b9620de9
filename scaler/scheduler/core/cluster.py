"""State of the whole cluster, changed by the core's rules and read by views, checks, and explanations."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from scaler.ids import owner_of
from scaler.needs import Offers
from scaler.protocol.messages import Done, Outcome, WorkerHeartbeat
from scaler.scheduler.core.accounts import KeyAccounts
from scaler.scheduler.core.changes import TasksEnded
from scaler.scheduler.core.interfaces import ObjectTracker, Scaling
from scaler.scheduler.core.locality import Locality
from scaler.scheduler.core.objects import ObjectTable
from scaler.scheduler.core.ready import ReadyQueues
from scaler.scheduler.core.rooms import Changes, Now, Remembered
from scaler.scheduler.core.state import (
    ClientRecord,
    Function,
    ManagerRecord,
    RetainedResult,
    StoreRecord,
    Task,
    Worker,
    WorkerPool,
)

MAX_LABEL = 100
"""Characters of a manager's id in worker names, and of a host name."""


class DataPlane:
    def __init__(self, ready: ReadyQueues, tracker: ObjectTracker) -> None:
        self.stores: dict[bytes, StoreRecord] = {}
        self.directory, self.tracker = tracker.directory, tracker
        self.locality = Locality(ready, tracker.directory, tracker.moved.rate)
        self.missing: dict[bytes, list[Task]] = {}
        """Objects that the storage lost and clients must put again, with the tasks waiting for each."""


@dataclass(slots=True)
class JournalState:
    failure: str = ""
    """Why new tasks cannot be journaled and are rejected; empty if they can."""
    is_stuck: bool = False
    refused: dict[bytes, RetainedResult] = field(default_factory=dict)
    """Recently refused tasks. Tasks that depend on one end for the same reason."""


@dataclass(slots=True)
class Counts:
    waiting: int = 0
    more: int = 0
    """Calls beyond one per live task, because a chunk has several."""
    ended: dict[int, int] = field(default_factory=lambda: dict.fromkeys(Outcome, 0))
    memory_kills: int = 0
    processors_replaced: int = 0

    def add(self, before: WorkerHeartbeat | None, heartbeat: WorkerHeartbeat) -> None:
        kills, replaced = (before.memory_kills, before.processors_replaced) if before is not None else (0, 0)
        self.memory_kills += max(0, heartbeat.memory_kills - kills)
        self.processors_replaced += max(0, heartbeat.processors_replaced - replaced)


class ClusterState:
    """All peers and their belongings. Only the rules of the core modify this."""

    has_returned = False
    """A peer reconnected from an earlier scheduler, or from a session that this scheduler ended."""

    def __init__(
        self, now: float, accounts: KeyAccounts, changes: Changes, scaling: Scaling, tracker: ObjectTracker
    ) -> None:
        self.now = now
        self.unix_at_zero = 0.0
        self.stalled_seconds = 0.0
        """Total time without steps, which core time excludes."""
        self.accounts = accounts
        self.changes = changes
        self.scaling = scaling
        self.journal = JournalState()
        self.clients: dict[bytes, ClientRecord] = {}
        self.workers: dict[bytes, Worker] = {}
        self.managers: dict[bytes, ManagerRecord] = {}
        self.departed: dict[ClientRecord, None] = {}
        """Clients that left while tasks were recalled. A client that returns may leave again and be here twice."""
        self.objects = ObjectTable(changes)
        self.ready = ReadyQueues()
        self.data = DataPlane(self.ready, tracker)
        self.counts = Counts()
        self.held: dict[Task, None] = {}
        """Waiting resubmitted tasks that workers may have; see `recovery`."""
        self.functions: dict[tuple[str, str, tuple[tuple[str, float], ...]], Function] = {}
        """By name, client's key, and items of the needs; most recently used last."""
        self.pools: dict[Offers, WorkerPool] = {}
        self.overloaded: OrderedDict[Worker, None] = OrderedDict()
        """Workers with more tasks than slots."""
        self.remembered: tuple[Remembered, ...] = ()

    @property
    def moment(self) -> Now:
        return Now(self.now, self.unix_at_zero + self.now)

    def own_time(self, now: float) -> float:
        """Convert clock time to core time, which excludes intervals without steps."""
        return now - self.stalled_seconds

    def peer(self, identifier: bytes) -> ClientRecord | Worker | ManagerRecord | StoreRecord | None:
        known = self.clients.get(identifier) or self.workers.get(identifier)
        return known or self.managers.get(identifier) or self.data.stores.get(identifier)

    def manager_named(self, manager_id: str) -> ManagerRecord | None:
        return next((record for record in self.managers.values() if record.name == manager_id), None)

    def living_task(self, identifier: bytes) -> Task | None:
        client = self.clients.get(owner_of(identifier))
        return client.tasks.get(identifier) if client is not None else None

    def ended_task(self, task: bytes) -> tuple[TasksEnded, int] | None:
        found = (each.find(task) for each in self.remembered)
        return max(filter(None, found), key=lambda each: each[0].step_at, default=None)

    def function_of(self, task: bytes) -> str:
        living = self.living_task(task)
        if living is not None:
            return living.group.spec.name
        found = self.ended_task(task)
        return found[0].run_of(found[1])[0].spec.name if found is not None else ""

    def may_see(self, client: ClientRecord, task: bytes) -> bool:
        """Return whether a client may see a task: its own, one of its key, or any task for an admin.

        All access checks use this rule. A hidden task is answered like a nonexistent one.
        """
        owner = owner_of(task)
        return owner == client.id or client.identity.may_see(self.accounts.owners.get(owner, ""))

    @property
    def living_tasks(self) -> int:
        return sum(len(client.tasks) for client in self.clients.values())

    def all_clients(self) -> Iterator[ClientRecord]:
        yield from self.clients.values()
        yield from self.departed


_SENT_AGAIN = (Outcome.EXCEPTION, Outcome.PROCESSOR_DIED, Outcome.TIMED_OUT, Outcome.MEMORY_LIMIT, Outcome.OBJECT_LOST)
"""If a chunk of a map ends like this without counts from its worker, the client resubmits each call as a task."""


Calls = dict[bytes, tuple[int, int]]
"""By chunk: numbers of ended and of failed calls."""


def calls_of(message: Done) -> Calls:
    failed = message.failed_calls or [0] * len(message.calls)
    return {task: (ended, bad) for task, ended, bad in zip(message.ids, message.calls, failed, strict=True) if ended}


def recount(state: ClusterState, calls: Calls, task: Task, outcome: int, duration_us: int) -> None:
    """Count the calls that ended in a chunk, instead of one call. The client resubmits the remaining ones."""
    group, function = task.group, task.group.function
    submitted = group.calls.pop(task.id, 1)
    group.more -= submitted - 1
    state.counts.more -= submitted - 1
    done = failed = cancelled = 0
    called = calls.get(task.id)
    if called is not None:
        ended, failed = called
        done = max(0, ended - failed)
        group.timing.has_chunks = group.timing.has_chunks or ended > 1
    elif outcome == Outcome.SUCCESS:
        done = submitted
    elif outcome == Outcome.CANCELLED:
        cancelled = submitted
    elif submitted == 1 or outcome not in _SENT_AGAIN or not group.spec.deliver:  # nodes of a graph are not resubmitted
        failed = submitted
    counted = done + failed + cancelled
    state.counts.ended[outcome] -= 1
    state.counts.ended[Outcome.SUCCESS] += done
    state.counts.ended[Outcome.EXCEPTION if outcome == Outcome.SUCCESS else outcome] += failed
    state.counts.ended[Outcome.CANCELLED] += cancelled
    for record in group.records:
        record.failed += failed - (outcome not in (Outcome.SUCCESS, Outcome.CANCELLED))
        record.cancelled += cancelled - (outcome == Outcome.CANCELLED)
        if record is not function:
            record.submitted += counted - submitted
    function.more += counted - submitted
    if not duration_us and outcome:
        function.untimed += counted - 1
    if not counted:
        function.wall_us -= duration_us
