"""Durable sessions: clients whose tasks and results outlive their connection. Pure.

A durable session is a `ClientRecord` that stays *detached* when its client leaves: its tasks continue, and their
results are retained. A client with the same peer id, which is derived from the names of session and key, continues the
session. That client has futures for the tasks that it resubmits or requests.

Invariants: a task's result is retained until its session is removed or expires. A successful task never runs again.
Every task of a session has a label, which counts in the account of its key. Requested results are sent in portions of
`MAX_REDELIVERED_BYTES`, each after the previous one is acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from scaler.ids import is_task, owner_of
from scaler.net.connection import Identity, TryAgain
from scaler.protocol import messages
from scaler.protocol.messages import (
    SPLIT_BATCH_BYTES,
    UNFINISHED,
    Finished,
    Outcome,
    RefusalReason,
    Refused,
    Submit,
    TaskGroup,
)
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.commands import Recovered
from scaler.scheduler.core.outbox import Outbox
from scaler.scheduler.core.state import (
    TAKEOVER_SECONDS,
    ClientRecord,
    DurableSession,
    RetainedResult,
    label_of,
    note_label,
)
from scaler.scheduler.core.tasks import Tasks

MAX_SESSIONS = 10_000
MAX_LABEL_BYTES = 2048
"""Bytes of a session's name, and of a key and a tag together."""
MAX_REDELIVERED_BYTES = 64 * 1024 * 1024
"""Bytes of requested results that are sent before the client must acknowledge them."""
_ROW_BYTES = 64
_MAX_ROWS = 4096
_GONE = b"its durable session does not have this task any more"

SessionMessage = messages.ListSessions | messages.ListSessionTasks | messages.EndSession


class Sessions:
    """Rules of durable sessions. retention_seconds: how long an unused session is kept."""

    def __init__(self, state: ClusterState, tasks: Tasks, outbox: Outbox, retention_seconds: float) -> None:
        self._state = state
        self._tasks = tasks
        self._outbox = outbox
        self._retention_seconds = retention_seconds

    # -- clients come and go

    def refusal(
        self, peer: bytes, name: str, identity: Identity, now: float, *, is_its_own: bool
    ) -> Refused | TryAgain | None:
        """Return why a client may not use this session, or None. is_its_own: the client returns to its own session."""
        record = self._state.clients.get(peer)
        if record is None or record.session is None:
            names = [
                each.session.name
                for each in self._state.clients.values()
                if each.session and each.account.key == identity.key
            ]
            if len(name.encode()) > MAX_LABEL_BYTES:
                return Refused(RefusalReason.LIMIT, f"the name of a session has at most {MAX_LABEL_BYTES} bytes")
            if len(names) >= MAX_SESSIONS:
                text = f"MAX_SESSIONS is {MAX_SESSIONS}, and key {identity.key} has that many: remove some"
                return Refused(RefusalReason.LIMIT, text)
            if name in names:
                return Refused(RefusalReason.DUPLICATE, f"session {name!r} exists with another peer id")
            return None
        if record.account.key != identity.key:
            return Refused(RefusalReason.LIMIT, f"the peer id {peer.hex()} belongs to another client")
        used_by = "" if is_its_own else _user_of(record, now)
        if not used_by:
            return None
        if record.defends_its_name(now):
            return Refused(RefusalReason.DUPLICATE, used_by)
        # The user may have left while this process was suspended. A live user sends a message every two seconds.
        return TryAgain(used_by)

    def attach(self, client: ClientRecord, name: str, where: str, identity: Identity, now: float) -> ClientRecord:
        """Return the record of a continued session, or `client` for a new one. where: host and pid of the client."""
        known = self._state.clients.get(client.id)
        if known is None or known.session is None:
            client.session = DurableSession(name, now)
        else:
            known.identity = identity
            known.note_connection(now, is_broken=False)
            client = known
        client.attach(where)
        self._state.rooms.stores.persist_results_of(client.id)
        return client

    def detach(self, client: ClientRecord, now: float) -> None:
        client.detach(now)
        objects = self._state.objects
        for identifier in list(objects.pins.get(client.id, ())):  # tasks and retained results keep what they use
            objects.release(identifier, client.id)

    def recover(self, client: ClientRecord, name: str, where: str, found: Recovered, now: float) -> None:
        """Restore the session of a client from the journal. where: host and pid of its last user."""
        client.is_recovered = False
        client.session = DurableSession(name, now, where, found.labels)
        client.account.size_bytes += client.session.size_bytes
        client.detach(now)
        self._state.rooms.stores.persist_results_of(client.id)

    def expired(self, now: float) -> list[ClientRecord]:
        """Return the detached sessions without unfinished tasks that were unused for too long."""
        return [
            client
            for client in self._state.clients.values()
            if client.session is not None
            and client.is_detached
            and not client.tasks
            and now - client.session.used_at > self._retention_seconds
        ]

    # -- messages

    def received(self, client: ClientRecord, message: SessionMessage, now: float) -> ClientRecord | None:
        """Process a client's message. Returns a session to remove, if any."""
        match message:
            case messages.ListSessions():
                rows = [self._row(each, now) for each in self._visible_to(client)]
                self._outbox.answer(client, messages.SessionsListed(rows, number=message.number))
            case messages.ListSessionTasks():
                self._outbox.answer(client, self._tasks_of(client, message))
            case messages.EndSession():
                return self._end(client, message, now)
        return None

    def _visible_to(self, client: ClientRecord) -> Iterable[ClientRecord]:
        return (
            each
            for each in self._state.clients.values()
            if each.session is not None and client.identity.may_see(each.account.key)
        )

    def _session(self, client: ClientRecord, identifier: bytes) -> ClientRecord | None:
        return next((each for each in self._visible_to(client) if each.id == identifier), None)

    def _row(self, client: ClientRecord, now: float) -> messages.SessionRow:
        session = client.session
        assert session is not None
        results = client.retained.values()
        return messages.SessionRow(
            id=client.id,
            name=session.name,
            key=client.account.key,
            attached=not client.is_detached,
            client=session.client,
            unfinished=len(client.tasks),
            ended=len(results),
            failed=sum(result.outcome != Outcome.SUCCESS for result in results),
            size_bytes=sum(len(result.payload) for result in results)
            + sum(len(task.payload) for task in client.tasks.values()),
            idle_seconds=0.0 if not client.is_detached else max(0.0, now - session.used_at),
        )

    def _tasks_of(self, client: ClientRecord, asked: messages.ListSessionTasks) -> messages.SessionTasks:
        found, first = self._session(client, asked.session), asked.first
        answer = messages.SessionTasks(asked.session, first, 0, [], [], [], [], [], number=asked.number)
        if found is None or found.session is None:
            return answer
        labels = found.session.labels
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

    def _end(self, client: ClientRecord, asked: messages.EndSession, now: float) -> ClientRecord | None:
        found, remove = self._session(client, asked.session), asked.remove
        reply = messages.SessionEnded(asked.session, 0, number=asked.number)
        if found is None or found.session is None:
            reply.error = "no such session"
        elif remove and found is not client and (used_by := _user_of(found, now)):
            reply.error = used_by
        else:
            reply.cancelled = len(found.tasks)
            self._tasks.cancel(found, list(found.tasks))
        self._outbox.send_to_client(client, reply)
        return found if remove and not reply.error else None

    # -- tasks that come again, and their results

    def make_way(self, client: ClientRecord, message: Submit) -> str:
        """Drop failed results of tasks whose keys are submitted again, so that they rerun. Call before the message is
        journaled.

        Returns an error about the labels of the message, which are dropped in that case. Nothing is dropped while the
        journal accepts no new tasks.
        """
        assert client.session is not None
        wrong, is_full, unasked = "", bool(self._state.journal.failure), client.session.unasked
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
                        continue  # it failed just now, and its future takes the result already sent
                if not label or result is None or message.again or result.outcome == Outcome.SUCCESS or result.uses:
                    continue
                if not is_full and label[0] and not self._collision(client, task, label[0]):
                    self._tasks.drop_results(client, [task])
        return wrong

    def repeated(self, client: ClientRecord, columns: TaskGroup, row: int) -> None:
        """Answer a repeated task: its client gets the result now or when the task ends."""
        session, task = client.session, columns.ids[row]
        if session is None:
            return
        if collision := self._collision(client, task, label_of(columns, row)[0]):
            self._outbox.finish_unretained(client, [task], Outcome.REJECTED, collision.encode())
        else:
            client.account.size_bytes += note_label(session.labels, columns, row, runs=False)
            if task in client.retained:
                session.owed[task] = None
        for reference in columns.references[row] if columns.references else ():
            if owner_of(reference) == client.id and not is_task(reference):
                self._state.objects.pin(reference, client.id)  # released by the client

    @staticmethod
    def _collision(client: ClientRecord, task: bytes, key: bytes) -> str:
        assert client.session is not None
        known = client.session.labels[task].key
        if not key or known in (b"", key):
            return ""
        keys = " and ".join(repr(each.decode("utf-8", "replace")) for each in (known, key))
        return f"the keys {keys} have the same digest: change one of them"

    def redeliver(self, client: ClientRecord, ids: Iterable[bytes]) -> None:
        assert client.session is not None
        gone: list[bytes] = []
        for task in ids:
            if task in client.retained:
                client.session.owed[task] = None
            elif task not in client.tasks:
                gone.append(task)
        self._outbox.finish_unretained(client, gone, Outcome.OBJECT_LOST, _GONE)
        self.send_owed(client)

    def send_owed(self, client: ClientRecord) -> None:
        """Send the next requested results, unless the client must first acknowledge earlier ones."""
        session, unacknowledged = client.session, client.unacknowledged
        if session is None or not session.owed or (unacknowledged and unacknowledged[0].number <= session.awaited):
            return
        left = MAX_REDELIVERED_BYTES
        while session.owed and left > 0:
            message, size = Finished(0, [], [], [], []), 0
            while session.owed and size < SPLIT_BATCH_BYTES:
                task, _ = session.owed.popitem(last=False)
                result = client.retained.get(task)
                if result is not None:  # else the task runs again
                    _add(message, task, result)
                    size += len(result.payload) + _ROW_BYTES
            if message.ids:
                self._outbox.send_finished(client, message)
                session.awaited = message.number
            left -= size


def _add(message: Finished, task: bytes, result: RetainedResult) -> None:
    message.ids.append(task)
    message.outcomes.append(result.outcome)
    message.payloads.append(result.payload)
    message.duration_us.append(0)


def _user_of(record: ClientRecord, now: float) -> str:
    """Name the client that uses a session; empty if another client may take over or remove the session."""
    session = record.session
    assert session is not None
    if record.is_detached or record.broken_at is not None or now - record.last_message_at >= TAKEOVER_SECONDS:
        return ""
    return f"session {session.name!r} is in use by {session.client}: stop that client first"
