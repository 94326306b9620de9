"""The object storage's shell: listener, core, and timers."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from hmac import compare_digest
from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_never

from scaler.component import Component, run_component
from scaler.config.addresses import beside
from scaler.config.servers import ObjectStorageServerConfig, SchedulerConfig, SecurityConfig, SpillConfig
from scaler.errors import UsageError
from scaler.host import default_memory_limit_bytes
from scaler.ids import is_cached, new_peer_id
from scaler.net.access import Access
from scaler.net.connection import Identity, Opened, Received
from scaler.net.keys import PeerKeys
from scaler.net.server_access import LOCAL_SECURITY, ServerAccess
from scaler.net.versions import check_versions
from scaler.net.wakeups import Wakeups
from scaler.object_storage import commands as c
from scaler.object_storage.body import write_segment
from scaler.object_storage.client import LoopThread, StorageClient
from scaler.object_storage.core import StorageCore
from scaler.object_storage.exchange import ChunkRun
from scaler.object_storage.messages import (
    ObjectsHeld,
    PushObjects,
    PutObject,
    StorageReply,
    StorageResult,
    StorageStatus,
    StoreAddress,
    UseBackend,
)
from scaler.object_storage.sending import MAX_UNACKNOWLEDGED_BYTES_PER_PEER
from scaler.object_storage.shared_memory import MIN_SHARED_BYTES, SharedMemory, max_memories
from scaler.object_storage.spilling import BodiesMoved, SpillBodies, StorageLimits
from scaler.object_storage.transfers import SOURCE_SECONDS, Transfers
from scaler.paths import local_path
from scaler.processes import give_memory_back
from scaler.protocol import messages as m
from scaler.protocol.chunks import LARGE_BYTES
from scaler.protocol.messages import Descriptor

if TYPE_CHECKING:
    from scaler.object_storage.backend.run import BackendRun
    from scaler.object_storage.durable import ObjectJournal


@dataclass(frozen=True, slots=True)
class SpillSpace:
    """A directory and the maximum bytes to write there; -1: no limit. limit_name: origin of the limit."""

    directory: str
    limit_bytes: int = -1
    limit_name: str = "spill_limit_bytes"

    @classmethod
    def of(cls, config: SpillConfig) -> SpillSpace | None:
        if not config.spill_directory:
            return None
        return cls(str(local_path(config.spill_directory)), config.spill_limit_bytes)

    def check_writable(self) -> None:
        """Raise UsageError if the directory is not writable. A full disk is not an error."""
        try:
            write_segment(self.directory, [[memoryview(b"x")]])
        except OSError as error:
            from scaler.journal.directory import DISK_IS_FULL  # noqa: PLC0415 (for failures only)

            if error.errno not in DISK_IS_FULL:
                advice = "set it to a writable directory"
                raise UsageError(f"spill_directory {self.directory}: {error.strerror}: {advice}") from None


AUTO = "auto"
FREE_SHARE = 0.5
"""Maximum share of a disk's free space that a store uses."""
_IN_MEMORY = frozenset({"tmpfs", "ramfs"})


def spill_space(directory: str) -> SpillSpace | None:
    """Return the space in this directory. None if there is no directory or, with a warning, if it is not writable."""
    if not directory:
        return None
    candidates = [tempfile.gettempdir(), "/var/tmp"] if directory == AUTO else [str(local_path(directory))]  # noqa: S108
    for each in candidates:
        if not os.access(each, os.W_OK | os.X_OK):
            text = "store_spill_directory=%s: cannot write there: objects that do not fit in memory wait and then fail"
            _log.warning(text, each)
        elif directory != AUTO or not _is_in_memory(each):
            limit_bytes = int(FREE_SHARE * shutil.disk_usage(each).free)
            return SpillSpace(each, limit_bytes, f"half of the free space in {each}")
    return None


def _is_in_memory(directory: str) -> bool:
    device = Path(directory).stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    with suppress(OSError), Path("/proc/self/mountinfo").open(encoding="utf-8", errors="replace") as mounts:
        for line in mounts:
            fields = line.split()
            if fields[2] == wanted:
                return fields[fields.index("-") + 1] in _IN_MEMORY
    return False


LEASE_SECONDS = 60.0
PUT_WAIT_SECONDS = 5.0
"""Maximum time for which a put waits for space. Gives objects time to be freed or spilled, and throttles producers."""
HEARTBEAT_SECONDS = 2.0
TRIM_BYTES = 64 * 1024 * 1024
TRIM_SECONDS = 1.0
"""Seconds from freeing TRIM_BYTES to returning the memory to the system."""

_log = logging.getLogger(__name__)


class StorageServer:
    """One object storage on the running loop."""

    def __init__(
        self,
        address: str,
        limits: StorageLimits,
        spill: SpillSpace | None = None,
        *,
        security: SecurityConfig = LOCAL_SECURITY,
        state_directory: str = "",
        access: ServerAccess | None = None,
        backend: BackendRun | None = None,
    ) -> None:
        """Bind the address. Raises UsageError if that fails or a directory is not writable.

        spill: disk space for objects that do not fit into memory, or None. state_directory: objects are persisted in
        its subdirectory `objects`; empty: not persisted. access: for servers other than the object storage itself.
        backend: receives copies of large objects."""
        self._loop = asyncio.get_running_loop()
        self._incarnation = int.from_bytes(os.urandom(7), "big")
        self._core = StorageCore(
            limits if spill is None else limits._replace(spill_bytes=spill.limit_bytes, spill_name=spill.limit_name),
            outbox_bytes=lambda peer: self._listener.outbox_bytes(peer),  # noqa: PLW0108 (made below)
            lease_seconds=LEASE_SECONDS,
            tick_seconds=HEARTBEAT_SECONDS,
            put_wait_seconds=PUT_WAIT_SECONDS,
            is_durable=bool(state_directory),
        )
        self._backend = backend
        if backend is not None:
            self._core.backend_held = backend.held
            backend.begin(lambda rows: self._on_events([c.WrittenToBackend(rows)]))
        self._spill_directory = "" if spill is None else spill.directory
        if spill is not None:
            spill.check_writable()
        self._disk_thread = ThreadPoolExecutor(1, "spill")
        self._durable = self._open_journal(state_directory) if state_directory else None
        self.transfers = Transfers(self._core, self._on_events, self._connect_to_store)
        self._scheduler, self._epoch = b"", 0
        self._wakeups = Wakeups(self._loop, lambda: self._on_events(()))
        self._peak_bytes = 0
        self._trim: asyncio.TimerHandle | None = None
        self._memory_count = self._memory_bytes = 0
        self._max_memories = max_memories()
        # Slow readers keep the memory of released objects alive until they have received the descriptors.
        limit = math.inf if limits.memory_bytes < 0 else limits.memory_bytes
        self._max_memory_bytes = limit + MAX_UNACKNOWLEDGED_BYTES_PER_PEER
        self._access = access or ServerAccess(security, m.Server.OBJECT_STORAGE, [address])
        self._listener = self._access.listen(address, self._admit, self._on_events)

    def _open_journal(self, state_directory: str) -> ObjectJournal:
        from scaler.object_storage.durable import ObjectJournal  # noqa: PLC0415 (for durable storages only)

        journal = ObjectJournal(
            local_path(state_directory) / "objects",
            on_stored=lambda peer, request: self._listener.send(peer, StorageReply(request, StorageResult.OK)),
            on_lost=lambda *lost: self._on_events((c.ObjectNotPersisted(*lost),)),
            on_failure=partial(setattr, self._core.objects, "disk_failure"),
        )
        for found, body in journal.recover():
            self._core.restore(found.id, body, found.key)
            if self._backend is not None and body.size_bytes >= LARGE_BYTES and not is_cached(found.id):
                self._backend.write(found.id, body)
        return journal

    @property
    def addresses(self) -> tuple[str, ...]:
        return self._listener.addresses

    def close(self) -> None:
        if self._trim is not None:
            self._trim.cancel()
        if self._durable is not None:
            self._durable.close()
        self.transfers.close()
        self._listener.close()
        self._access.close()
        self._disk_thread.shutdown()
        self._wakeups.close()
        del self._core  # frees the objects without waiting for the garbage collector

    def _admit(self, peer: bytes, hello: m.Hello, identity: Identity) -> m.Welcome | m.Refused:
        if hello.details is not None or hello.role is m.Role.MONITOR:
            # Peers that send role details expect the scheduler, whose port is adjacent.
            text = f"this is an object storage's address; {hello.role}s connect to the scheduler's"
            return m.Refused(m.RefusalReason.ROLE, text)
        refused = check_versions(hello)
        if refused is not None:
            return refused
        if hello.role is m.Role.SCHEDULER and hello.epoch != self._epoch:
            replaced = m.Refused(m.RefusalReason.STANDBY, "a scheduler with a later epoch uses this object storage")
            if hello.epoch < self._epoch:
                return replaced
            self._epoch = hello.epoch
            self._listener.forget(self._scheduler, replaced)
        if hello.role is m.Role.CLIENT and identity.has_key:
            token = self._access.owner_token(peer)
            if not token or not compare_digest(hello.owner_token, token):
                text = (
                    f"the scheduler does not know key {identity.key} as {peer.hex()}: do scheduler and "
                    "object storage use the same keys directory?"
                )
                return m.Refused(m.RefusalReason.CREDENTIAL, text)
            if self._core.key_of(peer) not in {"", identity.key}:
                text = f"the key {identity.key} claims the peer id {peer.hex()}, which owns objects under another key"
                return m.Refused(m.RefusalReason.DUPLICATE, text)
        return m.Welcome(False, self._incarnation, LEASE_SECONDS, HEARTBEAT_SECONDS)

    def _on_events(self, events: Sequence[c.StorageInput]) -> None:
        for command in self._core.step([self._prepared(event) for event in events], self._loop.time()):
            self._perform(command)
        for event in events:
            match event:
                case PushObjects(ids) | Received(_, PushObjects(ids)):
                    self.transfers.push(ids)
                case Received(_, ObjectsHeld() as held) if self._backend is not None:
                    self._backend.add(zip(held.ids, held.sizes, strict=True))
                    self._backend.forget(filter(self._core.objects.is_forgotten, held.ids))
        self.transfers.close_gone()
        self._wakeups.at(self._core.wake_at)
        used_bytes = self._core.objects.used_bytes
        self._peak_bytes = max(self._peak_bytes, used_bytes)
        if self._peak_bytes - used_bytes >= TRIM_BYTES and self._trim is None:
            self._trim = self._loop.call_later(TRIM_SECONDS, self._return_memory)

    def _perform(self, command: c.StorageCommand) -> None:
        match command:
            case c.SendToScheduler(message):
                self._tell_scheduler(message)
            case ChunkRun():
                self.transfers.get(command)
            case c.WriteToBackend(object_id, body) if self._backend is not None:
                self._backend.write(object_id, body)
            case c.ForgetInBackend(ids, owner) if self._backend is not None:
                self._backend.forget(ids, owner)
            case c.SendToPeer(peer, StorageStatus() as status) if self._durable is not None:
                failure = status.disk_failure or self._durable.why_refused()
                status = replace(status, state_bytes=self._durable.size_bytes, disk_failure=failure)
                self._listener.send(peer, status)
            case c.SendToPeer(peer, message, attachments, memory):
                self._listener.send(peer, message, attachments, () if memory is None else (memory,))
            case c.PersistObject() if self._durable is not None:
                self._durable.put(command)
            case c.ForgetPersisted() if self._durable is not None:
                self._durable.forget(command)
            case c.ExpirePeer(peer, text):
                if text:
                    _log.warning("peer %s: %s", peer.hex(), text)
                self._listener.forget(peer, m.Refused(m.RefusalReason.EXPIRED, text))
            case SpillBodies():
                self._spill(command)
            case c.PersistObject() | c.ForgetPersisted() | c.WriteToBackend() | c.ForgetInBackend():
                raise AssertionError("the core was told that no disk and no backend stores its objects")
            case _:
                assert_never(command)

    def _tell_scheduler(self, message: m.Message) -> None:
        self._listener.send(self._scheduler, message)

    def _connect_to_store(self, store: StoreAddress | None) -> StorageClient:
        assert store is not None, "a store does not fetch from itself"
        keys = self._access.keys
        own = None if keys is None else PeerKeys(store.public_key, keys.pair, "the object storage")
        store_keys = own if store.public_key else None
        access = Access(is_insecure=store_keys is None, store_keys=store_keys)
        return StorageClient(store.address, new_peer_id(), m.Role.STORE, access, timeout_seconds=SOURCE_SECONDS)

    def _return_memory(self) -> None:
        self._trim = None
        self._peak_bytes = self._core.objects.used_bytes
        self._loop.run_in_executor(self._disk_thread, give_memory_back)

    def _spill(self, command: SpillBodies) -> None:
        written = self._loop.run_in_executor(self._disk_thread, write_segment, self._spill_directory, command.frames)

        def ended(future: asyncio.Future[list[list[memoryview]]]) -> None:
            if future.cancelled() or not hasattr(self, "_core"):
                return  # closed
            error = future.exception()
            if error is not None:
                _log.warning("objects stay in memory: cannot write to %s: %s", self._spill_directory, error)
            failure = "" if error is None else str(error)
            self._on_events([BodiesMoved(command.bodies, [] if error else future.result(), failure)])

        written.add_done_callback(ended)

    def _prepared(self, event: c.StorageInput) -> c.StorageInput:
        match event:
            case Received(peer, PutObject(shared=True) as put, _, descriptors):
                return c.ReceivedMemory(peer, put, memory=self._memory(descriptors, put.parts))
            case Opened(peer, m.Hello(role=m.Role.SCHEDULER)):
                self._scheduler = peer
                if self._backend is not None:
                    self._tell_scheduler(UseBackend(self._backend.url, self._backend.key))
        return event

    def _memory(self, descriptors: Sequence[Descriptor], sizes: Sequence[int]) -> SharedMemory | None:
        size = sum(sizes)
        is_full = self._memory_count >= self._max_memories or self._memory_bytes + size > self._max_memory_bytes
        if len(descriptors) != 1 or size < MIN_SHARED_BYTES or is_full:
            return None
        try:
            memory = SharedMemory(descriptors[0], sizes)
        except ValueError:
            return None
        self._count_memory(1, size)
        weakref.finalize(memory, self._count_memory, -1, -size).atexit = False
        return memory

    def _count_memory(self, count: int, size_bytes: int) -> None:
        self._memory_count += count
        self._memory_bytes += size_bytes


class EmbeddedStorage(LoopThread[StorageServer]):
    """An object storage in a thread of this process, until `close`. memory_limit_bytes: default half of the memory.
    settings: see `StorageServer`. Raises UsageError."""

    def __init__(self, bind_address: str, memory_limit_bytes: int | None = None, **settings: Any) -> None:
        limits = StorageLimits(default_memory_limit_bytes() if memory_limit_bytes is None else memory_limit_bytes)
        super().__init__("object storage", lambda: StorageServer(bind_address, limits, **settings))
        self.address = self.value.addresses[0]


def embed(config: SchedulerConfig) -> EmbeddedStorage:
    """Return the object storage of a scheduler without a separate one. Raises UsageError."""
    try:
        address, spill = beside(config.bind_address, 1, ".storage"), SpillSpace.of(config)
        return EmbeddedStorage(address, spill=spill, security=config, state_directory=config.state_directory)
    except UsageError as error:
        raise UsageError(f"the object storage inside this scheduler: {error}") from error


def run(config: ObjectStorageServerConfig) -> int:
    """Run an object storage until the process is asked to exit. Returns the exit code."""

    async def main(component: Component) -> int:
        backend = None
        if config.backend:
            from scaler.object_storage.backend.run import BackendRun  # noqa: PLC0415 (needed with a backend only)

            backend = BackendRun(config.backend)
        server = StorageServer(
            config.bind_address,
            StorageLimits(config.memory_limit_bytes, config.max_object_bytes, config.cache_limit_bytes),
            SpillSpace.of(config),
            security=config,
            state_directory=config.state_directory,
            backend=backend,
        )
        component.ready({"object storage": server.addresses[0]})
        await component.stop.wait()
        server.close()
        if backend is not None:
            await backend.end()
        return 0

    return run_component("object_storage_server", config, main)
