"""A scripted scheduler on a real socket, with a real object storage."""

from __future__ import annotations

import asyncio
import pickle
import queue
import threading
from types import TracebackType
from typing import Any, TypeVar

from scaler.net.connection import Broken, Closed, Identity, ListenerEvent, Opened, Received, Resumed
from scaler.net.listener import SocketListener
from scaler.object_storage.server import EmbeddedStorage
from scaler.protocol.messages import Finished, Hello, Message, Outcome, Refused, Submit, TaskGroup, Welcome

WAIT_SECONDS = 20.0
MessageT = TypeVar("MessageT")


class RigScheduler:
    """Records messages from clients. Every wait fails after WAIT_SECONDS."""

    def __init__(
        self,
        address: str = "tcp://127.0.0.1:0",
        *,
        storage: EmbeddedStorage | None = None,
        lease_seconds: float = 30.0,
        max_pending_tasks: int = -1,
        refuse: Refused | None = None,
    ) -> None:
        self._storage_address = "" if storage is None else storage.address
        self._lease_seconds = lease_seconds
        self._max_pending_tasks = max_pending_tasks
        self._refuse = refuse
        self._said: queue.Queue[Message] = queue.Queue()
        self._numbers: dict[bytes, int] = {}
        self.peer = b""
        self._started: queue.Queue[str | BaseException] = queue.Queue()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, args=(address,))
        self._thread.start()
        started = self._started.get(timeout=WAIT_SECONDS)
        if isinstance(started, BaseException):
            raise started
        self.address = started

    def __enter__(self) -> RigScheduler:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _exception: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close like a stopped scheduler."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(WAIT_SECONDS)

    # -- messages from clients

    def next(self, kind: type[MessageT]) -> MessageT:
        """Wait for the next message of a kind, and skip other messages."""
        while True:
            message = self._said.get(timeout=WAIT_SECONDS)
            if isinstance(message, kind):
                return message

    def next_tasks(self, count: int) -> dict[bytes, TaskGroup]:
        """Wait until this many tasks have arrived. Returns their groups by id."""
        found: dict[bytes, TaskGroup] = {}
        while len(found) < count:
            for group in self.next(Submit).groups:
                found.update(dict.fromkeys(group.ids, group))
        return found

    # -- messages from the scheduler

    def say(self, message: Message) -> None:
        self._loop.call_soon_threadsafe(self._listener.send, self.peer, message)

    def finish(self, values: dict[bytes, Any], outcome: Outcome = Outcome.SUCCESS) -> None:
        """Report that tasks have ended with these values. Bytes are sent as payloads without encoding."""
        payloads = [value if type(value) is bytes else pickle.dumps(value, 5) for value in values.values()]
        self._numbers[self.peer] = number = self._numbers.get(self.peer, 0) + 1
        count = len(values)
        self.say(Finished(number, list(values), [outcome] * count, payloads, [7] * count))

    # -- thread

    def _run(self, address: str) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._listen(address))
        except Exception as error:  # noqa: BLE001 (raised again where the rig is created)
            self._started.put(error)
        else:
            self._started.put(self._listener.addresses[0])
            self._loop.run_forever()
            self._listener.close()
        self._loop.close()

    async def _listen(self, address: str) -> None:
        self._listener = SocketListener(
            [address], server_kind="scheduler", admit=self._admit, on_events=self._on_events, has_local_listener=True
        )

    def _admit(self, _peer: bytes, _hello: Hello, _identity: Identity) -> Welcome | Refused:
        if self._refuse is not None:
            return self._refuse
        return Welcome(
            resumed=False,
            incarnation=1,
            lease_seconds=self._lease_seconds,
            heartbeat_seconds=0.1,
            object_storage_address=self._storage_address,
            max_pending_tasks=self._max_pending_tasks,
        )

    def _on_events(self, events: list[ListenerEvent]) -> None:
        for event in events:
            match event:
                case Opened(peer=peer):
                    self.peer = peer
                    self._numbers[peer] = 0
                case Received(message=message):
                    self._said.put(message)
                case Resumed() | Broken() | Closed():
                    pass
