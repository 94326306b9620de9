"""Clients of the object storage: `StorageClient` for asyncio, `BlockingStorage` for synchronous code."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, wait
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar

from scaler.errors import ClientClosedError, LimitError, ScalerError
from scaler.net.access import LOCAL_ACCESS, Access
from scaler.net.connection import ConnectorEvent, Received, Resumed, Welcomed
from scaler.net.connector import SocketConnector
from scaler.net.versions import own_hello
from scaler.net.wakeups import Wakeups
from scaler.object_storage import requests as r
from scaler.object_storage.body import views_of
from scaler.object_storage.messages import StorageReply
from scaler.object_storage.shared_memory import MIN_SHARED_BYTES, SharedMemory, is_supported
from scaler.protocol.messages import MAX_ATTACHED_BYTES, Buffer, Role, Server

TIMEOUT_SECONDS = 60.0
AWAY_SECONDS = 0.5
"""Interval at which blocking calls check the connection. A local storage silent for this long counts as away."""
MAX_CALLS = 1_000_000
MAX_COPIED_IN_LOOP_BYTES = 4 * 1024 * 1024
"""Larger objects are copied in another thread, to avoid blocking the loop."""

_CLOSED = "the connection to the object storage was closed"
_T = TypeVar("_T")


class StorageClient:
    """Puts and gets objects. Belongs to the running loop; calls survive lost connections and storage restarts.

    peer: id that is unique among the connections of this storage. The storage may start after the client. Calls fail
    with ObjectLostError (missing, released, or the storage is gone), LimitError (full or too large), UnreachableError
    (no storage to put to), or RefusedError (this peer is rejected)."""

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
    ) -> None:
        """Start connecting. owner_token: from a client's Welcome. Raises UsageError on a malformed address."""
        self.address = address
        self._loop = asyncio.get_running_loop()
        self._requests = r.Requests(address, timeout_seconds, self._loop.time(), get_timeout_seconds)
        self._inputs: list[r.RequestsInput] = []
        self._futures: dict[r.StorageCall, asyncio.Future[Any]] = {}
        self._wakeups = Wakeups(self._loop, self._step)
        self._is_closed = False
        self._heard_at = self._loop.time()
        hello = replace(own_hello(role), owner_token=owner_token)
        self._connector = SocketConnector(address, Server.OBJECT_STORAGE, access, hello, self._on_events, peer=peer)

    def put(self, object_id: bytes, parts: Sequence[Buffer]) -> asyncio.Future[SharedMemory | None]:
        """Put an object, whose parts must not change before the future completes. The result is the memory shared with
        the storage, or None. Raises LimitError for too many parts or calls."""
        views = views_of(parts)
        size = sum(view.nbytes for view in views)
        is_sharing = self._requests.is_sharing
        may_share = is_supported() if is_sharing is None else is_sharing
        if self._is_closed or size < MIN_SHARED_BYTES or not may_share:
            return self._begin(r.PutCall(object_id, views))
        return self._loop.create_task(self._put_shared(object_id, views, size))

    @property
    def connected(self) -> bool:
        return self._connector.connected

    @property
    def is_here(self) -> bool:
        return self._connector.passes_descriptors

    @property
    def heard(self) -> tuple[float, int]:
        """A value that changes whenever data arrives from the storage, even part of a message."""
        return self._heard_at, self._connector.received_bytes

    @property
    def is_silent(self) -> bool:
        """True if a local storage has sent nothing for AWAY_SECONDS. A remote storage may just have a slow link."""
        return self._connector.passes_descriptors and self._loop.time() - self._heard_at >= AWAY_SECONDS

    def get(self, object_id: bytes) -> asyncio.Future[list[memoryview]]:
        return self._begin(r.GetCall(object_id))

    def get_range(self, object_id: bytes, offset: int, size: int) -> asyncio.Future[r.ByteRange]:
        """Get a byte range of an existing object; size 0: everything from offset on."""
        return self._begin(r.GetCall(object_id, True, offset, size))

    def close(self) -> None:
        """Close the connection. Pending calls fail with ClientClosedError. Idempotent."""
        if self._is_closed:
            return
        self._step()
        self._is_closed = True
        self._wakeups.close()
        self._connector.close()
        for future in self._futures.values():
            _fail(future, ClientClosedError(_CLOSED))
        self._futures.clear()

    async def _put_shared(self, object_id: bytes, parts: list[memoryview], size_bytes: int) -> SharedMemory | None:
        if self._requests.is_sharing is None or size_bytes > MAX_ATTACHED_BYTES:
            # Announce objects larger than a message first, so that memory is allocated only once there is space.
            await self._begin(r.PutCall(object_id, [], sizes=[part.nbytes for part in parts]))
        memory = None
        if self._requests.is_sharing:
            with contextlib.suppress(OSError):  # no shared memory or descriptors left; sending frames needs neither
                if size_bytes <= MAX_COPIED_IN_LOOP_BYTES:
                    memory = SharedMemory.written(parts)
                else:
                    memory = await self._loop.run_in_executor(None, SharedMemory.written, parts)
        call = r.PutCall(object_id, parts, memory)
        await self._begin(call)
        return memory if call.memory is not None else None

    def _begin(self, call: r.StorageCall) -> asyncio.Future[Any]:
        if len(self._futures) >= MAX_CALLS:
            raise LimitError(f"at most {MAX_CALLS} calls to the object storage at a time")
        future: asyncio.Future[Any] = self._loop.create_future()
        if self._is_closed:
            _fail(future, ClientClosedError(_CLOSED))
        else:
            self._futures[call] = future
            self._inputs.append(call)
            self._wakeups.soon()  # batches all calls made in one loop iteration
        return future

    def _on_events(self, events: Sequence[ConnectorEvent]) -> None:
        self._heard_at = self._loop.time()
        for event in events:
            self._inputs.append(_with_parts(event))
            if isinstance(event, Welcomed | Resumed):
                self._requests.is_sharing = is_supported() and self._connector.passes_descriptors
        self._step()

    def _step(self) -> None:
        inputs, self._inputs = self._inputs, []
        for command in self._requests.step(inputs, self._loop.time()):
            match command:
                case r.SendRequest(message, attachments, memory):
                    self._connector.send(message, attachments, () if memory is None else (memory,))
                case r.CallEnded(call, outcome):
                    future = self._futures.pop(call)
                    if isinstance(outcome, ScalerError):
                        _fail(future, outcome)
                    elif not future.done():
                        future.set_result(outcome)
        self._wakeups.at(self._requests.wake_at)


def _with_parts(event: ConnectorEvent) -> ConnectorEvent:
    match event:
        case Received(peer, StorageReply(shared=True) as reply, _, [descriptor]):
            # With invalid memory, or without address space, the frames fail where they are used.
            with contextlib.suppress(ValueError, OSError):
                return Received(peer, reply, SharedMemory(descriptor, reply.parts).parts())
    return event


def _fail(future: asyncio.Future[Any], error: ScalerError) -> None:
    if not future.done():
        future.set_exception(error)


class BlockingStorage:
    """Synchronous, thread-safe puts and gets. Raises the errors of `StorageClient`, and ClientClosedError after a
    fork."""

    def __init__(
        self,
        connect: Callable[[], StorageClient],
        away: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext,
    ) -> None:
        """connect: called in the thread of the connection. away: context entered while a call waits for an absent
        storage, or a get for an unresponsive one."""
        self._away = away
        self._thread = LoopThread("object storage client", connect)
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._is_closed = False

    def put(self, object_id: bytes, parts: Sequence[Buffer]) -> None:
        """Put an object, and return once the storage has all of it. Does not copy the parts."""
        self._call(lambda client: client.put(object_id, parts))

    def get(self, object_id: bytes) -> list[memoryview]:
        return self._call(lambda client: client.get(object_id), is_get=True)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
        if self._pid == os.getpid():
            self._thread.close()

    def _call(self, begin: Callable[[StorageClient], asyncio.Future[_T]], *, is_get: bool = False) -> _T:
        async def call() -> _T:
            return await begin(self._thread.value)

        if self._pid != os.getpid():
            raise ClientClosedError("a forked process cannot use its parent's connection to the object storage")
        with self._lock:
            if self._is_closed:
                raise ClientClosedError(_CLOSED)
            # Holding the lock ensures that the loop has not been closed.
            done = asyncio.run_coroutine_threadsafe(call(), self._thread.loop)
        try:
            while not wait([done], AWAY_SECONDS).done:
                client = self._thread.value
                # A full storage intentionally delays its replies to puts, to throttle producers.
                if not client.connected or (is_get and client.is_silent):
                    with self._away():
                        return done.result()
            return done.result()
        except CancelledError:  # the client was closed
            raise ClientClosedError(_CLOSED) from None


class _Closable(Protocol):
    def close(self) -> None: ...


_LivingT = TypeVar("_LivingT", bound=_Closable)


class LoopThread(Generic[_LivingT]):
    """A thread whose event loop creates, runs, and closes one object."""

    def __init__(self, name: str, make: Callable[[], _LivingT]) -> None:
        self.loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        made: Future[_LivingT] = Future()

        async def main() -> None:
            try:
                value = make()
            except BaseException as error:  # noqa: BLE001 (raised in the thread that waits)
                made.set_exception(error)
                return
            made.set_result(value)
            await self._stop.wait()
            value.close()

        def run() -> None:
            with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
                runner.run(main())

        self._thread = threading.Thread(target=run, name=name, daemon=True)
        self._thread.start()
        try:
            self.value = made.result()
        except BaseException:
            self._thread.join()
            raise

    def close(self) -> None:
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()
