"""Everything the scheduler knows: the one record that rules change and that views, checks and explanations read."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from scaler.ids import owner_of
from scaler.needs import Offers
from scaler.policy.view import ClusterView
from scaler.protocol.messages import Outcome, TaskLog, WorkerHeartbeat
from scaler.scheduler.core.accounts import KeyAccounts
from scaler.scheduler.core.changes import TasksEnded
from scaler.scheduler.core.data.directory import Directory
from scaler.scheduler.core.data.tracker import Tracker
from scaler.scheduler.core.failures import Failures
from scaler.scheduler.core.locality import Locality
from scaler.scheduler.core.logs import Logs
from scaler.scheduler.core.objects import ObjectTable
from scaler.scheduler.core.ready import ReadyQueues
from scaler.scheduler.core.resources import MemoryPools
from scaler.scheduler.core.rooms import Changes, Now, Remembered
from scaler.scheduler.core.spending import Spending
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
from scaler.scheduler.core.usage import Usage

MAX_LABEL = 100
"""Characters of a manager's id in the names of its workers, and of a host's name."""


class DataPlane:
    """Objects of clients: where copies are, what is on the way, and where tasks run because of them."""

    def __init__(self, ready: ReadyQueues) -> None:
        self.stores: dict[bytes, StoreRecord] = {}
        """Stores of hosts."""
        self.directory = Directory()
        self.tracker = Tracker(self.directory)
        self.locality = Locality(ready, self.directory, self.tracker.rates)
        self.missing: dict[bytes, list[Task]] = {}
        """Objects that the storage has lost and clients are to put again, with the tasks that wait for each."""


@dataclass(slots=True)
class JournalState:
    """What the disk of the journal takes."""

    failure: str = ""
    """Why new tasks cannot be journaled, and are refused; empty while they can."""
    is_stuck: bool = False
    """All work waits until something can be journaled."""
    refused: dict[bytes, RetainedResult] = field(default_factory=dict)
    """The last tasks that could not be journaled: tasks that need one of them end for the same reason."""


@dataclass(slots=True)
class Counts:
    """Numbers of tasks, calls, and processes."""

    waiting: int = 0
    """Tasks in state Waiting or Delayed."""
    more: int = 0
    """Calls beyond one per living task: a chunk has several."""
    ended: dict[int, int] = field(default_factory=lambda: dict.fromkeys(Outcome, 0))
    """Calls that ended since the start, by outcome."""
    memory_kills: int = 0
    processors_replaced: int = 0
    """Since the start: see `WorkerHeartbeat`."""

    def add(self, before: WorkerHeartbeat | None, heartbeat: WorkerHeartbeat) -> None:
        """Add what a worker has counted since its heartbeat before this one."""
        kills, replaced = (before.memory_kills, before.processors_replaced) if before is not None else (0, 0)
        self.memory_kills += max(0, heartbeat.memory_kills - kills)
        self.processors_replaced += max(0, heartbeat.processors_replaced - replaced)


class ClusterState:
    """Clients, workers, managers and what belongs to them. Only the rules of the core change it."""

    has_returned = False
    """A peer came from an earlier scheduler, or from a session that this one has ended."""

    def __init__(self, now: float, accounts: KeyAccounts, changes: Changes, secret: bytes = b"") -> None:
        self.now = now
        """The clock's time of the present step."""
        self.unix_at_zero = 0.0
        """Unix seconds when that clock showed 0."""
        self.stalled_seconds = 0.0
        """Time that the shell did not step the core; the core's own time excludes it."""
        self.accounts = accounts
        self.changes = changes
        """Changes of the present step."""
        self.journal = JournalState()
        self.clients: dict[bytes, ClientRecord] = {}
        self.workers: dict[bytes, Worker] = {}
        self._last_numbers: dict[str, int] = {}
        self.managers: dict[bytes, ManagerRecord] = {}
        """In the order in which they joined, which is that of the policy's view."""
        self.spending = Spending()
        """What units cost, as an extension knows it."""
        self.view: ClusterView | None = None
        """The last one that the scaling policy was shown; None while there are no worker managers."""
        self.departed: dict[ClientRecord, None] = {}
        """Clients that left but whose last tasks have not come back yet; one that comes back may leave again."""
        self.memory = MemoryPools()
        self.objects = ObjectTable(changes)
        self.ready = ReadyQueues()
        self.data = DataPlane(self.ready)
        self.counts = Counts()
        self.called: dict[bytes, tuple[int, int]] = {}
        """Of the chunks whose results are taken in: how many calls ended, and how many of those failed."""
        self.held: dict[Task, None] = {}
        """Waiting tasks that were submitted again and that workers may have: see `recovery`."""
        self.functions: dict[tuple[str, str, tuple[tuple[str, float], ...]], Function] = {}
        """By name, key of the client, and items of the needs, the most recently used at the end."""
        self.pools: dict[Offers, WorkerPool] = {}
        self.overloaded: OrderedDict[Worker, None] = OrderedDict()
        """Workers that have tasks waiting behind running ones: balancing may relieve them."""
        """The tasks of a client with one tag count as a call, beside those of their own calls."""
        self.remembered: tuple[Remembered, ...] = ()
        """What extensions remember of tasks that ended."""
        self.failures = Failures(self.objects, secret)
        self.logs = Logs()
        """What tasks printed that have not failed."""
        self.usage = Usage()
        """Memory of functions."""
        self.submitted: dict[tuple[ClientRecord, str], int] = {}
        """New tasks by client and function, until the audit log is told."""

    @property
    def moment(self) -> Now:
        return Now(self.now, self.unix_at_zero + self.now)

    def own_time(self, now: float) -> float:
        """Convert the clock's time to core time, which excludes intervals in which `step` was not called."""
        return now - self.stalled_seconds

    def peer(self, identifier: bytes) -> ClientRecord | Worker | ManagerRecord | StoreRecord | None:
        known = self.clients.get(identifier) or self.workers.get(identifier)
        return known or self.managers.get(identifier) or self.data.stores.get(identifier)

    def manager_named(self, manager_id: str) -> ManagerRecord | None:
        return next((record for record in self.managers.values() if record.name == manager_id), None)

    def next_worker_name(self, manager_id: str) -> str:
        """Return a name for a worker of this manager that joins, such as cloud-3. No other worker ever had it."""
        label = manager_id[:MAX_LABEL] or "worker"
        number = self._last_numbers[label] = self._last_numbers.get(label, 0) + 1
        return f"{label}-{number}"

    def living_task(self, identifier: bytes) -> Task | None:
        client = self.clients.get(owner_of(identifier))
        return client.tasks.get(identifier) if client is not None else None

    def ended_task(self, task: bytes) -> tuple[TasksEnded, int] | None:
        """Return the batch with the last end of a task, and its index there, if it is remembered."""
        found = (each.find(task) for each in self.remembered)
        return next((each for each in found if each is not None), None) or self.failures.find(task)

    def function_of(self, task: bytes) -> str:
        """Return the name of the function of a task; empty for one that is not known."""
        living = self.living_task(task)
        if living is not None:
            return living.group.spec.name
        found = self.ended_task(task)
        return found[0].run_of(found[1])[0].spec.name if found is not None else ""

    def may_see(self, client: ClientRecord, task: bytes) -> bool:
        """Return whether a client may know of a task: its own, one of its key, or any as an admin.

        This is the one rule; a task that it may not see is answered as one that does not exist.
        """
        owner = owner_of(task)
        return owner == client.id or client.identity.may_see(self.accounts.owners.get(owner, ""))

    def read_log(self, task: bytes) -> TaskLog:
        """Return what a task wrote, and the traceback of one that failed."""
        return self.failures.log(task) if task in self.failures else self.logs.read(task)

    @property
    def living_tasks(self) -> int:
        return sum(len(client.tasks) for client in self.clients.values())

    def all_clients(self) -> Iterator[ClientRecord]:
        """Yield the clients that are here, then those that left and still have tasks on workers."""
        yield from self.clients.values()
        yield from self.departed
