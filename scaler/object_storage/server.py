"""The object storage's shell: a listener, the core, and one timer."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import assert_never

from scaler.component import Component, run_component
from scaler.config.servers import ObjectStorageServerConfig, default_memory_limit_bytes
from scaler.net.connection import Admit, Closed, Listener, ListenerEvent, Received
from scaler.net.listener import SocketListener
from scaler.net.versions import check_versions
from scaler.object_storage.core import StorageCore
from scaler.object_storage.descriptors import DescriptorDoor
from scaler.object_storage.shared_memory import SharedMemory, is_supported
from scaler.object_storage.state import Expire, ReceivedMemory, Send
from scaler.protocol.messages import Hello, PutObject, RefusalReason, Refused, Role, Server, StorageReply, Welcome

LEASE_SECONDS = 60.0
HEARTBEAT_SECONDS = 2.0
SHORTEST_POLL_SECONDS = 0.002
LONGEST_POLL_SECONDS = 0.1
"""How often readers with unacknowledged bytes are looked at: acknowledgements are no events."""

OnEvents = Callable[[list[ListenerEvent]], None]

_log = logging.getLogger(__name__)


class StorageServer:
    """One object storage on the running loop.

    listen: makes the listener, given whom it asks about peers and what it calls with the events of a turn. The limits
    are those of `StorageCore`. incarnation: made anew at every start. door: for peers that can share memory, if any.
    """

    @classmethod
    def bound(
        cls, address: str, memory_limit_bytes: int, max_object_bytes: int = -1, *, io_threads: int = 1
    ) -> StorageServer:
        """Return a storage that listens at this address. Raises UsageError when that is not possible."""

        def listen(admit: Admit, on_events: OnEvents) -> Listener:
            return SocketListener(
                [address], server_kind=Server.OBJECT_STORAGE, admit=admit, on_events=on_events, io_threads=io_threads
            )

        return cls(
            listen,
            memory_limit_bytes=memory_limit_bytes,
            max_object_bytes=max_object_bytes,
            incarnation=int.from_bytes(os.urandom(7), "big"),
            door=_door(),
        )

    def __init__(
        self,
        listen: Callable[[Admit, OnEvents], Listener],
        *,
        memory_limit_bytes: int,
        max_object_bytes: int = -1,
        incarnation: int,
        lease_seconds: float = LEASE_SECONDS,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
        door: DescriptorDoor | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._incarnation = incarnation
        self._lease_seconds = lease_seconds
        self._heartbeat_seconds = heartbeat_seconds
        self._core = StorageCore(
            memory_limit_bytes, max_object_bytes, lease_seconds=lease_seconds, tick_seconds=heartbeat_seconds
        )
        self._ignored = 0
        self._poll_seconds = SHORTEST_POLL_SECONDS
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._door = door
        try:
            self._listener = listen(self._admit, self._on_events)
        except BaseException:
            if door is not None:
                door.close()
            raise

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where it listens: a port 0 is replaced by the real one."""
        return self._listener.addresses

    def close(self) -> None:
        """Say goodbye to all peers, free the addresses and let go of all objects."""
        if self._timer is not None:
            self._timer.cancel()
        self._listener.close()
        if self._door is not None:
            self._door.close()

    def _admit(self, peer: bytes, hello: Hello) -> Welcome | Refused:
        if hello.details is not None or hello.role is Role.MONITOR:
            # Who says more of itself than its role takes this for the scheduler, one port below, or one above.
            text = f"this is an object storage's address; a {hello.role} belongs to the scheduler's"
            return Refused(RefusalReason.ROLE, text)
        refused = check_versions(hello)
        if refused is not None:
            return refused
        invitation = "" if self._door is None else self._door.invite(peer)
        lease, heartbeat = self._lease_seconds, self._heartbeat_seconds
        return Welcome(False, self._incarnation, lease, heartbeat, shared_memory=invitation)

    def _on_events(self, events: Sequence[ListenerEvent]) -> None:
        if self._door is not None:
            events = [_with_memory(event, self._door) for event in events]
        commands = self._core.step(events, self._loop.time(), self._listener.outbox_bytes)
        for command in commands:
            match command:
                case Send(peer, message, attachments, memory):
                    if self._door is not None and isinstance(memory, SharedMemory):
                        assert isinstance(message, StorageReply)
                        self._door.give(peer, message.request, memory)
                    self._listener.send(peer, message, attachments)
                case Expire(peer, text):
                    _log.warning("peer %s: %s", peer.hex(), text)
                    self._listener.forget(peer, Refused(RefusalReason.EXPIRED, text))
                    if self._door is not None:
                        self._door.dismiss(peer)
                case _:
                    assert_never(command)
        self._poll_seconds = SHORTEST_POLL_SECONDS if commands else min(2 * self._poll_seconds, LONGEST_POLL_SECONDS)
        if self._core.ignored != self._ignored:
            _log.warning("%d ids were not forgotten: not their peer's own", self._core.ignored - self._ignored)
            self._ignored = self._core.ignored
        self._set_timer()

    def _set_timer(self) -> None:
        deadline = self._core.next_deadline()
        if deadline is None:
            return
        if self._core.is_sending:
            deadline = min(deadline, self._loop.time() + self._poll_seconds)
        # A timer that fires too early does no harm, so most turns leave it as it is.
        if self._timer is None or self._timer_at > deadline:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = deadline
            self._timer = self._loop.call_at(deadline, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        self._on_events(())


def _door() -> DescriptorDoor | None:
    try:
        return DescriptorDoor() if is_supported() else None
    except OSError as error:
        _log.warning("no shared memory: %s", error)
        return None


def _with_memory(event: ListenerEvent, door: DescriptorDoor) -> ListenerEvent:
    """Return the event with the memory that its peer has sent for it."""
    match event:
        case Received(peer, PutObject(shared=True) as put):
            return ReceivedMemory(peer, put, (), (), door.take(peer, put.request, put.parts))
        case Closed(peer):
            door.dismiss(peer)
    return event


class EmbeddedStorage:
    """Runs from its construction until `close`.

    memory_limit_bytes: half of the machine's memory unless given. Raises UsageError when the address
    cannot be bound. io_threads: see `SocketListener`.
    """

    def __init__(
        self,
        bind_address: str,
        memory_limit_bytes: int | None = None,
        max_object_bytes: int = -1,
        *,
        io_threads: int = 1,
    ) -> None:
        limit_bytes = default_memory_limit_bytes() if memory_limit_bytes is None else memory_limit_bytes
        bound: Future[str] = Future()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._is_closed = False

        async def main() -> None:
            try:
                server = StorageServer.bound(bind_address, limit_bytes, max_object_bytes, io_threads=io_threads)
            except BaseException as error:  # noqa: BLE001 (raised where the storage is made)
                bound.set_exception(error)
                return
            bound.set_result(server.addresses[0])
            await self._stop.wait()
            server.close()

        def run() -> None:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(main())

        self._thread = threading.Thread(target=run, name="object storage", daemon=True)
        self._thread.start()
        try:
            self._address = bound.result()
        except BaseException:
            self._thread.join()
            raise

    @property
    def address(self) -> str:
        """Where it listens: a port 0 is replaced by the real one."""
        return self._address

    def close(self) -> None:
        """End it and let go of all objects. Harmless when repeated."""
        if not self._is_closed:
            self._is_closed = True
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()


def run(config: ObjectStorageServerConfig) -> int:
    """Run an object storage until the process is asked to end, and return its exit code."""

    async def main(component: Component) -> int:
        server = StorageServer.bound(config.bind_address, config.memory_limit_bytes, config.max_object_bytes)
        component.ready({"object storage": server.addresses[0]})
        await component.stop.wait()
        server.close()
        return 0

    return run_component("object_storage_server", config, main)
