"""A server and peers over real sockets, shared by tests of connections."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import ParamSpec

from scaler.net.access import Access
from scaler.net.connection import ConnectorEvent, Identity, ListenerEvent, Received
from scaler.net.connector import SocketConnector
from scaler.net.keys import PeerKeys, ServerKeys
from scaler.net.listener import SocketListener
from scaler.net.versions import own_hello
from scaler.object_storage.messages import GetObject, StatStorage, StorageReply, StorageResult
from scaler.protocol.messages import PROTOCOL_VERSION, Hello, Refused, Role, Server, Welcome
from scaler.protocol.session import Header, OutboxLimits
from tests.waiting import soon

P = ParamSpec("P")
SESSION_ID = bytes(range(16))
OBJECT_BYTES = 60_000_000
made: list[Callable[[], None]] = []
"""Functions that close the resources of the running test, in reverse order. Closing twice is harmless."""


class Servant:
    """A storage server that answers requests. Every object has OBJECT_BYTES."""

    def __init__(
        self,
        *addresses: str,
        refuse: Refused | None = None,
        has_local_listener: bool = False,
        outbox: OutboxLimits | None = None,
        keys: ServerKeys | None = None,
        compression: str = "auto",
    ) -> None:
        self.events: list[ListenerEvent] = []
        self.when_greeted: Callable[[], None] = lambda: None
        self._refuse = refuse
        self.listener = SocketListener(
            addresses or ("tcp://127.0.0.1:0",),
            server_kind="object_storage",
            admit=self._admit,
            on_events=self._on_events,
            outbox=outbox,
            has_local_listener=has_local_listener,
            keys=keys,
            compression=compression,
        )
        made.append(self.listener.close)

    @property
    def address(self) -> str:
        return self.listener.addresses[0].replace("0.0.0.0", "127.0.0.1")

    def saw(self, kind: type[ListenerEvent]) -> bool:
        return any(isinstance(event, kind) for event in self.events)

    def _admit(self, _peer: bytes, _hello: Hello, _identity: Identity) -> Welcome | Refused:
        self.when_greeted()
        return self._refuse or Welcome(False, 1, lease_seconds=60.0, heartbeat_seconds=2.0)

    def _on_events(self, events: list[ListenerEvent]) -> None:
        self.events.extend(events)
        for event in events:
            if isinstance(event, Received) and isinstance(event.message, StatStorage):
                self.listener.send(event.peer, StorageReply(event.message.request, StorageResult.OK))
            elif isinstance(event, Received) and isinstance(event.message, GetObject):
                self.listener.send(event.peer, StorageReply(1, StorageResult.OK), [bytes(OBJECT_BYTES)])


class Asker:
    """A client that queries the server, to check that the server still answers."""

    def __init__(self, address: str, keys: PeerKeys | None = None) -> None:
        self.events: list[ConnectorEvent] = []
        access, hello = Access(is_insecure=True, compression="off", store_keys=keys), own_hello(Role.CLIENT)
        self.connector = SocketConnector(address, Server.OBJECT_STORAGE, access, hello, self.events.extend)
        made.append(self.connector.close)

    async def ask(self, number: int) -> None:
        self.connector.send(StatStorage(number))
        await until(
            lambda: any(
                isinstance(event, Received) and event.message == StorageReply(number, StorageResult.OK)
                for event in self.events
            )
        )


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    await soon(condition, seconds)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        try:
            await test()
        finally:
            while made:
                made.pop()()

    asyncio.run(whole())


def on_a_loop(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Run an async test on an event loop, and close its resources."""

    @functools.wraps(test)
    def run_it(*args: P.args, **kwargs: P.kwargs) -> None:
        run(lambda: test(*args, **kwargs))

    return run_it


def header(version: int = PROTOCOL_VERSION, sequence: int = 0, session: bytes = SESSION_ID) -> bytes:
    return Header(version, 0, session, sequence, 0).pack()
