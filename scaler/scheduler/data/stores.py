"""Registry of stores and their messages. Pure.

Each store gets a unique number from 1 on; the object storage is number 0. If a worker names a store that has not
connected, the store gets its number at once and is *awaited* for one lease. A store that returns after it was given up
gets a new number, and its workers with it.

Invariants: nothing here has a cost until the first host store connects or a worker names one. A store's messages are
accepted only while it is connected.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from scaler.protocol import messages
from scaler.protocol.messages import ForgetOwner, HeartbeatEcho, Message, StoreAddress, StoreDetails, StoresChanged
from scaler.scheduler.core.accounts import Rules
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.directory import OBJECT_STORAGE, Directory
from scaler.scheduler.core.outbox import Outbox
from scaler.scheduler.core.recovery import RECOVERY_SECONDS
from scaler.scheduler.core.state import StoreRecord, Worker
from scaler.scheduler.data.tracker import Tracker

_BACKEND_PEER = bytes(8)


class HostStores:
    """Host stores and the object storage. Implements `core.cluster.Stores`."""

    _state: ClusterState
    _outbox: Outbox
    _lease_seconds: float
    """How long a store named by a worker is awaited."""
    _opens_at: float

    def __init__(self) -> None:
        self.tracker = Tracker(Directory())
        self._numbers: dict[bytes, int] = {}
        self._last_number = OBJECT_STORAGE
        self._awaited: dict[bytes, float] = {}
        self._used_by: dict[bytes, bytes] = {}
        self._backend: StoreAddress | None = None

    def bound(self, state: ClusterState, outbox: Outbox, config: Rules) -> None:
        self._state, self._outbox = state, outbox
        self._lease_seconds = config.worker_timeout_seconds
        self._opens_at = state.now + RECOVERY_SECONDS
        self.tracker.persisted.keeps_all = bool(config.state_directory)

    # -- stores and workers come and go

    def joined(self, peer: bytes, name: str, details: StoreDetails, now: float, *, is_back: bool) -> StoreRecord:
        """Add a store. is_back: an earlier scheduler knew the store, so more stores may reconnect."""
        number = self._number(peer, now)
        del self._awaited[peer]
        others = list(self._state.data.stores.values())
        record = self._state.data.stores[peer] = StoreRecord(peer, name, now, number, details)
        if is_back and now < self._opens_at:
            self.tracker.unknown_from = self._opens_at
            self.tracker.wake_by(self._opens_at)
        self.tracker.came(number)
        for worker, store in self._used_by.items():
            if store == peer:
                self._state.data.locality.use_store(self._state.workers[worker], number)
        mail = self.tracker.mail
        mail.send(number, StoresChanged(self._listed(others), []))
        for other in (OBJECT_STORAGE, *(each.number for each in others)):
            mail.send(other, StoresChanged([_address(record)], []))
        return record

    def left(self, record: StoreRecord) -> None:
        del self._state.data.stores[record.id]
        for other in (OBJECT_STORAGE, *(each.number for each in self._state.data.stores.values())):
            self.tracker.mail.send(other, StoresChanged([], [record.number]))
        self._forget(record.id, record.host)

    def use(self, worker: Worker, store: bytes, now: float) -> None:
        """Record the store of a worker's host; empty: the object storage."""
        if store:
            self._used_by[worker.id] = store
            self._state.data.locality.use_store(worker, self._number(store, now))
        else:
            self._used_by.pop(worker.id, None)
            self._state.data.locality.use_store(worker, OBJECT_STORAGE)

    def worker_left(self, worker: Worker) -> None:
        self._used_by.pop(worker.id, None)

    def storage_connected(self) -> None:
        """Forget objects and fetches of the object storage, which has opened a new session."""
        self._drop_backend()
        self.tracker.gone(OBJECT_STORAGE, is_back=True)
        if self._state.data.directory.is_used:
            self.tracker.mail.send(OBJECT_STORAGE, StoresChanged(self._listed(self._state.data.stores.values()), []))

    def _use_backend(self, url: str, key: bytes) -> None:
        """List the object storage's backend as a store, under a new number for each run."""
        self._drop_backend()
        self._last_number += 1
        self._state.data.directory.is_used = True
        self._backend = StoreAddress(self._last_number, _BACKEND_PEER, url, "", key)
        self.tracker.came(self._backend.number, is_backend=True)
        for record in self._state.data.stores.values():
            self.tracker.mail.send(record.number, StoresChanged([self._backend], []))
        self.tracker.mail.send(OBJECT_STORAGE, StoresChanged(self._listed(self._state.data.stores.values()), []))

    def _drop_backend(self) -> None:
        if self._backend is not None:
            self.tracker.gone(self._backend.number)
            for record in self._state.data.stores.values():
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
        """Return the number of a store. A new store is awaited from now on."""
        number = self._numbers.get(peer)
        if number is None:
            self._last_number += 1
            number = self._numbers[peer] = self._last_number
            self._state.data.directory.is_used = True
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

    def received(self, record: StoreRecord, message: Message) -> bool:
        """Process a store's message. Returns False if its type is not allowed."""
        match message:
            case messages.StoreReport(sent_at):
                record.report = message
                self._outbox.send(record.id, HeartbeatEcho(sent_at))
            case messages.Heartbeat():
                pass  # answered by the listener
            case _:
                return self.said(record.number, message)
        return True

    def said(self, store: int, message: Message) -> bool:
        """Process a message about objects from a store or the object storage. Returns False for any other message."""
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

    def forget_owner(self, owner: bytes) -> None:
        self.tracker.forget_owner(owner)
        for store in (OBJECT_STORAGE, *(each.number for each in self._state.data.stores.values())):
            self.tracker.mail.send(store, ForgetOwner(owner))


def _address(record: StoreRecord) -> StoreAddress:
    return StoreAddress(record.number, record.id, record.details.address, record.details.public_key)
