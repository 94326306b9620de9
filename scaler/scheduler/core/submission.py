"""Submission of tasks: detects repeated tasks, enforces limits, and sorts tasks into groups."""

from __future__ import annotations

import sys
from collections.abc import Container, Iterable, Iterator, Sequence

from scaler.ids import TASK_KIND, show
from scaler.needs import Needs, function_needs
from scaler.protocol.messages import STORED_REFERENCE_BYTES, Spec, Submit, TaskGroup, is_stored
from scaler.scheduler.core.accounts import REFERENCE_BYTES, spec_bytes
from scaler.scheduler.core.changes import GroupBegan, TasksArrived
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.durability import ATTEMPTS_BETWEEN_SESSIONS, MAX_SESSIONS
from scaler.scheduler.core.resources import ResourceRules
from scaler.scheduler.core.state import TERMINATED, ClientRecord, Function, Group, Task, Timing
from scaler.scheduler.core.tasks import Tasks

MAX_WRONG = 100
MAX_TIMINGS = 10_000
MAX_FUNCTIONS = 10_000
"""Maximum number of function names with task counts, in addition to the names of live tasks."""
MAX_DEFINITIONS = 4
"""Maximum functions per name that have their durations shown, most recently submitted first."""


class Submission:
    """Processes submissions. `waiting_limit`: maximum tasks that may be Waiting or Ready; -1: no limit."""

    def __init__(self, state: ClusterState, tasks: Tasks, waiting_limit: int) -> None:
        self._state = state
        self._tasks = tasks
        self._durability = state.rooms.durability
        self._resources: ResourceRules = state.rooms.resources
        self._waiting_limit = waiting_limit
        self._timings: dict[bytes, Timing] = {}
        self.submitted: dict[tuple[ClientRecord, str], int] = {}
        """New tasks by client and function, not yet reported to the audit log."""

    def submit(self, client: ClientRecord, message: Submit) -> list[str]:
        """Process a Submit. Returns its protocol errors. Tasks with errors are dropped."""
        wrong: list[str] = []
        objects = self._state.objects
        no_room = ""
        for identifier, payload in message.functions:
            if len(payload) > self._state.accounts.bytes_left(client.account):
                no_room = self._state.accounts.bytes_limit(client.account)
            elif not objects.register(identifier, payload, client.id):
                _note(wrong, f"function id {show(identifier)} does not match the function sent with it")
        referencing: list[Task] = []
        # After a restart, a program that continues a session may resubmit tasks that workers already have.
        claims = self._durability.claims if client.is_durable else ()
        is_again = message.again > 0
        if is_again:
            client.attempt_base = message.again % MAX_SESSIONS * ATTEMPTS_BETWEEN_SESSIONS
        for columns in message.groups:
            group = client.groups.get(columns.spec) or self._new_group(client, columns.spec)
            if group is not None:
                if not group.is_active:
                    group.is_active = True
                    self._state.ready.turns.joined(group)
                self._take_in(client, group, columns, referencing, wrong, claims, is_again=is_again)
                if columns.spec.context:
                    self._state.changes.add(TasksArrived, columns.ids)
                if columns.labels and not client.is_durable:
                    _note(wrong, "its tasks have keys or tags, but it has no durable session")
            else:
                unlisted = self._make_group(client, columns.spec, 0, Timing())
                why = no_room or "its function or serializer is undefined"
                self._reject(unlisted, columns, range(len(columns.ids)), why)
        held: list[Task] = []
        for task in referencing:
            is_held = is_again or task.id in claims
            self._tasks.resolve(task, is_held=is_held)
            if is_held:
                task.attempt = max(task.attempt, client.attempt_base)
                held.append(task)
        if held:
            self._durability.hold(held, self._state.own_time(self._state.now))
        self._tasks.acknowledge(client, message.acknowledged)
        return wrong

    def _take_in(
        self,
        client: ClientRecord,
        group: Group,
        columns: TaskGroup,
        referencing: list[Task],
        wrong: list[str],
        claims: Container[bytes],
        *,
        is_again: bool,
    ) -> None:
        """Create the tasks of one group. referencing: list that collects the tasks not queued yet because they have
        references, are resubmitted or claimed, or failed in a chunk."""
        account, accounts = client.account, self._state.accounts
        left = room = accounts.bytes_left(account)
        capacity = self._capacity(group, len(referencing))
        tasks, retained = client.tasks, client.retained
        ready: list[Task] = []
        rejected: list[int] = []
        references = columns.references
        departed = self._state.departed and [each for each in self._state.departed if each.id == client.id]
        before = len(tasks)
        own = client.id + TASK_KIND
        payloads = _shared(columns.payloads) if references else columns.payloads
        for index, (identifier, payload) in enumerate(zip(columns.ids, payloads, strict=True)):
            if identifier in tasks or identifier in retained:
                self._durability.repeated(client, columns, index)
                continue  # run and answered only once
            if identifier[:10] != own:
                _note(wrong, f"task id {identifier.hex()} does not belong to this client")
                continue
            size = len(payload)
            if size == STORED_REFERENCE_BYTES and is_stored(payload) and payload[1:9] != client.id:
                _note(wrong, f"the stored arguments of task {identifier.hex()} do not belong to this client")
                continue
            size += REFERENCE_BYTES * len(references[index]) if references else 0
            if capacity <= 0 or size > left:
                rejected.append(index)
                continue
            capacity, left = capacity - 1, left - size
            task = Task(identifier, group, payload, references[index] if references else ())
            for earlier in departed:
                if identifier in earlier.tasks:
                    task.attempt = max(task.attempt, earlier.tasks[identifier].attempt)
            tasks[identifier] = task
            if client.is_durable:
                left -= self._durability.label(client, columns, index)
            if task.references or is_again or identifier in claims:
                referencing.append(task)
            else:
                ready.append(task)
        new = self._count(group, len(tasks) - before, columns)
        account.size_bytes += room - left
        if len(tasks) > before:
            group.arrived(task.id, self._state.now)
            key = client, group.function.name
            self.submitted[key] = self.submitted.get(key, 0) + new
        if ready:
            self._state.ready.add(group, ready)
        if rejected:
            self._reject(group, columns, rejected, self._limit_of(group, has_capacity=capacity > 0))
        if not group.live:
            self._tasks.rest(group)

    def _capacity(self, group: Group, more: int) -> int:
        """Return how many tasks may be added. more: waiting tasks that are not counted yet."""
        client = group.client
        if self._durability.failure and client.via is None:  # nested tasks are not journaled
            return 0
        if (group.needs.items or group.needs.environment or group.spec.preemptible) and self._refusal(group):
            return 0
        most = self._state.accounts.max_tasks
        left = most - client.account.tasks if most >= 0 else sys.maxsize
        if self._waiting_limit >= 0:
            left = min(left, self._waiting_limit - self._state.counts.waiting - self._state.ready.count - more)
        return left

    def _refusal(self, group: Group) -> str:
        needs, rooms = group.needs, self._state.rooms
        return (
            (self._resources.refusal(needs) if needs.is_counted else "")
            or (rooms.gangs.refusal(needs) if needs.gang else "")
            or (rooms.near.refusal if needs.near else "")
            or (rooms.environments.refusal if needs.environment else "")
            or (self._state.ready.turns.refusal if group.spec.preemptible else "")
        )

    def _limit_of(self, group: Group, *, has_capacity: bool) -> str:
        account = group.client.account
        if has_capacity:
            return self._state.accounts.bytes_limit(account)
        if refusal := self._refusal(group):
            return refusal
        if 0 <= self._state.accounts.max_tasks <= account.tasks:
            most = self._state.accounts.max_tasks
            return f"max_tasks_per_client is {most}, and key {account.key} has reached it"
        return f"max_number_of_tasks_waiting is {self._waiting_limit}, and has been reached"

    def _reject(self, group: Group, columns: TaskGroup, rows: Sequence[int], why: str) -> None:
        """Reject tasks at submission. Tasks refused for a failed journal are answered immediately and not retained."""
        client = group.client
        is_refused = self._durability.failure and client.via is None
        refused, rejected = list[bytes](), list[Task]()
        for row in rows:
            identifier = columns.ids[row]
            if identifier in client.tasks or identifier in client.retained:
                self._durability.repeated(client, columns, row)
            elif is_refused:
                refused.append(identifier)
            else:
                task = client.tasks[identifier] = Task(identifier, group, b"", (), TERMINATED)
                if client.is_durable:
                    client.account.size_bytes += self._durability.label(client, columns, row)
                rejected.append(task)
        self._count(group, len(rejected), columns)
        self._tasks.reject(rejected, why)
        if refused:
            self._durability.refuse(client, group.spec.name, refused)

    def _count(self, group: Group, tasks: int, columns: TaskGroup) -> int:
        more = group.note_calls(columns) if columns.calls else 0
        group.live += tasks
        group.more += more
        self._state.counts.more += more
        group.function.submitted += tasks
        group.function.more += more
        group.client.submitted += tasks + more
        group.submitted += tasks + more
        group.client.account.tasks += tasks
        return tasks + more

    # -- groups

    def _new_group(self, client: ClientRecord, spec: Spec) -> Group | None:
        """Return a new group, or None if its function is undefined."""
        pins, functions = self._state.objects.pins.get(client.id, ()), self._state.objects.functions
        if not all(each in pins and each in functions for each in spec.registered):
            return None
        timing = self._timings.pop(spec.function, None) or Timing()
        if spec.expected_seconds and not timing.measured:
            timing.seconds = spec.expected_seconds
        self._timings[spec.function] = timing
        if len(self._timings) > MAX_TIMINGS:
            del self._timings[next(iter(self._timings))]
        # Nesting depth, derived from the parent task if it is known; 0 outside tasks.
        depth = 0
        if client.via is not None and spec.parent:
            parent = client.via.tasks.get(spec.parent)
            depth = 1 if parent is None else parent.group.depth + 1
            client.owner = client.owner if parent is None else parent.group.owner
        group = client.groups[spec] = self._make_group(client, spec, depth, timing)
        self._state.changes.add(GroupBegan, group)
        if group.needs.gang:
            self._state.rooms.gangs.began(group)
        timings = group.function.timings
        timings[timing] = None
        if len(timings) > MAX_DEFINITIONS:
            del timings[next(iter(timings))]
        client.account.size_bytes += group.size_bytes
        for identifier in group.functions:
            self._state.objects.use(identifier)
        return group

    def _make_group(self, client: ClientRecord, spec: Spec, depth: int, timing: Timing) -> Group:
        functions = self._state.functions
        key = spec.name, client.account.key, function_needs(spec.needs) if spec.needs else ()
        function = functions.pop(key, None) or Function(spec.name, Needs(key[2]), client.account.key)
        is_usual = key[2] == spec.needs and not spec.environment
        needs = function.needs if is_usual else Needs(spec.needs, environment=spec.environment)
        functions[key] = function
        if len(functions) > MAX_FUNCTIONS:
            del functions[next(iter(functions))]
        rank = -spec.priority, -depth
        size_bytes, owner = spec_bytes(spec), client.owner or client
        return Group(client, owner, spec, spec.registered, size_bytes, needs, rank, depth, timing, function)


def _shared(payloads: Iterable[bytes]) -> Iterator[bytes]:
    """Yield payloads, replacing equal neighbors by one object, because most nodes of a graph have equal arguments."""
    last = b""
    for payload in payloads:
        if payload != last:
            last = payload
        yield last


def _note(wrong: list[str], text: str) -> None:
    if len(wrong) < MAX_WRONG:
        wrong.append(text)
