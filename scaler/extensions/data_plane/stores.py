"""Registry of stores and their messages. Pure.

Each store gets a unique number from 1 on; the object storage is number 0. If a worker names a store that has not
connected, the store gets its number at once and is *awaited* for one lease. A store that returns after this time gets
a new number, as do its workers.

Invariants: the registry costs nothing until the first host store connects or is named by a worker. A store's messages
are accepted only while it is connected."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from scaler.capabilities import bytes_text
from scaler.extensions.data_plane.directory import OBJECT_STORAGE, Directory
from scaler.extensions.data_plane.locality import Locality
from scaler.extensions.data_plane.tracker import Tracker
from scaler.extensions.data_plane.transfer import Moved
from scaler.grammar import listed
from scaler.ids import is_task
from scaler.object_storage import messages
from scaler.object_storage.messages import StoreAddress, StoreReport, StoresChanged
from scaler.protocol import messages as m
from scaler.protocol.messages import ForgetOwner, HeartbeatEcho, Message, StoreDetails, is_stored
from scaler.scheduler.core.accounts import Rules
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.commands import Command, Send, SendToStorage
from scaler.scheduler.core.durability import RECOVERY_SECONDS
from scaler.scheduler.core.outbox import Outbox
from scaler.scheduler.core.state import PeerRecord, Task, Worker

_BACKEND_PEER = bytes(8)
MAX_NAMED = 3


@dataclass(slots=True, eq=False)
class StoreRecord(PeerRecord):
    """The store of a host."""

    role = "store"
    number: int
    details: StoreDetails
    report: StoreReport | None = None

    @property
    def host(self) -> str:
        return self.name.rpartition("|")[0]


class HostStores(Locality):
    """Host stores and the object storage."""

    refusal = ""
    records: dict[bytes, StoreRecord]
    _state: ClusterState
    _outbox: Outbox
    _lease_seconds: float
    """Maximum wait for a store that a worker has named."""
    _opens_at: float

    def __init__(self) -> None:
        directory, moved = Directory(), Moved()
        super().__init__(directory, moved.rate)
        self.tracker = Tracker(directory, moved, self.timer)
        self.mail = self.tracker.mail.messages
        self._numbers: dict[bytes, int] = {}
        self._last_number = OBJECT_STORAGE
        self._awaited: dict[bytes, float] = {}
        self._used_by: dict[bytes, bytes] = {}
        self._backend: StoreAddress | None = None

    def bound(self, state: ClusterState, outbox: Outbox, config: Rules) -> None:
        super().bound(state, outbox, config)
        self._state, self._outbox = state, outbox
        self._lease_seconds = config.worker_timeout_seconds
        self._opens_at = state.now + RECOVERY_SECONDS
        self.tracker.persisted.keeps_all = bool(config.state_directory)

    # -- arrivals and departures

    def joined(
        self, peer: bytes, name: str, details: StoreDetails, now: float, gone: Iterable[bytes], *, is_back: bool
    ) -> StoreRecord:
        number = self._number(peer, now)
        del self._awaited[peer]
        others = list(self.records.values())
        record = self.records[peer] = StoreRecord(peer, name, now, number, details)
        if is_back and now < self._opens_at:  # more stores may reconnect
            self.tracker.unknown_from = self._opens_at
            self.tracker.wake_by(self._opens_at)
        self.tracker.came(number)
        for worker, store in self._used_by.items():
            if store == peer:
                self.use_store(self._state.workers[worker], number)
        mail = self.tracker.mail
        mail.send(number, StoresChanged(self._listed(others), []))
        for other in (OBJECT_STORAGE, *(each.number for each in others)):
            mail.send(other, StoresChanged([_address(record)], []))
        for owner in gone:
            mail.send(number, ForgetOwner(owner))
        return record

    def left(self, record: PeerRecord) -> None:
        store = self.records.pop(record.id)
        for other in (OBJECT_STORAGE, *(each.number for each in self.records.values())):
            self.tracker.mail.send(other, StoresChanged([], [store.number]))
        self._forget(store.id, store.host)

    def use(self, worker: Worker, store: bytes, now: float) -> None:
        if store:
            self._used_by[worker.id] = store
            self.use_store(worker, self._number(store, now))
        else:
            self._used_by.pop(worker.id, None)
            self.use_store(worker, OBJECT_STORAGE)

    def forget_worker(self, worker: Worker) -> None:
        super().forget_worker(worker)
        self._used_by.pop(worker.id, None)

    def storage_connected(self, gone: Iterable[bytes]) -> None:
        """Remove the object storage's objects and fetches."""
        self._drop_backend()
        self.tracker.gone(OBJECT_STORAGE, is_back=True)
        if self.is_used:
            self.tracker.mail.send(OBJECT_STORAGE, StoresChanged(self._listed(self.records.values()), []))
        for owner in gone:
            self.tracker.mail.send(OBJECT_STORAGE, ForgetOwner(owner))

    def _use_backend(self, url: str, key: bytes) -> None:
        """List the object storage's backend as a store, under a new number for each run."""
        self._drop_backend()
        self._last_number += 1
        self.is_used = True
        self._backend = StoreAddress(self._last_number, _BACKEND_PEER, url, "", key)
        self.tracker.came(self._backend.number, is_backend=True)
        for record in self.records.values():
            self.tracker.mail.send(record.number, StoresChanged([self._backend], []))
        self.tracker.mail.send(OBJECT_STORAGE, StoresChanged(self._listed(self.records.values()), []))

    def _drop_backend(self) -> None:
        if self._backend is not None:
            self.tracker.gone(self._backend.number)
            for record in self.records.values():
                self.tracker.mail.send(record.number, StoresChanged([], [self._backend.number]))
            self._backend = None

    def _listed(self, records: Iterable[StoreRecord]) -> list[StoreAddress]:
        backend = [] if self._backend is None else [self._backend]
        return [*map(_address, records), *backend]

    def _held(self, store: int, message: messages.ObjectsHeld) -> None:
        holder: int | None = store
        if message.in_backend:
            holder = self.tracker.backend
            if store != OBJECT_STORAGE:
                self.tracker.mail.send(OBJECT_STORAGE, message)
        if holder is not None:
            for identifier, size_bytes in zip(message.ids, message.sizes, strict=True):
                self.tracker.held(holder, identifier, size_bytes)

    def _number(self, peer: bytes, now: float) -> int:
        """Return the number of a store. A store that has not connected is awaited from then on."""
        number = self._numbers.get(peer)
        if number is None:
            self._last_number += 1
            number = self._numbers[peer] = self._last_number
            self.is_used = True
            self.tracker.awaited.add(number)
            self._awaited[peer] = now + self._lease_seconds
            self.tracker.wake_by(self._awaited[peer])
        return number

    def _forget(self, peer: bytes, host: str = "") -> None:
        self.tracker.gone(self._numbers.pop(peer), host)

    def tick(self, now: float) -> None:
        """Give up stores that were awaited for too long, and run the tracker's sweep."""
        for peer in [peer for peer, until in self._awaited.items() if until <= now]:
            del self._awaited[peer]
            self._forget(peer)
        self.tracker.sweep()
        self.tracker.wake_by(min(self._awaited.values(), default=math.inf))

    # -- messages

    def received(self, record: PeerRecord, message: Message) -> bool:
        store = self.records[record.id]
        match message:
            case messages.StoreReport(sent_at):
                store.report = message
                self._outbox.send(record.id, HeartbeatEcho(sent_at))
            case m.Heartbeat():
                pass  # answered by the listener
            case _:
                return self._said(store.number, message)
        return True

    def storage_said(self, message: Message) -> None:
        self._said(OBJECT_STORAGE, message)

    def _said(self, store: int, message: Message) -> bool:
        tracker = self.tracker
        match message:
            case messages.ObjectsHeld():
                self._held(store, message)
            case messages.UseBackend(url, key):
                self._use_backend(url, key)
            case messages.ObjectsDropped(ids):
                for identifier in ids:
                    tracker.dropped(store, identifier)
            case messages.ObjectsWanted(ids):
                tracker.wanted(store, ids)
            case messages.ObjectsUnwanted(ids):
                tracker.unwanted(store, ids)
            case messages.ChunksFetched(ids, firsts, counts, sizes):
                for row in zip(ids, firsts, counts, sizes, strict=True):
                    tracker.fetched(store, *row)
            case messages.FetchesFailed(ids, firsts, sources, unreachable):
                for identifier, first, source, flag in zip(ids, firsts, sources, unreachable, strict=True):
                    tracker.failed(store, identifier, first, source, is_unreachable=flag)
            case _:
                return False
        return True

    # -- objects

    def stored(self, identifier: bytes, size_bytes: int, worker: Worker, function: str = "") -> None:
        self.tracker.stored(identifier, size_bytes, self.store_of[worker], function)

    def restored(self, identifier: bytes) -> None:
        if self.is_used:
            self.tracker.restored(identifier)

    def forget(self, identifiers: list[bytes]) -> None:
        self.tracker.forget(identifiers)

    def forget_owner(self, owner: bytes) -> None:
        self.tracker.forget_owner(owner)
        for store in (OBJECT_STORAGE, *(each.number for each in self.records.values())):
            self.tracker.mail.send(store, ForgetOwner(owner))

    def persist(self, identifier: bytes) -> None:
        self.tracker.persisted.add(identifier)

    def persist_results_of(self, client: bytes) -> None:
        self.tracker.persisted.durable.add(client)

    def size_of(self, identifier: bytes) -> int:
        copies = self.directory.find(identifier)
        return 0 if copies is None else copies.size_bytes

    def lost_with(self, identifier: bytes) -> str:
        return self.directory.lost.get(identifier, "")

    def take_messages(self) -> list[Command]:
        peers = {record.number: record.id for record in self.records.values()}
        return [
            Send(peers[store], message) if store in peers else SendToStorage(message)
            for store, message in self.tracker.take()
        ]

    def fetching(self, task: Task, worker: Worker) -> str:
        link = self.tracker.links.get(self.store_of[worker]) if self.is_used else None
        if link is None:
            return ""
        retained = task.group.client.retained
        payloads = [retained[each].payload for each in task.references if is_task(each) and each in retained]
        named = [each[1:17] for each in (task.payload, *payloads) if is_stored(each)]
        fetch = next((link.fetches[each] for each in (*task.references, *named) if each in link.fetches), None)
        if fetch is None:
            return ""
        transfer = fetch.transfer
        hosts = {record.number: f"host {record.host}" for record in self.records.values()}
        if self.tracker.backend is not None:
            hosts[self.tracker.backend] = "the backend of the object storage"
        size = f"{bytes_text(transfer.size_bytes)} of input" if transfer.size_bytes else "an input"
        sources = [hosts.get(run.source, "the object storage") for run in fetch.runs]
        if sources:
            part = 100 * fetch.have.bit_count() // len(transfer.counts)
            return f"{size} from {listed(list(dict.fromkeys(sources)), MAX_NAMED)}, {part} % received"
        if transfer.pushed_by is not None:
            pushing = hosts[transfer.pushed_by]
            return f"{size}, through the object storage, because it cannot reach {pushing}"
        return f"{size}, until a store that has it is free or reconnects"


def _address(record: StoreRecord) -> StoreAddress:
    return StoreAddress(record.number, record.id, record.details.address, record.details.public_key)
