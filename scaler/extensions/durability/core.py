"""Durability inside the scheduler core. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, assert_never

from scaler.extensions.durability import DurabilitySettings
from scaler.extensions.durability.ledger import KINDS, ClientsGone, JournalChanged, Journaled, Recovered
from scaler.extensions.durability.recovery import Recovery
from scaler.extensions.durability.sessions import Label, Sessions
from scaler.extensions.interface import SchedulerPart
from scaler.net.connection import Identity
from scaler.protocol.messages import ClientDetails, Hello, Notice, Outcome, Role, is_stored
from scaler.scheduler.core.accounts import ENTRY_BYTES
from scaler.scheduler.core.changes import Dropped, peer_incident
from scaler.scheduler.core.cluster import MAX_LABEL
from scaler.scheduler.core.commands import Command, Perform
from scaler.scheduler.core.rooms import Now
from scaler.scheduler.core.state import ClientRecord, RetainedResult

EXPIRY_SECONDS = 1.0
MAX_REFUSED_KEPT = 10_000
"""Maximum number of refused tasks kept for all clients. A client may reference one before receiving the refusal."""


class DurabilityPart(SchedulerPart):
    def __init__(self, config: Any = None) -> None:
        is_journaled = bool(config and config.state_directory)
        config = config or DurabilitySettings()
        self._core = DurabilityCore(config.session_retention_seconds, is_journaled=is_journaled)

    def durability(self) -> DurabilityCore:
        return self._core


class DurabilityCore(Recovery, Sessions):
    inputs = Recovered, ClientsGone, JournalChanged, Label

    def __init__(self, retention_seconds: float, *, is_journaled: bool) -> None:
        super().__init__()
        self.retention_seconds = retention_seconds
        self.changes = KINDS if is_journaled else ()
        self.sessions = {}
        self.refused: dict[bytes, RetainedResult] = {}
        self.next_at = 0.0

    def tick(self, now: float) -> None:
        self.expire(now)
        super().tick(now)
        if self.sessions:
            self.next_at = min(self.next_at, now + EXPIRY_SECONDS)

    def attach(self, client: ClientRecord, name: str, where: str, identity: Identity, now: float) -> ClientRecord:
        self.next_at = min(self.next_at, now + EXPIRY_SECONDS)
        return super().attach(client, name, where, identity, now)

    # -- the journal

    def on_changes(self, changes: Sequence[Journaled], _now: Now) -> Iterable[Command]:
        """Return one record for `steps` to write, with consecutive Dropped changes merged."""
        record: list[Journaled] = []
        dropped: list[bytes] | None = None
        for change in changes:
            if not isinstance(change, Dropped):
                record.append(change)
                dropped = None
            elif dropped is None:
                record.append(Dropped(dropped := [*change.ids]))
            else:
                dropped += change.ids
        return [Perform("durability", record)]

    def said(self, item: Recovered | ClientsGone | JournalChanged, now: float) -> None:
        match item:
            case Recovered():
                self._recover(item, now)
            case ClientsGone(ids):
                for gone in ids:
                    self._core.forget_owner(gone)
            case JournalChanged():
                if item.is_stuck and not self.is_stuck:
                    for client in self._state.clients.values():
                        if client.via is None:
                            self._outbox.answer(client, Notice(item.failure))
                self.failure, self.is_stuck = item
            case _:
                assert_never(item)

    def refuse(self, client: ClientRecord, function: str, ids: list[bytes]) -> None:
        """Answer new tasks at once, without retaining them."""
        text = self.failure.encode()
        self._finish_unretained(client, ids, Outcome.REJECTED, text)
        for identifier in ids:
            self.refused[identifier] = RetainedResult(Outcome.REJECTED, text)
            self.refused[identifier].failed_input = function, identifier
        while len(self.refused) > MAX_REFUSED_KEPT:
            del self.refused[next(iter(self.refused))]

    # -- clients in the journal

    def _recover(self, found: Recovered, now: float) -> None:
        """Restore a client from the journal. The client may reconnect until its lease ends."""
        details, hello = found.hello.details, found.hello
        title = details.name if isinstance(details, ClientDetails) else ""
        name = title or f"{hello.hostname[:MAX_LABEL]}|{hello.pid}"
        client = ClientRecord(found.client, name, now, None, found.identity)
        client.is_absent = True
        self._core.client_joined(client, self._state.accounts.joined(client.id, found.identity.key))
        self._restore_results(client, found)
        if isinstance(details, ClientDetails) and details.session:
            self.restore(client, details.session, found.labels, now)
        again = self.recovered(client, found.dispatched)
        self._core.submission.submit(client, replace(found.submit, again=again))
        if found.cancelled:
            self._core.tasks.cancel(client, found.cancelled)

    def _restore_results(self, client: ClientRecord, found: Recovered) -> None:
        for message in found.results:
            client.number += 1
            message.number = client.number
            client.unacknowledged.append(message)
            for identifier, outcome, delivered in zip(message.ids, message.outcomes, message.payloads, strict=True):
                payload = found.values.get(identifier, delivered)
                retained = client.retained[identifier] = RetainedResult(outcome, payload)
                client.account.size_bytes += ENTRY_BYTES + len(payload)
                if outcome:
                    retained.failed_input = found.failed_inputs[identifier]
                if is_stored(payload):
                    self._state.objects.use(payload[1:17], pinned=identifier not in found.values)

    def returned(self, peer: bytes, hello: Hello, identity: Identity, now: float) -> bool:
        """Attach a returning client to its record from the journal. Returns False if it has no record."""
        client = self._state.clients.get(peer)
        is_recovered = client is not None and client.is_absent and not client.is_durable
        if client is None or not is_recovered or client.account.key != identity.key:
            return False
        client.is_absent = False
        client.identity = identity._replace(is_admin=hello.role is Role.ADMIN)
        client.last_message_at = now
        self._state.accounts.opened(peer, identity, now)
        self._core.came_back(client)
        for message in client.unacknowledged:  # may not have arrived earlier
            self._outbox.send_to_client(client, message)
        self._state.changes.pass_on(peer_incident("joined", client))
        return True
