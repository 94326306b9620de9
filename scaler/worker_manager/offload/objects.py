"""Stored objects of tasks that run elsewhere: fetched as inline payloads, the last used ones cached; results put."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence

from scaler.errors import ObjectLostError
from scaler.object_storage.client import StorageClient
from scaler.protocol.messages import is_stored, stored_reference
from scaler.serialization import Buffer, size_of, to_payload
from scaler.worker.processor.functions import CACHE_BYTES, FETCH_SECONDS

NO_STORAGE = "this worker knows no object storage: neither was one set, nor does its scheduler advertise one"


class Objects:
    """Belongs to the running loop. connect: makes the client of the storage at an address, when it is first needed."""

    def __init__(self, connect: Callable[[str], StorageClient], cache_bytes: int = CACHE_BYTES) -> None:
        self._connect = connect
        self._limit_bytes = cache_bytes
        self._address = ""
        self._storage: StorageClient | None = None
        self._cache: OrderedDict[bytes, bytes] = OrderedDict()
        self._cached_bytes = 0
        self._fetching: dict[bytes, asyncio.Task[bytes]] = {}

    def move(self, address: str) -> None:
        """Use the storage at this address from now on."""
        if address != self._address:
            self.close()
            self._address = address

    async def payload(self, payload: bytes) -> bytes:
        """Return an inline payload as it is, and that of a stored object. Raises what the storage's client raises."""
        if not is_stored(payload):
            return payload
        identifier = payload[1:17]
        found = self._cache.get(identifier)
        if found is not None:
            self._cache.move_to_end(identifier)
            return found
        task = self._fetching.get(identifier)
        if task is None:
            task = self._fetching[identifier] = asyncio.create_task(self._fetch(identifier))
            task.add_done_callback(_look_at)  # its failure is no surprise when nobody waits any more
        # Others may wait for the same object when this one does not any more.
        return await asyncio.shield(task)

    async def put(self, identifier: bytes, parts: Sequence[Buffer]) -> bytes:
        """Store an object and return the payload that points to it. Raises what the storage's client raises."""
        await self._open().put(identifier, parts)
        return stored_reference(identifier, size_of(parts))

    def close(self) -> None:
        """Leave the storage. What is still being fetched or put fails. Harmless when repeated."""
        if self._storage is not None:
            self._storage.close()
            self._storage = None

    async def _fetch(self, identifier: bytes) -> bytes:
        try:
            parts = await self._open().get(identifier, FETCH_SECONDS)
            # Copying may take long when it is large, and the loop has heartbeats to send.
            found = await asyncio.to_thread(to_payload, parts)
        finally:
            del self._fetching[identifier]
        if len(found) <= self._limit_bytes:
            self._cache[identifier] = found
            self._cached_bytes += len(found)
            while self._cached_bytes > self._limit_bytes:
                self._cached_bytes -= len(self._cache.popitem(last=False)[1])
        return found

    def _open(self) -> StorageClient:
        if self._storage is None:
            if not self._address:
                raise ObjectLostError(NO_STORAGE)
            self._storage = self._connect(self._address)
        return self._storage


def _look_at(task: asyncio.Task[bytes]) -> None:
    if not task.cancelled():
        task.exception()
