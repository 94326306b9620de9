"""How tasks come in: said again or new, within limits, ready, waiting for others, or failing at once."""

from __future__ import annotations

from scaler.ids import is_task, owner_of
from scaler.needs import Needs
from scaler.protocol.messages import Outcome, Spec, Submit, TaskGroup
from scaler.scheduler.core.groups import Groups
from scaler.scheduler.core.objects import ObjectTable
from scaler.scheduler.core.ready import ReadyQueues
from scaler.scheduler.core.state import Client, Group, RetainedResult, Task, Timing, Waiting
from scaler.scheduler.core.tasks import Tasks

MAX_TASKS_PER_CLIENT = 10_000_000

_NOT_RETAINED = RetainedResult(Outcome.OBJECT_LOST, b"the result of a task that it depends on is no longer kept")
_NOT_ITS_OWN = RetainedResult(
    Outcome.OBJECT_LOST, b"it depends on an object of another client; a task may name its own client's only"
)


class Submission:
    """Takes in what clients submit. `waiting_limit` is the most tasks that may be Waiting or Ready, -1: no limit."""

    __slots__ = ("_groups", "_objects", "_ready", "_tasks", "_waiting_limit")

    def __init__(
        self,
        tasks: Tasks,
        groups: Groups,
        objects: ObjectTable,
        ready: ReadyQueues,
        waiting_limit: int,
    ) -> None:
        self._tasks = tasks
        self._groups = groups
        self._objects = objects
        self._ready = ready
        self._waiting_limit = waiting_limit

    def submit(self, client: Client, message: Submit) -> list[str]:
        """Take in new tasks. Returns what was wrong with the message: the peer's nonsense, which is dropped."""
        nonsense: list[str] = []
        for identifier, payload in message.functions:
            self._objects.define(identifier, payload, client.id)
        entangled: list[tuple[Task, tuple[bytes, ...]]] = []
        for columns in message.groups:
            if not self._known(columns.spec):
                self._reject(client, columns, "its function or serializer was never defined")
                continue
            self._take_in(client, columns, entangled, nonsense)
        for task, references in entangled:
            self._entangle(task, references)
        self._tasks.acknowledge(client, message.acknowledged)
        return nonsense

    def _known(self, spec: Spec) -> bool:
        definition = self._objects.definition
        return definition(spec.function) is not None and (
            not spec.serializer or definition(spec.serializer) is not None
        )

    def _take_in(
        self,
        client: Client,
        columns: TaskGroup,
        entangled: list[tuple[Task, tuple[bytes, ...]]],
        nonsense: list[str],
    ) -> None:
        room = self._room(client, len(entangled))
        group = self._groups.of(client, columns.spec)
        tasks = client.tasks
        ready: list[Task] = []
        references = columns.references
        leaving = self._tasks.departed.get(client.id, ())
        before = group.live
        for index, identifier in enumerate(columns.ids):
            if identifier in tasks or identifier in client.retained:
                continue  # said again: one execution, one answer
            if not identifier.startswith(client.id) or not is_task(identifier):
                nonsense.append(f"task id {identifier.hex()} is not this client's")
                continue
            if room <= 0:
                self._reject_one(client, group, identifier)
                continue
            room -= 1
            task = Task(identifier, group, columns.payloads[index], references[index] if references else ())
            for earlier in leaving:
                if identifier in earlier.tasks:
                    task.attempt = max(task.attempt, earlier.tasks[identifier].attempt)
            tasks[identifier] = task
            group.live += 1
            if task.references:
                entangled.append((task, task.references))
            else:
                ready.append(task)
        if ready:
            self._ready.add_all(group, ready)
        group.function.submitted += group.live - before
        client.submitted += group.live - before
        self._groups.settle(group)

    def _room(self, client: Client, entangled: int) -> int:
        """Return how many more tasks may come. entangled: those of this message that are not counted anywhere yet."""
        room = MAX_TASKS_PER_CLIENT - len(client.tasks)
        if self._waiting_limit >= 0:
            room = min(room, self._waiting_limit - self._tasks.waiting - self._ready.count - entangled)
        return room

    def _entangle(self, task: Task, references: tuple[bytes, ...]) -> None:
        """Resolve what a new task references: it waits for tasks, uses objects, or fails at once."""
        missing = 0
        failed: RetainedResult | None = None
        client = task.group.client
        for reference in references:
            if owner_of(reference) != client.id:
                failed = failed or _NOT_ITS_OWN
                continue
            if not is_task(reference):
                self._objects.use(reference)
                continue
            other = client.tasks.get(reference)
            if other is not None:
                if other.dependents is None:
                    other.dependents = []
                other.dependents.append(task)
                missing += 1
                continue
            kept = client.retained.get(reference)
            if kept is None:
                failed = failed or _NOT_RETAINED
            else:
                kept.uses += 1
                if kept.outcome != Outcome.SUCCESS:
                    failed = failed or kept
        if missing:
            task.state = Waiting(missing)
            self._tasks.waiting += 1
        else:
            self._ready.add(task)
        if failed is not None:
            self._tasks.end(task, failed.outcome, failed.payload)

    def _reject(self, client: Client, columns: TaskGroup, why: str) -> None:
        function = self._groups.function(columns.spec.name)
        stray = Group(client, columns.spec, Needs(columns.spec.needs), 0, Timing(), function)
        for identifier in columns.ids:
            if identifier not in client.tasks and identifier not in client.retained:
                self._tasks.reject(Task(identifier, stray, b"", ()), why)

    def _reject_one(self, client: Client, group: Group, identifier: bytes) -> None:
        if self._waiting_limit >= 0 and len(client.tasks) < MAX_TASKS_PER_CLIENT:
            why = f"max_number_of_tasks_waiting is {self._waiting_limit}, and as many tasks wait already"
        else:
            why = f"MAX_TASKS_PER_CLIENT is {MAX_TASKS_PER_CLIENT}, and this client has as many"
        self._tasks.reject(Task(identifier, group, b"", ()), why)
