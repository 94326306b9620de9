"""State of the whole cluster, changed by the core's rules, and read by views, checks, and explanations. Also the
interfaces of the parts that move objects and scale the cluster, which the shell passes to the core. Pure.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from scaler.ids import owner_of
from scaler.needs import Needs, Offers
from scaler.protocol.messages import (
    Done,
    ManagerDetails,
    ManagerStatus,
    Outcome,
    WorkerHeartbeat,
    is_function_id,
    is_stored,
)
from scaler.scheduler.core.accounts import ENTRY_BYTES, KeyAccount, KeyAccounts
from scaler.scheduler.core.changes import Dropped, TasksEnded
from scaler.scheduler.core.ready import ReadyQueues
from scaler.scheduler.core.rooms import Changes, Rooms
from scaler.scheduler.core.state import ClientRecord, Function, ManagerRecord, PeerRecord, Task, Worker, WorkerPool


class Scaling:
    """Scaling of the cluster. This class does nothing; `Extension.scaling` names a subclass. Times are core time."""

    next_at = math.inf
    """Time of the next `plan`."""
    prefers_least_capable = False
    """Among the workers that fit a task, prefer the ones with the fewest unneeded capabilities."""
    limited: Collection[Worker] = ()
    """Workers with limits that change whenever tasks end."""
    managers: Mapping[str, Any] = MappingProxyType({})
    """Records of the managers to scale, by name, in order of joining."""
    spent = 0.0
    """Cost of all units since the scheduler started."""

    def bound(self, state: ClusterState, placement: Any, outbox: Any) -> None:
        """Called once, before the first step."""

    def manager_joined(self, peer: bytes, details: ManagerDetails, now: float) -> ManagerRecord:
        """Return the record of a manager. A subclass of `ManagerRecord` adds the part's own state."""
        return ManagerRecord(peer, details.manager_id, now, details)

    def manager_left(self, record: ManagerRecord, now: float) -> None: ...
    def manager_reported(self, record: ManagerRecord, status: ManagerStatus, now: float) -> None: ...
    def worker_joined(self, worker: Worker, now: float) -> None: ...
    def worker_given_up(self, worker: Worker) -> None:
        """Called before `worker_left` for a worker whose unit may still run."""

    def worker_left(self, _worker: Worker, _now: float) -> float:
        """Return the time limit (seconds) that the worker's unit has reached, or 0."""
        return 0.0

    def heartbeat(self, worker: Worker, heartbeat: WorkerHeartbeat) -> None: ...
    def answered(self, wanted: Mapping[str, Any], complaint: str) -> None:
        """Called with the answer to the last AskPolicy."""

    def limit_workers(self) -> None:
        """Update the limits of the workers in `limited` before a placement."""

    def hurry(self) -> None:
        """Plan soon, because tasks arrived that no worker has capacity for."""

    def plan(self, now: float) -> None: ...


@dataclass(slots=True, eq=False)
class ObjectUses:
    """Reference counts of a stored object. pins: clients that pin it (only the owner may). uses: tasks that use it."""

    pins: int = 0
    uses: int = 0


@dataclass(slots=True, eq=False)
class FunctionUses(ObjectUses):
    """A function or serializer, used by groups. payload: a stored reference if it is too large to send inline."""

    payload: bytes = b""
    announced_to: set[bytes] = field(default_factory=set)


class ObjectTable:
    """Reference counts of registered functions, serializers, and stored objects.

    Invariants: an entry exists exactly while a client pins it, or a live task or group uses it. When the last use ends
    and no extension holds the object, the storage is asked once to drop it. Object ids are never reused, so this cannot
    drop a newer upload.
    """

    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self.functions: dict[bytes, FunctionUses] = {}
        self.stored: dict[bytes, ObjectUses] = {}
        self.pins: dict[bytes, dict[bytes, None]] = {}
        """Pins by client, so that removing a nested client does not iterate over other clients' objects."""
        self.accounts: dict[bytes, KeyAccount] = {}
        self.forgotten: list[bytes] = []
        self.withdrawn: list[tuple[bytes, set[bytes]]] = []
        self.missing: dict[bytes, list[Task]] = {}
        """Objects that the storage lost and that clients must store again, with the tasks waiting for each."""
        self._held: Counter[bytes] = Counter()
        self._due: set[bytes] = set()
        """Objects without an entry that an extension still holds. The storage drops them once no extension does."""

    def register(self, identifier: bytes, payload: bytes, client: bytes) -> bool:
        """Pin a function for a client. Returns False if the id does not match the payload, or does not name a function.

        Otherwise, a client could register a different pickle under the id of another client's function and have it run.
        """
        known = self.functions.get(identifier)
        is_new = known is None and identifier not in self.stored and is_function_id(identifier, payload)
        is_own = not is_stored(payload) or owner_of(identifier) == client
        if not is_own or not (is_new or (known is not None and known.payload == payload)):
            return False
        if is_new:
            self.functions[identifier] = FunctionUses(payload=payload)
        self.pin(identifier, client)
        return True

    def pin(self, identifier: bytes, client: bytes) -> None:
        pins = self.pins.setdefault(client, {})
        if identifier not in pins:
            pins[identifier] = None
            entry = self._entry(identifier)
            entry.pins += 1
            self._charge(client, entry, 1)

    def use(self, identifier: bytes, pinned: bool = True) -> None:
        """Count a use. pinned: if the object was never announced, keep it until its owner releases it."""
        entry = self.functions.get(identifier) or self.stored.get(identifier)
        if entry is None:
            entry = self.stored[identifier] = ObjectUses()
            if pinned:
                self.pin(identifier, owner_of(identifier))
        entry.uses += 1

    def unuse(self, identifier: bytes) -> None:
        entry = self.functions.get(identifier) or self.stored[identifier]
        entry.uses -= 1
        if not (entry.uses or entry.pins):
            self._settle(identifier, entry)

    def forget(self, identifier: bytes) -> None:
        """Make the storage drop a late result, unless a client has a reference to it."""
        if identifier not in self.stored:
            self.forgotten.append(identifier)

    def hold(self, identifiers: Iterable[bytes]) -> None:
        self._held.update(identifiers)

    def let_go(self, identifiers: Iterable[bytes]) -> None:
        for identifier in identifiers:
            self._held[identifier] -= 1
            if not self._held[identifier]:
                del self._held[identifier]
                if identifier in self._due:
                    self._due.remove(identifier)
                    self.forgotten.append(identifier)

    def take_forgotten(self) -> list[bytes]:
        """Return the objects that the storage should drop, and clear the list."""
        forgotten, self.forgotten = self.forgotten, []
        if self._held:
            self._due.update(each for each in forgotten if each in self._held)
            forgotten = [each for each in forgotten if each not in self._held]
        return forgotten

    def release(self, identifier: bytes, client: bytes) -> None:
        pins = self.pins.get(client)
        if pins is not None and identifier in pins:
            del pins[identifier]
            if not pins:
                del self.pins[client]
            entry = self._entry(identifier)
            entry.pins -= 1
            self._charge(client, entry, -1)
            self._settle(identifier, entry)

    def _charge(self, client: bytes, entry: ObjectUses, sign: int) -> None:
        if client in self.accounts:
            size = len(entry.payload) if isinstance(entry, FunctionUses) else 0
            self.accounts[client].size_bytes += sign * (ENTRY_BYTES + size)

    def client_left(self, client: bytes, retain: bool) -> None:
        """Remove all pins of a client. retain: keep its stored objects, which the caller drops later."""
        for identifier in self.pins.pop(client, ()):
            entry = self._entry(identifier)
            entry.pins -= 1
            self._charge(client, entry, -1)
            if retain and not entry.uses and identifier in self.stored:
                del self.stored[identifier]
            else:
                self._settle(identifier, entry)
        self.accounts.pop(client, None)

    def worker_left(self, worker: bytes) -> None:
        for function in self.functions.values():
            function.announced_to.discard(worker)

    def _entry(self, identifier: bytes) -> ObjectUses:
        entry = self.functions.get(identifier) or self.stored.get(identifier)
        if entry is None:
            entry = self.stored[identifier] = ObjectUses()
        return entry

    def _settle(self, identifier: bytes, entry: ObjectUses) -> None:
        if entry.pins or entry.uses:
            return
        if isinstance(entry, FunctionUses):
            del self.functions[identifier]
            self._changes.add(Dropped, (identifier,))
            if entry.announced_to:
                self.withdrawn.append((identifier, entry.announced_to))
            if not is_stored(entry.payload):
                return
        else:
            del self.stored[identifier]
        self.forgotten.append(identifier)


MAX_FITTING = 1024
"""Maximum number of needs whose fitting pools are cached."""
MAX_LABEL = 100
"""Maximum characters of a host name, and of a manager's id in worker names."""


@dataclass(slots=True)
class Counts:
    waiting: int = 0
    more: int = 0
    """Additional calls of live chunks: a chunk counts as one task but has several calls."""
    ended: dict[int, int] = field(default_factory=lambda: dict.fromkeys(Outcome, 0))
    memory_kills: int = 0
    processors_replaced: int = 0

    def add(self, before: WorkerHeartbeat | None, heartbeat: WorkerHeartbeat) -> None:
        kills, replaced = (before.memory_kills, before.processors_replaced) if before is not None else (0, 0)
        self.memory_kills += max(0, heartbeat.memory_kills - kills)
        self.processors_replaced += max(0, heartbeat.processors_replaced - replaced)


class WorkerPools(dict[Offers, WorkerPool]):
    """Workers by their offers. overloaded: workers with more tasks than slots. fitting: suitable pools, by needs."""

    def __init__(self, rooms: Rooms) -> None:
        self.overloaded: OrderedDict[Worker, None] = OrderedDict()
        self.fitting: dict[Needs, list[WorkerPool]] = {}
        self._rooms = rooms

    def that_fit(self, needs: Needs) -> list[WorkerPool]:
        pools = [pool for pool in self.values() if needs.fits(pool.offers)]
        if self._rooms.scaling.prefers_least_capable:
            pools.sort(key=lambda pool: len(pool.offers.items))
        if len(self.fitting) > MAX_FITTING:
            self.fitting.clear()
        self.fitting[needs] = pools
        return pools


class ClusterState:
    """All peers, their tasks, and their objects. Only the rules of the core modify this."""

    has_returned = False
    """Whether any peer has reconnected from an earlier scheduler, or from a session that this scheduler ended."""

    def __init__(self, now: float, accounts: KeyAccounts, rooms: Rooms) -> None:
        self.now = now
        self.stalled_seconds = 0.0
        """Total time without steps, which core time excludes."""
        self.accounts = accounts
        self.rooms = rooms
        self.changes = rooms.changes
        self.clients: dict[bytes, ClientRecord] = {}
        self.workers: dict[bytes, Worker] = {}
        self.managers: dict[bytes, ManagerRecord] = {}
        self.departed: dict[ClientRecord, None] = {}
        """Clients that left while their tasks were being recalled. A client that left twice appears twice."""
        self.objects = ObjectTable(rooms.changes)
        self.ready = ReadyQueues()
        self.counts = Counts()
        self.functions: dict[tuple[str, str, tuple[tuple[str, float], ...]], Function] = {}
        """Functions by name, client's key, and needs, least recently used first."""
        self.pools = WorkerPools(rooms)

    def own_time(self, now: float) -> float:
        """Convert clock time to core time, which excludes intervals without steps."""
        return now - self.stalled_seconds

    def peer(self, identifier: bytes) -> PeerRecord | None:
        known = self.clients.get(identifier) or self.workers.get(identifier)
        return known or self.managers.get(identifier) or self.rooms.stores.records.get(identifier)

    def manager_named(self, manager_id: str) -> ManagerRecord | None:
        return next((record for record in self.managers.values() if record.name == manager_id), None)

    def living_task(self, identifier: bytes) -> Task | None:
        client = self.clients.get(owner_of(identifier))
        return client.tasks.get(identifier) if client is not None else None

    def ended_task(self, task: bytes) -> tuple[TasksEnded, int] | None:
        found = (each.find(task) for each in self.rooms.remembered)
        return max(filter(None, found), key=lambda each: each[0].step_at, default=None)

    def may_see(self, client: ClientRecord, task: bytes) -> bool:
        """Return whether a client may see a task: its own tasks, tasks of its key, or, for an admin, any task.

        All access checks use this rule. A hidden task gets the same answer as a nonexistent task.
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
"""Outcomes of a map's chunk after which, without counts from its worker, clients resubmit each call as a task."""


Calls = dict[bytes, tuple[int, int]]
"""Numbers of ended calls and of failed calls, by chunk."""


def calls_of(message: Done) -> Calls:
    failed = message.failed_calls or [0] * len(message.calls)
    return {task: (ended, bad) for task, ended, bad in zip(message.ids, message.calls, failed, strict=True) if ended}


def recount(state: ClusterState, calls: Calls, task: Task, outcome: int, duration_us: int) -> None:
    """Count the calls that ended in a chunk, instead of one call. The client resubmits the remaining calls."""
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
    elif submitted == 1 or outcome not in _SENT_AGAIN or not group.spec.deliver:  # graph nodes are not resubmitted
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
