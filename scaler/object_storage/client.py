"""A peer of the object storage: `StorageClient` on an asyncio loop, `BlockingStorage` for code without one."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from scaler.errors import ClientClosedError, ScalerError
from scaler.net.connection import Connector, ConnectorEvent, Received, Welcomed
from scaler.net.connector import SocketConnector
from scaler.net.versions import own_hello
from scaler.object_storage.descriptors import DescriptorChannel, join
from scaler.object_storage.requests import Ended, Requests, Say, views_of
from scaler.object_storage.shared_memory import MIN_SHARED_BYTES, SharedMemory, is_supported
from scaler.protocol.messages import MAX_CHUNK_BYTES, PutObject, Role, StorageReply, StorageStatus
from scaler.protocol.session import Buffer

TIMEOUT_SECONDS = 10.0
"""How long calls outlive the connection to the storage."""
MAX_COPIED_IN_LOOP_BYTES = 4 * 1024 * 1024
"""More is copied by another thread, so that the loop goes on; handing it over takes longer than to copy a little."""

_CLOSED = "the connection to the object storage was closed"
OnEvents = Callable[[list[ConnectorEvent]], None]
_T = TypeVar("_T")


class StorageClient:
    """Puts and gets objects. Belongs to the running loop; safe over broken connections and restarts of the storage.

    connect: makes the connector, given what it calls with the events of a turn. address: for the texts of errors.
    pings: see `Requests`.

    Outcomes of calls that fail: ObjectLostError (not there, forgotten, or the storage is gone), LimitError (full, too
    large), UnreachableError (nobody there to put to), RefusedError (this peer is not welcome).
    """

    @classmethod
    def connected_to(
        cls, address: str, peer: bytes, role: Role, *, timeout_seconds: float = TIMEOUT_SECONDS, io_threads: int = 1
    ) -> StorageClient:
        """Return a client of the storage at this address, which may come up later. Raises UsageError on a bad address.

        peer: an id that no other connection to this storage has.
        """

        def connect(on_events: OnEvents) -> Connector:
            return SocketConnector(
                address, peer=peer, hello=own_hello(role), on_events=on_events, io_threads=io_threads
            )

        # Connectors of workers send no heartbeats by themselves, as agents have more to say in theirs.
        return cls(connect, address=address, timeout_seconds=timeout_seconds, pings=role is Role.WORKER)

    def __init__(
        self,
        connect: Callable[[OnEvents], Connector],
        *,
        address: str,
        timeout_seconds: float = TIMEOUT_SECONDS,
        pings: bool = False,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._requests = Requests(address, timeout_seconds, self._loop.time(), pings=pings)
        self._futures: dict[int, asyncio.Future[Any]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._is_turn_due = False
        self._is_closed = False
        self._channel: DescriptorChannel | None = None
        self._was_welcomed = False
        self._connector = connect(self._on_events)

    def put(self, object_id: bytes, parts: Sequence[Buffer]) -> asyncio.Future[None]:
        """Put an object: done when it is whole in the storage. The parts are not copied and must not change until then.

        Raises LimitError for too many parts or calls.
        """
        views = views_of(parts)
        size = sum(view.nbytes for view in views)
        may_share = self._channel is not None if self._was_welcomed else is_supported()
        if self._is_closed or size < MIN_SHARED_BYTES or not may_share:
            return self._begin(self._requests.put(object_id, views, self._loop.time()))
        return self._loop.create_task(self._put_shared(object_id, views, size))

    def get(self, object_id: bytes, deadline_seconds: float) -> asyncio.Future[list[memoryview]]:
        """Get an object's parts; waits for an object that is not there yet for up to deadline_seconds.

        They are read-only, but for those that lie in memory which is this call's alone.
        """
        return self._begin(self._requests.get(object_id, deadline_seconds, self._loop.time()))

    def link(self, object_id: bytes, target: bytes) -> asyncio.Future[None]:
        """Give the object `target` another id."""
        return self._begin(self._requests.link(object_id, target, self._loop.time()))

    def stat(self) -> asyncio.Future[StorageStatus]:
        """Ask how much the storage holds."""
        return self._begin(self._requests.stat(self._loop.time()))

    def forget(self, object_ids: Sequence[bytes]) -> None:
        """Let the storage forget these objects, and refuse them if they come later."""
        self._requests.forget(object_ids)
        self._turn_soon()

    def forget_owner(self, owner: bytes) -> None:
        """Let the storage forget all objects of this owner. The scheduler may."""
        self._requests.forget_owner(owner)
        self._turn_soon()

    def close(self) -> None:
        """Say goodbye; calls that have not ended fail with ClientClosedError. Harmless when repeated."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._connector.close()
        if self._channel is not None:
            self._channel.close()
        futures, self._futures = self._futures, {}
        for future in futures.values():
            _fail(future, ClientClosedError(_CLOSED))

    async def _put_shared(self, object_id: bytes, parts: list[memoryview], size_bytes: int) -> None:
        if not self._was_welcomed or size_bytes > MAX_CHUNK_BYTES:
            # What is small enough for one message may come unasked; for more, memory is taken only where there is room.
            await self._begin(self._requests.reserve(object_id, [part.nbytes for part in parts], self._loop.time()))
        memory = None
        if self._channel is not None:
            with contextlib.suppress(OSError):  # there is no memory to share, or no descriptor: frames need neither
                if size_bytes <= MAX_COPIED_IN_LOOP_BYTES:
                    memory = SharedMemory.written(parts)
                else:
                    memory = await self._loop.run_in_executor(None, SharedMemory.written, parts)
        await self._begin(self._requests.put(object_id, parts, self._loop.time(), memory))

    def _begin(self, ticket: int) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._loop.create_future()
        if self._is_closed:
            _fail(future, ClientClosedError(_CLOSED))
        else:
            self._futures[ticket] = future
            self._turn_soon()
        return future

    def _turn_soon(self) -> None:
        # Everything that is begun in one turn of the loop is said in one go.
        if not self._is_turn_due and not self._is_closed:
            self._is_turn_due = True
            self._loop.call_soon(self._on_events, ())

    def _on_events(self, events: Sequence[ConnectorEvent]) -> None:
        self._is_turn_due = False
        if self._is_closed:
            return
        events = [self._with_memory(event) for event in events]
        for command in self._requests.step(events, self._loop.time()):
            match command:
                case Say(message, attachments, memory):
                    if self._channel is not None and isinstance(memory, SharedMemory):
                        assert isinstance(message, PutObject)
                        self._channel.give(message.request, memory)
                    self._connector.send(message, attachments)
                case Ended(ticket, outcome):
                    future = self._futures.pop(ticket)
                    if isinstance(outcome, ScalerError):
                        _fail(future, outcome)
                    elif not future.done():
                        future.set_result(outcome)
        self._set_timer()

    def _with_memory(self, event: ConnectorEvent) -> ConnectorEvent:
        """Return the event with the parts that the storage has sent the descriptor of."""
        match event:
            case Welcomed(welcome):
                if self._channel is not None:
                    self._channel.close()
                self._channel = join(welcome.shared_memory, self._connector.peer)
                self._requests.is_sharing = self._channel is not None
                self._was_welcomed = True
            case Received(peer, StorageReply(shared=True) as reply) if self._channel is not None:
                memory = self._channel.take(reply.request, reply.parts)
                if memory is not None:
                    with contextlib.suppress(OSError):  # the address space is used up: frames fail where it matters
                        return Received(peer, reply, memory.parts())
        return event

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline = self._requests.next_deadline()
        if deadline is not None:
            self._timer = self._loop.call_at(deadline, self._on_events, ())


def _fail(future: asyncio.Future[Any], error: ScalerError) -> None:
    if not future.done():
        future.set_exception(error)


class BlockingStorage:
    """Puts and gets objects, and waits for it. Nothing is started before the first call. Safe to share between threads.

    peer: an id that no other connection to this storage has. The errors are those of `StorageClient`; in a process that
    was forked after the first call, every call raises ClientClosedError.
    """

    def __init__(self, address: str, peer: bytes, role: Role, *, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self._address = address
        self._peer = peer
        self._role = role
        self._timeout_seconds = timeout_seconds
        self._lock = threading.Lock()
        self._running: _Running | None = None
        self._is_closed = False

    def put(self, object_id: bytes, parts: Sequence[Buffer]) -> None:
        """Put an object and return when it is whole in the storage. The parts are not copied."""
        self._call(lambda client: client.put(object_id, parts))

    def get(self, object_id: bytes, deadline_seconds: float) -> list[memoryview]:
        """Return an object's parts, as `StorageClient.get` does."""
        return self._call(lambda client: client.get(object_id, deadline_seconds))

    def close(self) -> None:
        """Say goodbye and end the thread. Harmless when repeated."""
        with self._lock:
            self._is_closed = True
            running, self._running = self._running, None
        if running is not None and running.pid == os.getpid():
            running.close()

    def _call(self, begin: Callable[[StorageClient], asyncio.Future[_T]]) -> _T:
        with self._lock:
            if self._is_closed:
                raise ClientClosedError(_CLOSED)
            if self._running is None:
                self._running = _Running(self._address, self._peer, self._role, self._timeout_seconds)
            if self._running.pid != os.getpid():
                raise ClientClosedError("a forked process cannot use its parent's connection to the object storage")
            called = self._running.call(begin)  # under the lock: `close` comes after it, so the loop is there
        return called.result()


class _Running:
    """A thread with a loop and a client on it."""

    def __init__(self, address: str, peer: bytes, role: Role, timeout_seconds: float) -> None:
        self.pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        ready: concurrent.futures.Future[StorageClient] = concurrent.futures.Future()

        async def main() -> None:
            try:
                client = StorageClient.connected_to(address, peer, role, timeout_seconds=timeout_seconds)
            except BaseException as error:  # noqa: BLE001 (raised in the thread that called)
                ready.set_exception(error)
                return
            ready.set_result(client)
            await self._stop.wait()
            client.close()

        def run() -> None:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(main())

        self._thread = threading.Thread(target=run, name="object storage client", daemon=True)
        self._thread.start()
        self._client = ready.result()

    def call(self, begin: Callable[[StorageClient], asyncio.Future[_T]]) -> concurrent.futures.Future[_T]:
        done: concurrent.futures.Future[_T] = concurrent.futures.Future()

        def ended(future: asyncio.Future[_T]) -> None:
            # Cancelled: the loop was ended while another thread made the copy that is shared.
            error = future.exception() if not future.cancelled() else ClientClosedError(_CLOSED)
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(future.result())

        def start() -> None:
            try:
                begin(self._client).add_done_callback(ended)
            except Exception as error:  # noqa: BLE001 (raised in the thread that called)
                done.set_exception(error)

        self._loop.call_soon_threadsafe(start)
        return done

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
