"""Collects the output of one step as columns, and builds one message of each type per peer at the end of the step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from scaler.protocol.messages import (
    ROW_BYTES,
    SPLIT_BATCH_BYTES,
    Finished,
    ForgetFunctions,
    Goodbye,
    Message,
    ObjectsMissing,
    Recall,
    Refused,
    Run,
    RunGroup,
    split,
)
from scaler.scheduler.core.changes import NO_CALLS, Expelled, FailureRecord, ResultsRetained, TasksEnded
from scaler.scheduler.core.cluster import Calls, ClusterState
from scaler.scheduler.core.commands import Command, Expel, HoldObjects, Send, SendAnswer
from scaler.scheduler.core.rooms import Rooms
from scaler.scheduler.core.state import ClientRecord, Group, Task, Worker


@dataclass(slots=True)
class _Results:
    message: Finished
    ended: TasksEnded
    size_bytes: int = 0


class Outbox:
    """Commands of one step. Order per peer: functions and tasks, then recalls, then all other messages in order."""

    def __init__(self, state: ClusterState, rooms: Rooms) -> None:
        self.rooms = rooms
        self.called: Calls = {}
        """Call counts of chunks whose results are being processed."""
        self._state = state
        self._commands: list[Command] = []
        self._results: dict[ClientRecord, _Results] = {}
        self._runs: dict[Worker, Run] = {}
        self._run_bytes: defaultdict[Worker, int] = defaultdict(int)
        self._columns: defaultdict[Group, dict[Worker, RunGroup]] = defaultdict(dict)
        self._recalls: dict[tuple[Worker, bool, bool], Recall] = {}
        self._missing: defaultdict[ClientRecord, list[bytes]] = defaultdict(list)

    # -- to clients

    def finish(self, task: Task, outcome: int, payload: bytes, duration_us: int, cpu_us: int, peak_bytes: int) -> None:
        """Add a terminated task to its client's next Finished, or, if the client has left, only to the history."""
        group = task.group
        client = group.client
        results = self._results.get(client)
        if results is None:
            message = Finished(0, [], [], [], [])
            ended = TasksEnded(message.ids, message.outcomes, message.duration_us, message.cpu_us, message.peak_bytes)
            results = self._results[client] = _Results(message, ended)
        else:
            message, ended = results.message, results.ended
        groups, states = ended.run_groups, ended.run_states
        if not groups or group is not groups[-1] or task.state is not states[-1]:
            ended.run_starts.append(len(message.ids))
            groups.append(group)
            states.append(task.state)
        if outcome or task.errors is not None:
            ended.failure_records[len(message.ids)] = FailureRecord.of(
                task, payload if outcome else b"", self.called.get(task.id, NO_CALLS)
            )
        message.ids.append(task.id)
        message.outcomes.append(outcome)
        message.payloads.append(payload)
        message.duration_us.append(duration_us)
        group.function.wall_us += duration_us
        if group.spec.profiling or peak_bytes:
            _pad_profiles(message, len(message.ids) - 1)
            message.cpu_us.append(cpu_us)
            message.peak_bytes.append(peak_bytes)
        results.size_bytes += len(payload) + ROW_BYTES
        if results.size_bytes > SPLIT_BATCH_BYTES:
            self._close_results(client, self._results.pop(client))

    def _close_results(self, client: ClientRecord, results: _Results) -> None:
        message = results.message
        if message.cpu_us:
            _pad_profiles(message, len(message.ids))
        ended = results.ended
        ended.step_at = self._state.now
        changes = self._state.changes
        if TasksEnded in changes.taken:
            changes.collected.append(ended)
        if not client.terminated:
            if not (client.is_absent and client.is_durable):
                self.send_finished(client, message)
            if client.via is None:
                changes.add(ResultsRetained, client.id, message)

    def send_finished(self, client: ClientRecord, message: Finished) -> None:
        client.number += 1
        message.number = client.number
        client.unacknowledged.append(message)
        self.send_to_client(client, message)

    def answer(self, client: ClientRecord, message: Message) -> None:
        """Send a message that does not depend on the journal, without waiting for a failing disk."""
        self.send_to_client(client, message, SendAnswer)

    def send_to_client(self, client: ClientRecord, message: Message, kind: type[Send] = Send) -> None:
        """Send to a client, through its worker if the client is inside a task. Does nothing if the client is absent."""
        if client.is_absent:
            return
        if client.via is None:
            self._commands.append(kind(client.id, message))
        else:
            self._commands.append(kind(client.via.id, message, client.id))

    def ask_for(self, client: ClientRecord, identifier: bytes) -> None:
        self._missing[client].append(identifier)

    # -- to workers

    def run(self, worker: Worker, group: Group, tasks: list[Task], inputs: Mapping[bytes, tuple[bytes, ...]]) -> None:
        """Add tasks of one group to the worker's next Run. inputs: payloads of each task's references, by task."""
        columns = self._columns_of(worker, group)
        has_inputs = bool(inputs or columns.inputs)
        counted = worker.claims.by_task
        size = self._run_bytes[worker]
        for task in tasks:
            if size > SPLIT_BATCH_BYTES:
                self._commands.append(Send(worker.id, self._runs[worker]))
                self._forget_run(worker)
                columns = self._columns_of(worker, group)
                size = self._run_bytes[worker]
            columns.ids.append(task.id)
            columns.attempts.append(task.attempt)
            columns.payloads.append(task.payload)
            size += len(task.payload) + ROW_BYTES
            if has_inputs:
                values = inputs.get(task.id, ())
                if values or columns.inputs:
                    columns.inputs.extend([()] * (len(columns.ids) - 1 - len(columns.inputs)))
                    columns.inputs.append(values)
                    size += sum(map(len, values))
            if counted and task.id in counted:
                devices = counted[task.id][1]
                if devices or columns.devices:
                    columns.devices.extend([()] * (len(columns.ids) - 1 - len(columns.devices)))
                    columns.devices.append(devices)
        self._run_bytes[worker] = size

    def _columns_of(self, worker: Worker, group: Group) -> RunGroup:
        of_group = self._columns[group]
        columns = of_group.get(worker)
        if columns is None:
            columns = of_group[worker] = RunGroup(group.spec, [], [], [])
            run = self._runs.get(worker)
            if run is None:
                run = self._runs[worker] = Run([], [])
            run.groups.append(columns)
            for identifier in group.functions:
                function = self._state.objects.functions[identifier]
                if worker.id not in function.announced_to:
                    function.announced_to.add(worker.id)
                    run.functions.append((identifier, function.payload))
                    self._run_bytes[worker] += len(function.payload)
        return columns

    def _forget_run(self, worker: Worker) -> None:
        if self._runs.pop(worker, None) is not None:
            del self._run_bytes[worker]
            for of_group in self._columns.values():
                of_group.pop(worker, None)

    def recall(self, worker: Worker, task: Task, *, kill: bool = False, preempt: bool = False) -> None:
        """Add one attempt to the worker's next Recall. If this step also runs the attempt, the Run is sent first."""
        recall = self._recalls.get((worker, kill, preempt))
        if recall is None:
            recall = self._recalls[worker, kill, preempt] = Recall([], [], kill, preempt)
        recall.ids.append(task.id)
        recall.attempts.append(task.attempt)

    def discard(self, worker: Worker) -> None:
        self._forget_run(worker)
        for key in [key for key in self._recalls if key[0] is worker]:
            del self._recalls[key]

    # -- the end of a step

    def send(self, peer: bytes, message: Message) -> None:
        self._commands.append(Send(peer, message))

    def extend(self, commands: Iterable[Command]) -> None:
        self._commands += commands

    def expel(self, peer: bytes, reason: Refused | Goodbye) -> None:
        self._commands.append(Expel(peer, reason))
        self._state.changes.add(Expelled, peer, reason.text)

    def flush(self) -> list[Command]:
        commands = self._commands
        if self._results:
            for client, results in self._results.items():
                self._close_results(client, results)
            self._results = {}
        if self._runs:
            commands.extend([Send(worker.id, run) for worker, run in self._runs.items()])
            self._runs = {}
            self._run_bytes.clear()
            self._columns.clear()
        if self._recalls:
            commands.extend(Send(worker.id, recall) for (worker, *_), recall in self._recalls.items())
            self._recalls = {}
        if self._missing:
            for client, ids in self._missing.items():
                for part in split(ObjectsMissing(ids)):
                    self.send_to_client(client, part)
            self._missing.clear()
        from_rooms, last = self.rooms.deliver(self._state.now)
        for command in from_rooms:
            if type(command) is HoldObjects:
                self._state.objects.hold(command.held)
                self._state.objects.let_go(command.released)
            else:
                commands.append(command)
        objects = self._state.objects
        if objects.withdrawn:
            self.withdraw_functions()
        if objects.forgotten and (forgotten := objects.take_forgotten()):
            self._state.rooms.stores.forget(forgotten)
        stores = self._state.rooms.stores
        if stores.mail or stores.is_used:
            commands += stores.take_messages()
        self._commands = []
        commands += last
        return commands

    def withdraw_functions(self) -> None:
        """Make workers drop unused functions. Call before placement, because an id may be registered again."""
        objects = self._state.objects
        by_worker: dict[bytes, list[bytes]] = {}
        for identifier, announced_to in objects.withdrawn:
            for worker_id in announced_to:
                by_worker.setdefault(worker_id, []).append(identifier)
        for worker_id, ids in by_worker.items():
            if worker_id in self._state.workers:
                self._commands.extend(Send(worker_id, part) for part in split(ForgetFunctions(ids)))
        objects.withdrawn.clear()


def _pad_profiles(message: Finished, count: int) -> None:
    missing = count - len(message.cpu_us)
    message.cpu_us.extend([0] * missing)
    message.peak_bytes.extend([0] * missing)
