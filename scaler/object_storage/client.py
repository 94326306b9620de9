"""A peer of the object storage: `StorageClient` on an asyncio loop, `BlockingStorage` for code without one."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import math
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, TypeVar

from scaler.errors import ClientClosedError, LimitError, ScalerError
from scaler.net.access import LOCAL_ACCESS, Access
from scaler.net.connection import ConnectorEvent, Received, Resumed, Welcomed
from scaler.net.connector import LoopThread, SocketConnector
from scaler.net.versions import own_hello
from scaler.object_storage.layout import views_of
from scaler.object_storage.requests import (
    ByteRange,
    CallEnded,
    GetCall,
    PutCall,
    Requests,
    RequestsInput,
    SendRequest,
    SharingChanged,
    StatCall,
    StorageCall,
)
from scaler.object_storage.shared_memory import MIN_SHARED_BYTES, SharedMemory, is_supported
from scaler.protocol.messages import MAX_ATTACHED_BYTES, ForgetObjects, Role, Server, StorageReply, StorageStatus
from scaler.protocol.session import Buffer

TIMEOUT_SECONDS = 60.0
"""How long calls outlive the connection to the storage."""
AWAY_SECONDS = 0.5
"""Interval at which blocking calls check for a storage; a silent one on this host counts as away."""
MAX_CALLS = 1_000_000
IDS_PER_FORGET = 10_000
MAX_COPIED_IN_LOOP_BYTES = 4 * 1024 * 1024
"""More is copied by another thread, so that the loop goes on; handing it over takes longer than to copy a little."""

_CLOSED = "the connection to the object storage was closed"
_T = TypeVar("_T")


class StorageClient:
    """Puts and gets objects. Belongs to the running loop; safe over broken connections and restarts of the storage.

    peer: an id that no other connection to this storage has. The storage may come up later.

    Outcomes of calls that fail: ObjectLostError (not there, forgotten, or the storage is gone), LimitError (full, too
    large), UnreachableError (no storage to put to), RefusedError (this peer is not welcome).
    """

    def __init__(
        self,
        address: str,
        peer: bytes,
        role: Role,
        access: Access = LOCAL_ACCESS,
        *,
        owner_token: bytes = b"",
        timeout_seconds: float = TIMEOUT_SECONDS,
        get_timeout_seconds: float | None = None,
        io_threads: int = 1,
    ) -> None:
        """Begin to connect. owner_token: from a client's Welcome. Raises UsageError on a malformed address."""
        self.address = address
        self._loop = asyncio.get_running_loop()
        self._requests = Requests(address, timeout_seconds, self._loop.time(), get_timeout_seconds)
        self._inputs: list[RequestsInput] = []
        self._futures: dict[StorageCall, asyncio.Future[Any]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._is_step_due = False
        self._is_closed = False
        self._is_sharing: bool | None = None  # unknown before the first Welcome
        self._heard_at = self._loop.time()
        self._connector = SocketConnector(
            address,
            peer=peer,
            hello=replace(own_hello(role), owner_token=owner_token),
            on_events=self._on_events,
            io_threads=io_threads,
            keys=access.to(Server.OBJECT_STORAGE, address),
            uses_local=access.uses_local,
            compression=access.compression,
        )

    def put(self, object_id: bytes, parts: Sequence[Buffer]) -> asyncio.Future[SharedMemory | None]:
        """Put an object; its parts must not change until the result is there.

        The result is the memory that the storage shares, or None. Raises LimitError for too many parts or calls.
        """
        views = views_of(parts)
        size = sum(view.nbytes for view in views)
        may_share = is_supported() if self._is_sharing is None else self._is_sharing
        if self._is_closed or size < MIN_SHARED_BYTES or not may_share:
            return self._begin(PutCall(object_id, views))
        return self._loop.create_task(self._put_shared(object_id, views, size))

    @property
    def connected(self) -> bool:
        """True while there is a connection to the storage."""
        return self._connector.connected

    @property
    def is_here(self) -> bool:
        """True while the storage is known to be on this host."""
        return self._connector.passes_descriptors

    @property
    def heard(self) -> tuple[float, int]:
        """A value that is another one when anything has come from the storage since, also a part of a message."""
        return self._heard_at, self._connector.received_bytes

    @property
    def is_silent(self) -> bool:
        """True when a storage of this host has sent nothing for AWAY_SECONDS. Over a network, it may be a slow link."""
        return self._connector.passes_descriptors and self._loop.time() - self._heard_at >= AWAY_SECONDS

    def get(self, object_id: bytes, deadline_seconds: float) -> asyncio.Future[list[memoryview]]:
        """Get the parts of an object, read-only unless shared, waiting up to deadline_seconds for it to exist."""
        return self._begin(GetCall(object_id, deadline_seconds))

    def get_range(self, object_id: bytes, offset: int, size: int) -> asyncio.Future[ByteRange]:
        """Get a range of an object's bytes; size 0: all from offset on. It must be there."""
        return self._begin(GetCall(object_id, 0.0, True, offset, size))

    def stat(self) -> asyncio.Future[StorageStatus]:
        """Ask how much the storage holds."""
        return self._begin(StatCall())

    def forget(self, object_ids: Sequence[bytes]) -> None:
        """Let the storage forget these objects, and refuse them if they come later. Nothing is answered."""
        for start in range(0, len(object_ids), IDS_PER_FORGET):
            self._inputs.append(ForgetObjects(list(object_ids[start : start + IDS_PER_FORGET])))
        self._step_soon()

    def close(self) -> None:
        """Say Goodbye; calls that have not ended fail with ClientClosedError. Harmless when repeated."""
        if self._is_closed:
            return
        self._step()
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._connector.close()
        for future in self._futures.values():
            _fail(future, ClientClosedError(_CLOSED))
        self._futures.clear()

    async def _put_shared(self, object_id: bytes, parts: list[memoryview], size_bytes: int) -> SharedMemory | None:
        if self._is_sharing is None or size_bytes > MAX_ATTACHED_BYTES:
            # An object larger than a message is announced first: memory is taken only where there is space for it.
            await self._begin(PutCall(object_id, [], sizes=[part.nbytes for part in parts]))
        memory = None
        if self._is_sharing:
            with contextlib.suppress(OSError):  # there is no memory to share, or no descriptor: frames need neither
                if size_bytes <= MAX_COPIED_IN_LOOP_BYTES:
                    memory = SharedMemory.written(parts)
                else:
                    memory = await self._loop.run_in_executor(None, SharedMemory.written, parts)
        call = PutCall(object_id, parts, memory)
        await self._begin(call)
        return memory if call.memory is not None else None

    def _begin(self, call: StorageCall) -> asyncio.Future[Any]:
        if len(self._futures) >= MAX_CALLS:
            raise LimitError(f"at most {MAX_CALLS} calls of the object storage at a time")
        future: asyncio.Future[Any] = self._loop.create_future()
        if self._is_closed:
            _fail(future, ClientClosedError(_CLOSED))
        else:
            self._futures[call] = future
            self._inputs.append(call)
            self._step_soon()
        return future

    def _step_soon(self) -> None:
        # Calls that are begun in one iteration of the loop are sent together.
        if not self._is_step_due and not self._is_closed:
            self._is_step_due = True
            self._loop.call_soon(self._step)

    def _on_events(self, events: Sequence[ConnectorEvent]) -> None:
        self._heard_at = self._loop.time()
        for event in events:
            self._inputs.append(_with_parts(event))
            if isinstance(event, Welcomed | Resumed):
                self._is_sharing = is_supported() and self._connector.passes_descriptors
                self._inputs.append(SharingChanged(self._is_sharing))
        self._step()

    def _step(self) -> None:
        self._is_step_due = False
        if self._is_closed:
            return
        inputs, self._inputs = self._inputs, []
        for command in self._requests.step(inputs, self._loop.time()):
            match command:
                case SendRequest(message, attachments, memory):
                    self._connector.send(message, attachments, () if memory is None else (memory,))
                case CallEnded(call, outcome):
                    future = self._futures.pop(call)
                    if isinstance(outcome, ScalerError):
                        _fail(future, outcome)
                    elif not future.done():
                        future.set_result(outcome)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._requests.wake_at < math.inf:
            self._timer = self._loop.call_at(self._requests.wake_at, self._step)


def _with_parts(event: ConnectorEvent) -> ConnectorEvent:
    """Return the event with the parts in shared memory whose descriptor came with it."""
    match event:
        case Received(peer, StorageReply(shared=True) as reply, _, [descriptor]):
            # No memory of such parts, or no address space left: frames fail where it matters.
            with contextlib.suppress(ValueError, OSError):
                return Received(peer, reply, SharedMemory(descriptor, reply.parts).parts())
    return event


def _fail(future: asyncio.Future[Any], error: ScalerError) -> None:
    if not future.done():
        future.set_exception(error)


class BlockingStorage:
    """Puts and gets objects, and waits for it. Safe to share between threads.

    peer: unique id at this storage. Raises what `StorageClient` does, and ClientClosedError after a fork.
    """

    def __init__(
        self,
        address: str,
        peer: bytes,
        role: Role,
        access: Access = LOCAL_ACCESS,
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
        get_timeout_seconds: float | None = None,
        away: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext,
    ) -> None:
        """away: entered while a call waits for a storage that is away, or a get for one that does not answer."""
        self._away = away
        self._thread = LoopThread(
            "object storage client",
            lambda: StorageClient(
                address, peer, role, access, timeout_seconds=timeout_seconds, get_timeout_seconds=get_timeout_seconds
            ),
        )
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._is_closed = False

    def put(self, object_id: bytes, parts: Sequence[Buffer]) -> None:
        """Put an object and return when it is whole in the storage. The parts are not copied."""
        self._call(lambda client: client.put(object_id, parts))

    def get(self, object_id: bytes, deadline_seconds: float) -> list[memoryview]:
        """Return an object's parts, as `StorageClient.get` does."""
        return self._call(lambda client: client.get(object_id, deadline_seconds), is_get=True)

    def close(self) -> None:
        """Say Goodbye and end the thread. Harmless when repeated."""
        with self._lock:
            self._is_closed = True
        if self._pid == os.getpid():
            self._thread.close()

    def _call(self, begin: Callable[[StorageClient], asyncio.Future[_T]], *, is_get: bool = False) -> _T:
        done: concurrent.futures.Future[_T] = concurrent.futures.Future()

        def ended(future: asyncio.Future[_T]) -> None:
            # Cancelled: the loop was ended while another thread made the copy that is shared.
            error = future.exception() if not future.cancelled() else ClientClosedError(_CLOSED)
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(future.result())

        def start(client: StorageClient) -> None:
            try:
                begin(client).add_done_callback(ended)
            except Exception as error:  # noqa: BLE001 (raised in the thread that called)
                done.set_exception(error)

        if self._pid != os.getpid():
            raise ClientClosedError("a forked process cannot use its parent's connection to the object storage")
        with self._lock:
            if self._is_closed:
                raise ClientClosedError(_CLOSED)
            # Under the lock: `close` comes after it, so the loop is there.
            self._thread.loop.call_soon_threadsafe(start, self._thread.value)
        while True:
            try:
                return done.result(AWAY_SECONDS)
            except TimeoutError:
                client = self._thread.value
                # A put is not answered while the storage has no room: that is to slow its producer down.
                if not client.connected or (is_get and client.is_silent):
                    with self._away():
                        return done.result()
