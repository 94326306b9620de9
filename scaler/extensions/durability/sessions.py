"""Durable sessions: a client's tasks and results outlive its connection. Pure.

A durable session is a `ClientRecord` that remains, marked absent, when its client disconnects. Its tasks continue, and
their results are retained. The peer id is derived from the names of the session and the key; a client with the same id
continues the session. The client has futures for the tasks that it resubmits or requests.

Invariants: a task's result is retained until its session is removed or expires. A successful task never runs again.
Every task of a session has a label, charged to its key's account. Requested results are sent in portions of
`MAX_REDELIVERED_BYTES`, each after the previous one is acknowledged.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from scaler.ids import is_task, owner_of
from scaler.monitor.messages import UNFINISHED, EndSession, ListSessionTasks, SessionEnded, SessionTasks
from scaler.net.connection import Identity, TryAgain
from scaler.protocol.messages import (
    SPLIT_BATCH_BYTES,
    Finished,
    ListSessions,
    Outcome,
    Redeliver,
    RefusalReason,
    Refused,
    SessionRow,
    SessionsListed,
    Submit,
    TaskGroup,
    split,
)
from scaler.scheduler.core.accounts import ENTRY_BYTES
from scaler.scheduler.core.durability import Durability
from scaler.scheduler.core.state import TAKEOVER_SECONDS, ClientRecord, Task

MAX_SESSIONS = 10_000
MAX_LABEL_BYTES = 2048
"""Maximum bytes of a session name, and of a key and a tag together."""
MAX_REDELIVERED_BYTES = 64 * 1024 * 1024
"""Maximum bytes of requested results sent but not acknowledged."""
_ROW_BYTES = 64
_MAX_ROWS = 4096
_GONE = b"its durable session no longer contains this task"


@dataclass(slots=True, eq=False)
class Label:
    """A session's record of a task. attempt: the last attempt, once the task has ended."""

    function: str
    key: bytes = b""
    tag: bytes = b""
    attempt: int = 0

    @property
    def size_bytes(self) -> int:
        return ENTRY_BYTES + len(self.function) + len(self.key) + len(self.tag)


def label_of(columns: TaskGroup, row: int) -> tuple[bytes, bytes]:
    key, tag = columns.labels[row] if columns.labels and columns.labels[row] else (b"", b"")
    return key, tag


def note_label(labels: dict[bytes, Label], columns: TaskGroup, row: int, *, runs: bool = True) -> int:
    """Record a label, keeping the first key and the last tag. runs: False for a repetition. Returns the bytes added."""
    task, (key, tag) = columns.ids[row], label_of(columns, row)
    label = labels.get(task)
    if label is None:
        label = labels[task] = Label(columns.spec.name, key, tag)
        return label.size_bytes
    if key and label.key not in (b"", key):
        return 0
    before = label.size_bytes
    label.key, label.tag = label.key or key, tag or label.tag
    if runs:
        label.function = columns.spec.name
    return label.size_bytes - before


@dataclass(slots=True, eq=False)
class DurableSession:
    """Durable part of a client. used_at: core time when a client last left or a task last ended."""

    name: str
    used_at: float
    client: str = ""
    labels: dict[bytes, Label] = field(default_factory=dict)
    owed: OrderedDict[bytes, None] = field(default_factory=OrderedDict)
    """Tasks whose requested results have not been sent yet."""
    unasked: set[bytes] = field(default_factory=set)
    """Tasks that were unfinished when the client connected and that the client has not submitted."""
    awaited: int = 0
    """Number of the last Finished message with requested results. Its acknowledgement triggers the next."""

    @property
    def size_bytes(self) -> int:
        return sum(label.size_bytes for label in self.labels.values())


class Sessions(Durability):
    """Rules for durable sessions. `sessions`: by client id."""

    messages = ListSessions, ListSessionTasks, EndSession, Redeliver

    retention_seconds: float
    """Time for which an unused session is kept."""
    sessions: dict[bytes, DurableSession]

    # -- client connections

    def refusal(
        self, peer: bytes, name: str, identity: Identity, now: float, is_its_own: bool
    ) -> Refused | TryAgain | None:
        """Return why a client may not use this session, or None. is_its_own: whether it is the client's own session."""
        record = self._state.clients.get(peer)
        if record is None or not record.is_durable:
            clients = self._state.clients
            names = [each.name for id_, each in self.sessions.items() if clients[id_].account.key == identity.key]
            if len(name.encode()) > MAX_LABEL_BYTES:
                return Refused(RefusalReason.LIMIT, f"a session name has at most {MAX_LABEL_BYTES} bytes")
            if len(names) >= MAX_SESSIONS:
                text = f"key {identity.key} has reached the limit of {MAX_SESSIONS} sessions: remove some"
                return Refused(RefusalReason.LIMIT, text)
            if name in names:
                return Refused(RefusalReason.DUPLICATE, f"session {name!r} exists with another peer id")
            return None
        if record.account.key != identity.key:
            return Refused(RefusalReason.LIMIT, f"the peer id {peer.hex()} belongs to another client")
        used_by = "" if is_its_own else self._user_of(record, now)
        if not used_by:
            return None
        if record.defends_its_name(now):
            return Refused(RefusalReason.DUPLICATE, used_by)
        # The client may have left while this process was suspended. A live client sends a message every two seconds.
        return TryAgain(used_by)

    def attach(self, client: ClientRecord, name: str, where: str, identity: Identity, now: float) -> ClientRecord:
        known = self._state.clients.get(client.id)
        if known is None or not known.is_durable:
            client.is_durable = True
            session = self.sessions[client.id] = DurableSession(name, now)
        else:
            known.identity = identity
            known.note_connection(now, is_broken=False)
            client, session = known, self.sessions[client.id]
        client.is_absent, session.client, session.unasked = False, where, set(client.tasks)
        client.name = f"session {name} ({where})"
        self._state.rooms.stores.persist_results_of(client.id)
        return client

    def detach(self, client: ClientRecord, now: float) -> None:
        self._detached(client, now)
        objects = self._state.objects
        for identifier in list(objects.pins.get(client.id, ())):  # tasks and retained results keep their objects
            objects.release(identifier, client.id)

    def _detached(self, client: ClientRecord, now: float) -> None:
        session = self.sessions[client.id]
        client.is_absent, session.used_at = True, now
        client.name = f"session {session.name} (detached)"
        client.number = session.awaited = 0
        session.owed.clear()
        client.unacknowledged.clear()

    def restore(self, client: ClientRecord, name: str, labels: dict[bytes, Label], now: float) -> None:
        """Restore the session of a client from the journal."""
        client.is_durable = True
        session = self.sessions[client.id] = DurableSession(name, now, client.name, labels)
        client.account.size_bytes += session.size_bytes
        self._detached(client, now)
        self._state.rooms.stores.persist_results_of(client.id)

    def expire(self, now: float) -> None:
        """Remove detached sessions without unfinished tasks that were unused for too long."""
        for peer, session in list(self.sessions.items()):
            client = self._state.clients[peer]
            if client.is_absent and not client.tasks and now - session.used_at > self.retention_seconds:
                self._remove(client, f"was unused for {self.retention_seconds:g} s", now)

    def _remove(self, client: ClientRecord, why: str, now: float) -> None:
        session = self.sessions.pop(client.id)
        if not client.is_absent:
            self._core.expel(client.id, f"session {session.name!r} {why}")
            self._state.accounts.closed(client.id)
        client.account.size_bytes -= session.size_bytes
        client.is_durable = False
        self._core.client_left(client, why, now)

    # -- messages

    def on_message(self, client: Any, message: Any, _state: Any) -> tuple[()]:
        now = self._state.own_time(self._state.now)
        match message:
            case ListSessions():
                rows = [self._row(each, now) for each in self._visible_to(client)]
                self._outbox.answer(client, SessionsListed(rows, number=message.number))
            case ListSessionTasks():
                self._outbox.answer(client, self._tasks_of(client, message))
            case EndSession():
                self._end(client, message, now)
            case Redeliver(ids) if client.is_durable:
                self._redeliver(client, ids)
            case _:
                self._core.not_allowed(client.id, message)
        return ()

    def _visible_to(self, client: ClientRecord) -> Iterable[ClientRecord]:
        found = (self._state.clients[peer] for peer in self.sessions)
        return (each for each in found if client.identity.may_see(each.account.key))

    def _session(self, client: ClientRecord, identifier: bytes) -> ClientRecord | None:
        return next((each for each in self._visible_to(client) if each.id == identifier), None)

    def _row(self, client: ClientRecord, now: float) -> SessionRow:
        session = self.sessions[client.id]
        results = client.retained.values()
        return SessionRow(
            id=client.id,
            name=session.name,
            key=client.account.key,
            attached=not client.is_absent,
            client=session.client,
            unfinished=len(client.tasks),
            ended=len(results),
            failed=sum(result.outcome != Outcome.SUCCESS for result in results),
            size_bytes=sum(len(result.payload) for result in results)
            + sum(len(task.payload) for task in client.tasks.values()),
            idle_seconds=0.0 if not client.is_absent else max(0.0, now - session.used_at),
        )

    def _tasks_of(self, client: ClientRecord, asked: ListSessionTasks) -> SessionTasks:
        found, first = self._session(client, asked.session), asked.first
        answer = SessionTasks(asked.session, first, 0, [], [], [], [], [], number=asked.number)
        if found is None:
            return answer
        labels = self.sessions[found.id].labels
        answer.total, size = len(labels), 0
        for task, label in islice(labels.items(), first, first + _MAX_ROWS):
            result = found.retained.get(task)
            answer.ids.append(task)
            answer.outcomes.append(UNFINISHED if result is None else result.outcome)
            answer.names.append(label.function.encode())
            answer.keys.append(label.key)
            answer.tags.append(label.tag)
            size += label.size_bytes
            if size > SPLIT_BATCH_BYTES:
                break
        return answer

    def _end(self, client: ClientRecord, asked: EndSession, now: float) -> None:
        found, remove = self._session(client, asked.session), asked.remove
        self._core.act("removed" if remove else "cancelled", client, f"durable session {asked.session.hex()}")
        reply = SessionEnded(asked.session, 0, number=asked.number)
        if found is None:
            reply.error = "no such session"
        elif remove and found is not client and (used_by := self._user_of(found, now)):
            reply.error = used_by
        else:
            reply.cancelled = len(found.tasks)
            self._tasks.cancel(found, list(found.tasks))
        self._outbox.send_to_client(client, reply)
        if found is not None and remove and not reply.error:
            self._remove(found, f"was removed by {client.name}", now)

    def _user_of(self, record: ClientRecord, now: float) -> str:
        """Return an error if a session is in use; empty if another client may take over or remove it."""
        session = self.sessions[record.id]
        if record.is_absent or record.broken_at is not None or now - record.last_message_at >= TAKEOVER_SECONDS:
            return ""
        return f"session {session.name!r} is in use by {session.client}: stop that client first"

    # -- resubmitted tasks, and their results

    def make_way(self, client: ClientRecord, message: Submit) -> str:
        """Drop failed results of tasks with resubmitted keys, so these tasks rerun. Call before the message is
        journaled.

        If the message's labels are invalid, drops the labels and returns an error. Drops nothing while the journal
        accepts no new tasks.
        """
        wrong, is_full, unasked = "", bool(self.failure), self.sessions[client.id].unasked
        coming = [each.ids for each in client.unacknowledged if each.number > message.acknowledged] if unasked else []
        for columns in message.groups:
            if any(len(label) not in (0, 2) or sum(map(len, label)) > MAX_LABEL_BYTES for label in columns.labels):
                columns.labels.clear()
                wrong = f"a key and a tag have more than {MAX_LABEL_BYTES} bytes, or are not a pair"
            for task, label in zip(columns.ids, columns.labels, strict=False):
                result = client.retained.get(task)
                if task in unasked:
                    unasked.discard(task)
                    if any(task in ids for ids in coming):
                        continue  # the task failed just now; its future takes the result that is already on its way
                if not label or result is None or message.again or result.outcome == Outcome.SUCCESS or result.uses:
                    continue
                if not is_full and label[0] and not self._collision(client, task, label[0]):
                    self._tasks.drop_results(client, [task])
        return wrong

    def repeated(self, client: ClientRecord, columns: TaskGroup, row: int) -> None:
        """Answer a resubmitted task: send the result now or when the task ends."""
        if not client.is_durable:
            return
        session, task = self.sessions[client.id], columns.ids[row]
        if collision := self._collision(client, task, label_of(columns, row)[0]):
            self._finish_unretained(client, [task], Outcome.REJECTED, collision.encode())
        else:
            client.account.size_bytes += note_label(session.labels, columns, row, runs=False)
            if task in client.retained:
                session.owed[task] = None
        for reference in columns.references[row] if columns.references else ():
            if owner_of(reference) == client.id and not is_task(reference):
                self._state.objects.pin(reference, client.id)  # released by the client

    def label(self, client: ClientRecord, columns: TaskGroup, row: int) -> int:
        """Record a task, and continue the attempt numbers of its earlier runs. Returns the bytes added."""
        labels, task = self.sessions[client.id].labels, client.tasks[columns.ids[row]]
        size_bytes = note_label(labels, columns, row)
        task.attempt = max(task.attempt, labels[task.id].attempt, client.attempt_base)
        return size_bytes

    def ended(self, task: Task) -> None:
        session = self.sessions[task.group.client.id]
        session.labels[task.id].attempt = task.attempt
        session.used_at = self._state.own_time(self._state.now)

    def _collision(self, client: ClientRecord, task: bytes, key: bytes) -> str:
        known = self.sessions[client.id].labels[task].key
        if not key or known in (b"", key):
            return ""
        keys = " and ".join(repr(each.decode("utf-8", "replace")) for each in (known, key))
        return f"the keys {keys} have the same digest: change one of them"

    def _finish_unretained(self, client: ClientRecord, ids: list[bytes], outcome: Outcome, text: bytes) -> None:
        """Report completed tasks without a retained result, in Finished messages without a number."""
        count = len(ids)
        if ids:
            for part in split(Finished(0, ids, [outcome] * count, [text] * count, [0] * count)):
                self._outbox.answer(client, part)

    def _redeliver(self, client: ClientRecord, ids: Iterable[bytes]) -> None:
        gone: list[bytes] = []
        for task in ids:
            if task in client.retained:
                self.sessions[client.id].owed[task] = None
            elif task not in client.tasks:
                gone.append(task)
        self._finish_unretained(client, gone, Outcome.OBJECT_LOST, _GONE)
        self.send_owed(client)

    def send_owed(self, client: ClientRecord) -> None:
        session, unacknowledged = self.sessions[client.id], client.unacknowledged
        if not session.owed or (unacknowledged and unacknowledged[0].number <= session.awaited):
            return
        left = MAX_REDELIVERED_BYTES
        while session.owed and left > 0:
            message, size = Finished(0, [], [], [], []), 0
            while session.owed and size < SPLIT_BATCH_BYTES:
                task, _ = session.owed.popitem(last=False)
                result = client.retained.get(task)
                if result is not None:  # otherwise, the task runs again
                    message.ids.append(task)
                    message.outcomes.append(result.outcome)
                    message.payloads.append(result.payload)
                    message.duration_us.append(0)
                    size += len(result.payload) + _ROW_BYTES
            if message.ids:
                self._outbox.send_finished(client, message)
                session.awaited = message.number
            left -= size
