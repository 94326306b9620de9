"""Durable sessions: clients whose tasks and results outlive their connection. Pure.

A durable session is a `ClientRecord` that stays when its client leaves. It is *detached* then: its tasks continue, and
their results are retained. A client with the same peer id, which follows from the names of the session and of the key,
continues it. Such a client has the futures of the tasks that it submits again, and of those that it asks for.

Laws: the result of a task is retained until its session is removed or expires; a task that succeeded never runs again.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from scaler.ids import is_task
from scaler.net.identity import Identity
from scaler.protocol import messages
from scaler.protocol.messages import SPLIT_BATCH_BYTES, UNFINISHED, Finished, Outcome, RefusalReason, Refused
from scaler.scheduler.core.changes import Recovered
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.durable import DurableSession, Label
from scaler.scheduler.core.outbox import Outbox
from scaler.scheduler.core.state import ClientRecord, RetainedResult
from scaler.scheduler.core.tasks import Tasks

MAX_SESSIONS = 10_000
"""Durable sessions of all keys together."""
MAX_LABEL_BYTES = 1024
"""Of a key or a tag."""
TAKEOVER_SECONDS = 5.0
"""A client that was silent for this long may have ended without notice: another one may continue its session."""
_ROW_BYTES = 64
_MAX_ROWS = 4096
_GONE = RetainedResult(Outcome.OBJECT_LOST, b"its durable session does not have this task any more")

SessionMessage = (
    messages.LabelTasks | messages.Redeliver | messages.ListSessions | messages.ListSessionTasks | messages.EndSession
)


class Sessions:
    """The rules of durable sessions. retention_seconds: how long one that is not used is kept."""

    def __init__(self, state: ClusterState, tasks: Tasks, outbox: Outbox, retention_seconds: float) -> None:
        self._state = state
        self._tasks = tasks
        self._outbox = outbox
        self._retention_seconds = retention_seconds

    # -- clients come and go

    def refusal(self, peer: bytes, name: str, identity: Identity, now: float) -> Refused | None:
        """Return why a client may not use the session of this name, if it may not."""
        record = self._state.clients.get(peer)
        if record is None or record.session is None:
            named = [(each.session.name, each.account.key) for each in self._state.clients.values() if each.session]
            if len(named) >= MAX_SESSIONS:
                return Refused(RefusalReason.LIMIT, f"MAX_SESSIONS is {MAX_SESSIONS}, and there are as many sessions")
            if (name, identity.key) in named:
                return Refused(RefusalReason.DUPLICATE, f"session {name!r} exists, and has another peer id")
            return None
        if record.account.key != identity.key:
            return Refused(RefusalReason.LIMIT, f"the peer id {peer.hex()} is that of another client")
        silent = now - record.last_message_at
        if not record.is_detached and record.broken_at is None and silent < TAKEOVER_SECONDS:
            text = f"session {name!r} is in use by {record.session.client}: end that client first"
            return Refused(RefusalReason.DUPLICATE, text)
        return None

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
        return client

    def detach(self, client: ClientRecord, now: float) -> None:
        """Note that the client of a session has left: what only it referred to is released."""
        client.detach(now)
        self._state.objects.unpin(client.id)

    def recover(self, client: ClientRecord, name: str, where: str, found: Recovered, now: float) -> None:
        """Make a session of a client that the journal has. where: host and pid of the client that used it."""
        client.is_recovered = False
        labels = {task: Label(key, tag, function) for task, (function, key, tag) in found.labels.items()}
        client.session = DurableSession(name, now, where, labels)
        client.detach(now)

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
            case messages.LabelTasks():
                self._label(client, message)
            case messages.Redeliver(ids):
                self.redeliver(client, ids)
            case messages.ListSessions():
                rows = [self._row(each, now) for each in self._visible_to(client)]
                self._outbox.send_to_client(client, messages.SessionsListed(rows))
            case messages.ListSessionTasks(identifier, first):
                self._outbox.send_to_client(client, self._tasks_of(client, identifier, first))
            case messages.EndSession(identifier, remove):
                return self._end(client, identifier, remove)
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

    def _tasks_of(self, client: ClientRecord, identifier: bytes, first: int) -> messages.SessionTasks:
        found = self._session(client, identifier)
        answer = messages.SessionTasks(identifier, first, 0, [], [], [], [], [])
        if found is None or found.session is None:
            return answer
        labels = found.session.labels
        answer.total = len(labels)
        for task, label in islice(labels.items(), first, first + _MAX_ROWS):
            result = found.retained.get(task)
            answer.ids.append(task)
            answer.outcomes.append(UNFINISHED if result is None else result.outcome)
            answer.names.append(label.function.encode())
            answer.keys.append(label.key)
            answer.tags.append(label.tag)
        return answer

    def _end(self, client: ClientRecord, identifier: bytes, remove: bool) -> ClientRecord | None:
        found = self._session(client, identifier)
        reply = messages.SessionEnded(identifier, 0)
        if found is None or found.session is None:
            reply.error = "there is no such session"
        elif remove and not found.is_detached and found is not client:
            reply.error = f"session {found.session.name!r} is in use by {found.session.client}: end that client first"
        else:
            reply.cancelled = len(found.tasks)
            self._tasks.cancel(found, list(found.tasks))
        self._outbox.send_to_client(client, reply)
        return found if remove and not reply.error else None

    # -- keys and results

    def _label(self, client: ClientRecord, message: messages.LabelTasks) -> None:
        session = client.session
        if session is None:
            return
        for task, key, tag in zip(message.ids, message.keys, message.tags, strict=True):
            if not (task.startswith(client.id) and is_task(task)) or max(len(key), len(tag)) > MAX_LABEL_BYTES:
                continue
            label = session.labels.setdefault(task, Label())
            if label.key and label.key != key:
                text = f"the keys {label.key.decode()!r} and {key.decode()!r} have the same digest: change one of them"
                self._deliver(client, {task: RetainedResult(Outcome.REJECTED, text.encode())})
                continue
            label.key, label.tag = key, tag
            result = client.retained.get(task)
            if message.run_failed and result is not None and result.outcome != Outcome.SUCCESS and not result.uses:
                self._tasks.drop_result(client, task)

    def redeliver(self, client: ClientRecord, ids: Iterable[bytes]) -> None:
        """Send the results of tasks that have ended; those of the others follow when they end."""
        if client.session is not None:
            retained = client.retained
            self._deliver(client, {task: retained.get(task, _GONE) for task in ids if task not in client.tasks})

    def _deliver(self, client: ClientRecord, results: dict[bytes, RetainedResult]) -> None:
        message, size = Finished(0, [], [], [], []), 0
        for task, result in results.items():
            message.ids.append(task)
            message.outcomes.append(result.outcome)
            message.payloads.append(result.payload)
            message.duration_us.append(0)
            size += len(result.payload) + _ROW_BYTES
            if size > SPLIT_BATCH_BYTES:
                self._outbox.send_finished(client, message)
                message, size = Finished(0, [], [], [], []), 0
        if message.ids:
            self._outbox.send_finished(client, message)
