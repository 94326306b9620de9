"""Collects what one step wants said, in columns, and turns it into one message per peer at the end of the step."""

from __future__ import annotations

from scaler.protocol.batches import split_ids
from scaler.protocol.messages import (
    SPLIT_BATCH_BYTES,
    Finished,
    ForgetFunctions,
    ForgetObjects,
    Message,
    Recall,
    Run,
    RunGroup,
)
from scaler.scheduler.core.commands import Command, Expel, ForgetOwned, ForgetStored, Send, Stop
from scaler.scheduler.core.facts import Facts, FailureRecord, TasksEnded
from scaler.scheduler.core.history import History
from scaler.scheduler.core.objects import ObjectTable
from scaler.scheduler.core.state import Client, Group, Task, Worker

_ROW_BYTES = 64
"""Rough size of a task's own columns, added to its payloads when batches are split."""


class Outbox:
    """The commands of one step. Order per peer: definitions and tasks first, then recalls, then the rest as said."""

    __slots__ = ("_clients", "_commands", "_facts", "_history", "_objects", "_recalls", "_unheard", "_workers")

    def __init__(self, objects: ObjectTable, facts: Facts, history: History) -> None:
        self._objects = objects
        self._facts = facts
        self._history = history
        self._unheard: TasksEnded | None = None
        self._commands: list[Command] = []
        self._clients: dict[Client, None] = {}
        self._workers: dict[Worker, None] = {}
        self._recalls: dict[tuple[Worker, bool], Recall] = {}

    # -- to clients

    def finished(
        self, client: Client, task: Task, outcome: int, payload: bytes, duration_us: int, cpu_us: int, peak_bytes: int
    ) -> None:
        """Add one entry to the client's next Finished."""
        batch = client.batch
        group = task.group
        gone = task.state
        ended = client.ended
        if batch is None or ended is None:
            batch = client.batch = Finished(0, [], [], [], [])
            ended = client.ended = TasksEnded(
                group, gone, batch.ids, batch.outcomes, batch.duration_us, batch.cpu_us, batch.peak_bytes
            )
            self._clients[client] = None
        elif group is not ended.group or gone is not ended.terminated:
            ended.begin_run(len(batch.ids), group, gone)
        if outcome or task.attempt != 1:
            ended.failure_records[len(batch.ids)] = _failure_record(task, outcome, payload)
        batch.ids.append(task.id)
        batch.outcomes.append(outcome)
        batch.payloads.append(payload)
        batch.duration_us.append(duration_us)
        if group.spec.profiling:
            missing = len(batch.ids) - 1 - len(batch.cpu_us)
            batch.cpu_us.extend([0] * missing)
            batch.peak_bytes.extend([0] * missing)
            batch.cpu_us.append(cpu_us)
            batch.peak_bytes.append(peak_bytes)
        client.batch_bytes += len(payload) + _ROW_BYTES
        if client.batch_bytes > SPLIT_BATCH_BYTES:
            self._close_batch(client)

    def _close_batch(self, client: Client) -> None:
        batch = client.batch
        if batch is None:
            return
        if batch.cpu_us:
            missing = len(batch.ids) - len(batch.cpu_us)
            batch.cpu_us.extend([0] * missing)
            batch.peak_bytes.extend([0] * missing)
        client.number += 1
        batch.number = client.number
        client.unacknowledged.append(batch)
        client.batch = None
        client.batch_bytes = 0
        self._remember_batch(client)
        self.send_to_client(client, batch)

    def drop_batch(self, client: Client) -> None:
        """A client is gone: what it would have been told next is void, and remembered all the same."""
        client.batch = None
        client.batch_bytes = 0
        self._remember_batch(client)

    def unheard(self, task: Task, outcome: int, payload: bytes, duration_us: int) -> None:
        """A task of a client that is gone came to its end on a worker: only monitors hear of it."""
        ended = self._unheard
        if ended is None:
            ended = self._unheard = TasksEnded(task.group, task.state, [], [], [], [], [])
        elif task.group is not ended.group or task.state is not ended.terminated:
            ended.begin_run(len(ended), task.group, task.state)
        ended.failure_records[len(ended)] = _failure_record(task, outcome, payload)
        ended.ids.append(task.id)
        ended.outcomes.append(outcome)
        ended.duration_us.append(duration_us)

    def _remember_batch(self, client: Client) -> None:
        if client.ended is not None:
            self._remember(client.ended)
            client.ended = None

    def _remember(self, ended: TasksEnded) -> None:
        ended.count_time()
        self._history.add(ended)
        if self._facts.watched:
            self._facts.add(ended)

    def send_to_client(self, client: Client, message: Message) -> None:
        self._commands.append(Send(client.id, message, client.via.id if client.via is not None else None))

    # -- to workers

    def run(self, worker: Worker, task: Task, inputs: tuple[bytes, ...]) -> None:
        """Add one attempt to the worker's next Run."""
        group = task.group
        columns = worker.outgoing.get(group)
        if columns is None:
            columns = worker.outgoing[group] = RunGroup(group.spec, [], [], [])
            self._workers[worker] = None
            self._define(worker, group)
        columns.ids.append(task.id)
        columns.attempts.append(task.attempt)
        columns.payloads.append(task.payload)
        size = len(task.payload) + _ROW_BYTES
        if inputs or columns.inputs:
            columns.inputs.extend([()] * (len(columns.ids) - 1 - len(columns.inputs)))
            columns.inputs.append(inputs)
            size += sum(map(len, inputs))
        worker.outgoing_bytes += size
        if worker.outgoing_bytes > SPLIT_BATCH_BYTES:
            self._close_run(worker)

    def _define(self, worker: Worker, group: Group) -> None:
        for identifier in (group.spec.function, group.spec.serializer):
            if identifier and identifier not in worker.known:
                definition = self._objects.definition(identifier)
                assert definition is not None, "a living group's definitions are kept"
                definition.told.add(worker.id)
                worker.known.add(identifier)
                worker.to_define.append((identifier, definition.payload))
                worker.outgoing_bytes += len(definition.payload)

    def _close_run(self, worker: Worker) -> None:
        if not worker.outgoing:
            return
        worker.sent += sum([len(group.ids) for group in worker.outgoing.values()])
        self._commands.append(Send(worker.id, Run(worker.to_define, list(worker.outgoing.values()))))
        worker.to_define = []
        worker.outgoing = {}
        worker.outgoing_bytes = 0

    def recall(self, worker: Worker, task: Task, kill: bool) -> None:
        """Add one attempt to the worker's next Recall. A Run of this step that names it goes out before."""
        recall = self._recalls.get((worker, kill))
        if recall is None:
            recall = self._recalls[worker, kill] = Recall([], [], kill)
        recall.ids.append(task.id)
        recall.attempts.append(task.attempt)

    def discard(self, worker: Worker) -> None:
        """A worker is gone: whatever was collected for it is void."""
        self._workers.pop(worker, None)
        self._recalls.pop((worker, True), None)
        self._recalls.pop((worker, False), None)
        worker.outgoing = {}
        worker.to_define = []
        worker.outgoing_bytes = 0

    # -- the rest

    def send(self, peer: bytes, message: Message) -> None:
        self._commands.append(Send(peer, message))

    def add(self, command: Expel | ForgetOwned | Stop) -> None:
        self._commands.append(command)

    def flush(self, workers: dict[bytes, Worker]) -> list[Command]:
        """Return everything collected, and start anew."""
        for client in self._clients:
            if not client.terminated:
                self._close_batch(client)
        self._clients.clear()
        if self._unheard is not None:
            self._remember(self._unheard)
            self._unheard = None
        for worker in self._workers:
            self._close_run(worker)
        self._workers.clear()
        for (worker, _), recall in self._recalls.items():
            self._commands.append(Send(worker.id, recall))
        self._recalls.clear()
        self.undefine(workers)
        objects = self._objects
        if objects.forgotten:
            forgotten, objects.forgotten = objects.forgotten, []
            self._commands.extend(ForgetStored(part.ids) for part in split_ids(ForgetObjects(forgotten)))
        commands = self._commands
        self._commands = []
        return commands

    def undefine(self, workers: dict[bytes, Worker]) -> None:
        """Withdraw definitions that nobody uses. Before tasks are placed: the same id may be defined anew by then."""
        objects = self._objects
        if objects.undefined:
            by_worker: dict[bytes, list[bytes]] = {}
            for identifier, told in objects.undefined:
                for worker_id in told:
                    by_worker.setdefault(worker_id, []).append(identifier)
            for worker_id, ids in by_worker.items():
                worker = workers.get(worker_id)
                if worker is not None:
                    worker.known.difference_update(ids)
                    self._commands.extend(Send(worker_id, part) for part in split_ids(ForgetFunctions(ids)))
            objects.undefined.clear()


def _failure_record(task: Task, outcome: int, payload: bytes) -> FailureRecord:
    evidence = task.errors.texts if task.errors is not None else []
    return FailureRecord(task.attempt, payload if outcome else b"", evidence)
