"""Durable sessions: clients whose tasks and results outlive their connection. Pure.

A durable session is a `ClientRecord` that stays when its client leaves. It is *detached* then: its tasks continue, and
their results are retained. A client with the same peer id, which follows from the names of the session and of the key,
continues it. Such a client has the futures of the tasks that it submits again, and of those that it asks for.

Laws: the result of a task is retained until its session is removed or expires; a task that succeeded never runs again;
every task of a session has a label, which counts in the account of its key. Results that a client asks for are sent
as fast as it acknowledges them: `MAX_REDELIVERED_BYTES` at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from scaler.ids import is_task, owner_of
from scaler.net.connection import TryAgain
from scaler.net.identity import Identity
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
from scaler.scheduler.core.durable import DurableSession, label_of, note_label
from scaler.scheduler.core.outbox import Outbox
from scaler.scheduler.core.state import TAKEOVER_SECONDS, ClientRecord, RetainedResult
from scaler.scheduler.core.tasks import Tasks

MAX_SESSIONS = 10_000
"""Durable sessions of one key."""
MAX_LABEL_BYTES = 2048
"""Of the name of a session, and of a key and a tag together."""
MAX_REDELIVERED_BYTES = 64 * 1024 * 1024
"""Of the results that a client has asked for and was sent, and has not acknowledged."""
_ROW_BYTES = 64
_MAX_ROWS = 4096
_GONE = b"its durable session does not have this task any more"

SessionMessage = messages.ListSessions | messages.ListSessionTasks | messages.EndSession


class Sessions:
    """The rules of durable sessions. retention_seconds: how long one that is not used is kept."""

    def __init__(self, state: ClusterState, tasks: Tasks, outbox: Outbox, retention_seconds: float) -> None:
        self._state = state
        self._tasks = tasks
        self._outbox = outbox
        self._retention_seconds = retention_seconds

    # -- clients come and go

    def refusal(
        self, peer: bytes, name: str, identity: Identity, now: float, *, is_its_own: bool
    ) -> Refused | TryAgain | None:
        """Return why a client may not use the session of this name, if it may not.

        is_its_own: it is the client that has the session, and its new connection came before its old one was seen to
        end.
        """
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
                text = f"MAX_SESSIONS is {MAX_SESSIONS}, and the key {identity.key} has as many: remove some"
                return Refused(RefusalReason.LIMIT, text)
            if name in names:
                return Refused(RefusalReason.DUPLICATE, f"session {name!r} exists, and has another peer id")
            return None
        if record.account.key != identity.key:
            return Refused(RefusalReason.LIMIT, f"the peer id {peer.hex()} is that of another client")
        used_by = "" if is_its_own else _user_of(record, now)
        if not used_by:
            return None
        if record.defends_its_name(now):
            return Refused(RefusalReason.DUPLICATE, used_by)
        # It may have ended while this process was stopped. If it lives, it is heard every two seconds.
        return TryAgain(used_by)

    def attach(self, client: ClientRecord, name: str, where: str, identity: Identity, now: float) -> ClientRecord:
        """Return the record of a session that a client continues; `client` itself when the session is new.

        where: host and pid of the client.
        """
        known = self._state.clients.get(client.id)
        if known is None or known.session is None:
            client.session = DurableSession(name, now)
        else:
            known.identity = identity
            known.note_connection(now, is_broken=False)
            client = known
        client.attach(where)
        self._state.data.tracker.replicas.durable.add(client.id)
        return client

    def detach(self, client: ClientRecord, now: float) -> None:
        """Note that the client of a session has left: what only it referred to is released."""
        client.detach(now)
        self._state.objects.unpin(client.id)

    def recover(self, client: ClientRecord, name: str, where: str, found: Recovered, now: float) -> None:
        """Make a session of a client that the journal has. where: host and pid of the client that used it."""
        client.is_recovered = False
        client.session = DurableSession(name, now, where, found.labels)
        client.account.size_bytes += client.session.size_bytes
        client.detach(now)
        self._state.data.tracker.replicas.durable.add(client.id)

    @staticmethod
    def end(client: ClientRecord) -> None:
        """Make a session a client like any other, which is about to be forgotten."""
        assert client.session is not None
        client.account.size_bytes -= client.session.size_bytes
        client.session = None

    def expired(self, now: float) -> list[ClientRecord]:
        """Return the sessions without a client and unfinished tasks that were not used for too long."""
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
        """Apply a client's message. Returns a session that is to be removed."""
        match message:
            case messages.ListSessions():
                rows = [self._row(each, now) for each in self._visible_to(client)]
                self._outbox.answer(client, messages.SessionsListed(rows, message.number))
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
        answer = messages.SessionTasks(asked.session, first, 0, [], [], [], [], [], asked.number)
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
            reply.error = "there is no such session"
        elif remove and found is not client and (used_by := _user_of(found, now)):
            reply.error = used_by
        else:
            reply.cancelled = len(found.tasks)
            self._tasks.cancel(found, list(found.tasks))
        self._outbox.send_to_client(client, reply)
        return found if remove and not reply.error else None

    # -- tasks that come again, and their results

    def make_way(self, client: ClientRecord, message: Submit) -> str:
        """Forget how tasks failed whose keys the user gives again, so that they run. Before the message is journaled.

        Returns what is wrong with the labels of the message, which are dropped then. While the disk takes no new
        tasks, nothing is forgotten.
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
                        continue  # it failed meanwhile, and its future takes what was sent before it was asked for
                if not label or result is None or message.again or result.outcome == Outcome.SUCCESS or result.uses:
                    continue
                if not is_full and label[0] and not self._collision(client, task, label[0]):
                    self._tasks.drop_results(client, [task])
        return wrong

    def repeated(self, client: ClientRecord, columns: TaskGroup, row: int) -> None:
        """Answer for a task that a session has: its client gets the result, now or when it ends."""
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
                self._state.objects.pin(reference, client.id)  # the client releases it, which forgets it

    @staticmethod
    def _collision(client: ClientRecord, task: bytes, key: bytes) -> str:
        """Return why a task cannot have this key, if it cannot: the digest of another key is its id, too."""
        assert client.session is not None
        known = client.session.labels[task].key
        if not key or known in (b"", key):
            return ""
        keys = " and ".join(repr(each.decode("utf-8", "replace")) for each in (known, key))
        return f"the keys {keys} have the same digest: change one of them"

    def redeliver(self, client: ClientRecord, ids: Iterable[bytes]) -> None:
        """Send the results of tasks that have ended; those of the others follow when they end."""
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
        """Send the next results that the client waits for, unless it has to acknowledge others first."""
        session, unacknowledged = client.session, client.unacknowledged
        if session is None or not session.owed or (unacknowledged and unacknowledged[0].number <= session.awaited):
            return
        left = MAX_REDELIVERED_BYTES
        while session.owed and left > 0:
            message, size = Finished(0, [], [], [], []), 0
            while session.owed and size < SPLIT_BATCH_BYTES:
                task, _ = session.owed.popitem(last=False)
                result = client.retained.get(task)
                if result is not None:  # else it runs again
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
    """Return by which client a session is in use, in words; empty when another one may continue or remove it."""
    session = record.session
    assert session is not None
    if record.is_detached or record.broken_at is not None or now - record.last_message_at >= TAKEOVER_SECONDS:
        return ""
    return f"session {session.name!r} is in use by {session.client}: end that client first"
