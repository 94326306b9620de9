"""The store of a host: a `StorageServer` connected to the scheduler, which assigns its fetches."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

from scaler.config.addresses import is_loopback
from scaler.config.servers import SecurityConfig
from scaler.config.values import Compression
from scaler.config.worker import WorkerConfig
from scaler.errors import RefusedError
from scaler.extensions.data_plane.host import place
from scaler.host import default_memory_limit_bytes
from scaler.ids import new_peer_id
from scaler.net.access import Access
from scaler.net.address import own_host
from scaler.net.connection import ConnectionRefused, ConnectorEvent, Identity, Received, Welcomed
from scaler.net.connector import SocketConnector
from scaler.net.keys import PeerKeys, ServerKeys
from scaler.net.server_access import ServerAccess
from scaler.net.versions import own_hello
from scaler.object_storage.client import StorageClient
from scaler.object_storage.commands import SchedulerOpened
from scaler.object_storage.messages import StoreAddress, StoreReport, StoresChanged
from scaler.object_storage.server import StorageServer, spill_space
from scaler.object_storage.spilling import StorageLimits
from scaler.object_storage.transfers import SOURCE_SECONDS
from scaler.protocol import messages as m
from scaler.registry import OwnFile
from scaler.security.keys import Entry, KeyPair, new_key_pair
from scaler.worker.credential import own_access

LINGER_SECONDS = 5.0
"""Seconds that a store outlives its last worker. A worker that starts within this time finds the objects."""
EVACUATE_SECONDS = 20.0
"""Maximum seconds that an exiting store spends moving sole copies to the object storage."""
REPORT_SECONDS = 2.0
LOOK_SECONDS = 0.25
_log = logging.getLogger(__name__)


class KnownStores:
    is_unreadable = False

    def __init__(self, object_storage_key: str) -> None:
        self._own = {object_storage_key: Entry("the object storage", m.Role.STORE.value)} if object_storage_key else {}
        self._entries: dict[str, Entry] = dict(self._own)

    def entries(self) -> Mapping[str, Entry]:
        return self._entries

    def refresh(self) -> None:
        """Do nothing: the scheduler reports changes."""

    def know(self, stores: Mapping[int, StoreAddress]) -> None:
        named = ((store.public_key, f"store-{number}") for number, store in stores.items())
        self._entries = self._own | {key: Entry(name, m.Role.STORE.value) for key, name in named if key}


class StoreServerAccess(ServerAccess):
    """Keys of a host's store: a new key pair for each run, and the known stores."""

    def __init__(self, pair: KeyPair | None, known: KnownStores, compression: Compression) -> None:
        config = SecurityConfig(insecure_no_auth=True, compression=compression)
        super().__init__(config, m.Server.OBJECT_STORAGE, [])
        self.keys = None if pair is None else ServerKeys(pair, known)


class HostStoreServer(StorageServer):
    """The store of a host, bound to the running loop. `ended` completes once the store is no longer needed."""

    def __init__(self, config: WorkerConfig) -> None:
        """Listen, and start connecting to the scheduler. Raises UsageError if this host has no address from which it
        can reach the scheduler."""
        self._config = config
        access = own_access(config)
        own = access.credential
        self._pair = None if config.insecure_no_auth else new_key_pair()
        self._known = KnownStores("" if own is None else own.object_storage_key)
        server_access = StoreServerAccess(self._pair, self._known, config.compression)
        address = f"tcp://{own_host(config.scheduler_address)}:0"
        limit_bytes = config.store_memory_limit_bytes or default_memory_limit_bytes() * 2 // 3
        super().__init__(
            address,
            StorageLimits(limit_bytes, memory_name="store_memory_limit_bytes"),
            access=server_access,
            spill=spill_space(config.store_spill_directory),
        )
        self._core.can_fetch = True
        self._storage_access = access
        self._object_storage_address = ""
        self.ended: asyncio.Future[int] = self._loop.create_future()
        self._left_alone_since = self._loop.time()
        self._had_workers = False
        self.peer = new_peer_id()
        public_key = "" if self._pair is None else self._pair.public
        # A scheduler at a loopback address on another host is behind a tunnel, as are the other stores.
        is_tunnelled = is_loopback(self.addresses[0]) and not config.host_name
        details = m.StoreDetails("" if is_tunnelled else self.addresses[0], public_key, limit_bytes)
        hello = own_hello(m.Role.STORE, details)
        hello = replace(hello, hostname=config.host_name or hello.hostname)
        self._to_scheduler = SocketConnector(
            config.scheduler_address, m.Server.SCHEDULER, access, hello, self._on_scheduler_events, peer=self.peer
        )
        self._report_seconds = REPORT_SECONDS
        self._report_at = self._loop.time() + REPORT_SECONDS
        self._look_timer = self._loop.call_later(LOOK_SECONDS, self._look)
        self.file: OwnFile | None = None
        """Receives the address once the scheduler has accepted this store."""

    def close(self) -> None:
        self._look_timer.cancel()
        self._to_scheduler.close("the store is exiting: its workers have left")
        super().close()

    async def evacuate(self) -> None:
        sole = self._core.sole()
        if sole and self._to_scheduler.connected:
            _log.info("putting objects that only this store has into the object storage: %d", len(sole))
            await asyncio.wait(self.transfers.push(sole), timeout=EVACUATE_SECONDS)

    def _admit(self, peer: bytes, hello: m.Hello, identity: Identity) -> m.Welcome | m.Refused:
        if hello.role not in {m.Role.WORKER, m.Role.STORE}:
            text = f"this is the object store of a host; {hello.role}s connect to the scheduler and the object storage"
            return m.Refused(m.RefusalReason.ROLE, text)
        return super()._admit(peer, hello, identity)

    def _on_scheduler_events(self, events: Sequence[ConnectorEvent]) -> None:
        for event in events:
            match event:
                case Welcomed(welcome):
                    self._report_seconds = min(REPORT_SECONDS, welcome.heartbeat_seconds)
                    self._object_storage_address = self._config.object_storage_address or welcome.object_storage_address
                    if self.file is not None:
                        running = place.RunningStore(self.addresses[0], self.peer.hex(), os.getpid())
                        place.publish(self.file, running)
                    self._on_events([SchedulerOpened()])
                case Received(_, message):
                    self._on_events([message])
                    if isinstance(message, StoresChanged):
                        self._known.know(self._core.exchange.stores)
                case ConnectionRefused(refused):
                    if not self.ended.done():
                        text = f"the scheduler refused the store of this host: {refused.text}"
                        self.ended.set_exception(RefusedError(text))

    def _tell_scheduler(self, message: m.Message) -> None:
        self._to_scheduler.send(message)

    def _connect_to_store(self, store: StoreAddress | None) -> StorageClient:
        access = self._storage_access
        address = self._object_storage_address
        if store is not None:
            keys = None if self._pair is None else PeerKeys(store.public_key, self._pair, "of this store")
            compression = self._storage_access.compression
            access = Access(is_insecure=keys is None, store_keys=keys, compression=compression)
            address = store.address
        return StorageClient(address, new_peer_id(), m.Role.STORE, access, timeout_seconds=SOURCE_SECONDS)

    def _look(self) -> None:
        if self.file is not None:
            self.file.refresh()
        now = self._loop.time()
        self._look_timer = self._loop.call_later(LOOK_SECONDS, self._look)
        if now >= self._report_at:
            self._report_at = now + self._report_seconds
            core, objects = self._core, self._core.objects
            figures = len(objects), objects.used_bytes, objects.spilling.used_bytes, core.hits, core.misses
            self._to_scheduler.send(StoreReport(now, *figures))
        if self._core.serves(m.Role.WORKER):
            self._left_alone_since, self._had_workers = now, True
            return
        is_left = now - self._left_alone_since >= LINGER_SECONDS
        if not self.ended.done() and (is_left or (self._had_workers and not self._to_scheduler.connected)):
            self.ended.set_result(0)
