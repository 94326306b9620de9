"""The agent's connection to its host's store: finds or starts the store, and detects its exit."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable
from functools import partial
from itertools import count

from scaler.child_process import ChildProcess
from scaler.config.addresses import addresses_of, is_loopback
from scaler.config.worker import WORKER_CONFIG_VARIABLE, WorkerConfig
from scaler.errors import ScalerError
from scaler.extensions.data_plane.host import place
from scaler.ids import new_peer_id
from scaler.net.local import has_local_listener
from scaler.object_storage.client import StorageClient
from scaler.object_storage.shared_memory import is_supported
from scaler.processes import SPARED, end_of
from scaler.protocol.messages import Role, Welcome
from scaler.worker.agent.events import Store, StoreChanged
from scaler.worker.agent.shell import Agent
from scaler.worker.credential import credential_text, inherited_credential, own_access

START_SECONDS = 2.0
"""Seconds that a starting worker waits to learn whether the object storage is on the same host."""
FIND_SECONDS = 10.0
"""Seconds without a host store after which a worker uses the object storage directly."""
RETRY_SECONDS = 30.0
_POLL_SECONDS = 0.05
_log = logging.getLogger(__name__)


def find_store(agent: Agent) -> None:
    """Make an agent's tasks use the store of its host."""
    if agent.has_tasks_here:
        link = StoreLink(agent.config, lambda *store: agent.take_soon(StoreChanged(Store(*store))))
        agent.take_soon(StoreChanged(None))
        agent.on_session.append(link.use)
        agent.on_close.append(link.close)
        SPARED.append(partial(place.pids_of_store, agent.config))  # the store serves other workers of this host as well


class StoreLink:
    """Keeps one agent connected to its host's store. Bound to the running loop."""

    def __init__(self, config: WorkerConfig, on_found: Callable[[str, bytes], None]) -> None:
        """on_found: receives the store's address and its peer id at the scheduler; empty for the object storage."""
        self._config = config
        self._on_found = on_found
        self._loop = asyncio.get_running_loop()
        self._name = ""
        self._task: asyncio.Task[None] | None = None
        self._client: StorageClient | None = None
        self._child: ChildProcess | None = None

    def use(self, welcome: Welcome, _is_restarted: bool) -> None:
        """Start looking for the store of a cluster; on_found receives the result."""
        if self._task is None:
            address = self._config.object_storage_address or welcome.object_storage_address
            self._task = self._loop.create_task(self._keep(address))

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
        if self._client is not None:
            self._client.close()

    async def _keep(self, object_storage_address: str) -> None:
        """Use the host's store for the agent's lifetime. If the store exits, use a new store."""
        if not (object_storage_address and is_supported() and await self._is_elsewhere(object_storage_address)):
            self._on_found("", b"")
            return
        self._name = place.file_name(self._config)
        while True:
            store = await self._found()
            if store is None:
                self._on_found("", b"")
                await asyncio.sleep(RETRY_SECONDS)
                continue
            self._client = StorageClient(store.address, new_peer_id(), Role.WORKER, own_access(self._config))
            self._on_found(store.address, bytes.fromhex(store.peer))
            await self._end_of(store.pid)
            _log.warning("the object store of this host (pid %d) exited: objects stored only there are lost", store.pid)
            self._client.close()

    async def _is_elsewhere(self, object_storage_address: str) -> bool:
        """Once the object storage is up, return True if it is on another host. Tasks do not wait for this."""
        if self._config.host_name:
            return True
        # Behind a tunnel, other hosts cannot reach a store on this host.
        if is_loopback(addresses_of(self._config.scheduler_address)[0]) or has_local_listener(object_storage_address):
            return False
        access = own_access(self._config)
        self._client = StorageClient(object_storage_address, new_peer_id(), Role.WORKER, access)
        try:
            for number in count(1):
                if self._client.connected:
                    break
                if number == START_SECONDS // _POLL_SECONDS:
                    self._on_found("", b"")
                await asyncio.sleep(_POLL_SECONDS)
            return not self._client.is_here
        finally:
            self._client.close()

    async def _found(self) -> place.RunningStore | None:
        until = self._loop.time() + FIND_SECONDS
        try:
            while self._loop.time() < until:
                store = place.find(self._name)
                if store is not None:
                    return store
                if self._child is not None and self._child.has_ended():
                    code, self._child = self._child.reap(), None
                    if code is not None and code > 0:
                        return None  # the store has logged the reason
                if self._child is None:
                    variables = {place.CONFIG_VARIABLE: self._config.to_json(), WORKER_CONFIG_VARIABLE: ""}
                    command = [sys.executable, "-m", "scaler.extensions.data_plane.host"]
                    with inherited_credential(credential_text()) as (more, descriptors):
                        self._child = ChildProcess(command, variables | more, pass_fds=descriptors)
                await asyncio.sleep(_POLL_SECONDS)
        except (ScalerError, OSError) as error:
            _log.warning("this host has no object store, so its workers use the object storage directly: %s", error)
            return None
        text = "this host has no object store after %g s, so its workers use the object storage directly"
        _log.warning(text, FIND_SECONDS)
        return None

    async def _end_of(self, pid: int) -> None:
        while True:
            try:
                descriptor = end_of(pid)
                break
            except OSError:  # out of file descriptors
                await asyncio.sleep(_POLL_SECONDS)
        ended = self._loop.create_future()
        self._loop.add_reader(descriptor, lambda: None if ended.done() else ended.set_result(None))
        try:
            await ended
        finally:
            self._loop.remove_reader(descriptor)
            os.close(descriptor)
