"""A common interface to networks, for connection tests over ZeroMQ and in memory."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from scaler.ids import new_peer_id
from scaler.net.access import Access
from scaler.net.connection import ConnectorEvent, Identity, ListenerEvent
from scaler.net.connector import ConnectorShell, SocketConnector
from scaler.net.listener import Listener, SocketListener
from scaler.net.listener_core import Admission
from scaler.net.local import local_name
from scaler.net.versions import own_hello
from scaler.protocol import messages as m
from scaler.protocol.messages import Hello, Refused, Role, Welcome
from scaler.protocol.session import OutboxLimits
from tests.contracts.memory_network import MemoryConnector, MemoryNetwork
from tests.waiting import soon

PATIENCE_SECONDS = 4.0


def welcome_all(_peer: bytes, _hello: Hello, _identity: Identity) -> Welcome | Refused:
    return Welcome(False, 1, lease_seconds=60.0, heartbeat_seconds=2.0)


@dataclass
class Server:
    """A listener with all its events. Each iteration calls `react` with its events."""

    listener: Listener = field(init=False)
    events: list[ListenerEvent] = field(default_factory=list)
    react: Callable[[list[ListenerEvent]], None] = lambda _events: None

    def on_events(self, events: list[ListenerEvent]) -> None:
        self.events.extend(events)
        self.react(events)


@dataclass
class Peer:
    """A connector with all its events. Each iteration calls `react` with its events."""

    connector: ConnectorShell = field(init=False)
    events: list[ConnectorEvent] = field(default_factory=list)
    react: Callable[[list[ConnectorEvent]], None] = lambda _events: None

    def on_events(self, events: list[ConnectorEvent]) -> None:
        self.events.extend(events)
        self.react(events)


class Network(Protocol):
    """The interface of a network for tests."""

    def serve(
        self, kind: str = "object_storage", admit: Admission = welcome_all, outbox: OutboxLimits | None = None
    ) -> Server:
        """Start a server, always on the same address."""

    def connect(
        self,
        role: Role = Role.CLIENT,
        *,
        peer: bytes | None = None,
        hello: Hello | None = None,
        outbox: OutboxLimits | None = None,
    ) -> Peer:
        """Start a peer that connects to the server's address."""

    def until(self, condition: Callable[[], bool]) -> None:
        """Run until the condition holds. Fails after a time limit."""

    def break_connections(self) -> None:
        """Break all connections, which loses messages in flight."""

    def swallow(self) -> None:
        """Silently lose everything sent on the current connections."""

    def set_reachable(self, reachable: bool) -> None:
        """Make new connections fail or succeed again."""

    def close(self) -> None: ...


class InMemory:
    def __init__(self) -> None:
        self._network = MemoryNetwork(seed=7)
        self._connectors: list[MemoryConnector] = []

    def serve(
        self, kind: str = "object_storage", admit: Admission = welcome_all, outbox: OutboxLimits | None = None
    ) -> Server:
        server = Server()
        server.listener = self._network.listener(
            "tcp://127.0.0.1:1000", server_kind=kind, admit=admit, on_events=server.on_events, outbox=outbox
        )
        return server

    def connect(
        self,
        role: Role = Role.CLIENT,
        *,
        peer: bytes | None = None,
        hello: Hello | None = None,
        outbox: OutboxLimits | None = None,
    ) -> Peer:
        made = Peer()
        connector = self._network.connector(
            "tcp://127.0.0.1:1000",
            peer=peer or new_peer_id(),
            hello=hello or own_hello(role),
            on_events=made.on_events,
            outbox=outbox,
        )
        self._connectors.append(connector)
        made.connector = connector
        return made

    def until(self, condition: Callable[[], bool]) -> None:
        until = self._network.now + PATIENCE_SECONDS
        while not condition():
            assert self._network.now < until, "the condition did not become true"
            if not self._network.step():
                self._network.advance(0.005)

    def break_connections(self) -> None:
        for connector in self._connectors:
            self._network.break_connection(connector, duplicate=True)

    def swallow(self) -> None:
        for connector in self._connectors:
            self._network.swallow(connector)

    def set_reachable(self, reachable: bool) -> None:
        self._network.set_reachable("tcp://127.0.0.1:1000", reachable)

    def close(self) -> None:
        pass


class Relay:
    """Passes bytes between connectors and a listener, and injects faults."""

    def __init__(self, address: str, target: str, loop: asyncio.AbstractEventLoop, is_local: bool) -> None:
        self.reachable = True
        self._target = target
        self._is_local = is_local
        self._loop = loop
        if address.startswith("ipc://"):
            self._server = socket.socket(socket.AF_UNIX)
            self._server.bind(self._path(address))
            self._server.listen()
            self.address = address
        else:
            self._server = socket.create_server(("127.0.0.1", 0))
            self.address = f"tcp://127.0.0.1:{self._server.getsockname()[1]}"
        self._server.setblocking(False)
        self._accepted: list[socket.socket] = []
        self._sockets: set[socket.socket] = set()
        self._swallowed: set[socket.socket] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        loop.add_reader(self._server, self._accept)

    def _path(self, address: str) -> str:
        name = local_name(address) if self._is_local else address.removeprefix("ipc://")
        assert name is not None, "this host has no local listeners"
        return name

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            here, _ = self._server.accept()
            here.setblocking(False)
            self._accepted.append(here)
            task = self._loop.create_task(self._serve(here))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, here: socket.socket) -> None:
        with here, contextlib.suppress(OSError):
            if not self.reachable:
                return
            with self._connected() as there:
                pair = {here, there}
                self._sockets |= pair
                try:
                    await asyncio.gather(self._pass(here, there), self._pass(there, here))
                finally:
                    self._sockets -= pair

    def _connected(self) -> socket.socket:
        if self._target.startswith("ipc://"):
            there = socket.socket(socket.AF_UNIX)
            try:
                there.connect(self._path(self._target))
            except OSError:
                there.close()
                raise
        else:
            host, _, port = self._target.removeprefix("tcp://").rpartition(":")
            there = socket.create_connection((host, int(port)))
        there.setblocking(False)
        return there

    async def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := await self._loop.sock_recv(source, 65536):
                if source not in self._swallowed:
                    # Unwritten bytes are lost, but bytes from the other side may still be read.
                    with contextlib.suppress(OSError):
                        await self._loop.sock_sendall(target, piece)
        if source not in self._swallowed:
            with contextlib.suppress(OSError):
                target.shutdown(socket.SHUT_WR)

    def swallow(self) -> None:
        self._swallowed |= self._sockets

    def cut(self) -> None:
        for connection in self._sockets:
            connection.shutdown(socket.SHUT_RDWR)
        self._swallowed.clear()

    async def stop(self) -> None:
        self._loop.remove_reader(self._server)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for here in (*self._accepted, self._server):
            here.close()


class OverZmq:
    """Connectors reach the listener through a relay, which injects a test's faults."""

    def __init__(
        self,
        address: str,
        relayed: str,
        loop: asyncio.AbstractEventLoop,
        is_local: bool = False,
        compression: str = "auto",
    ) -> None:
        """is_local: the relay is a local listener, and forwards to the server's local listener."""
        self._compression = compression
        self._loop = loop
        self._address = address
        self._is_local = is_local
        self._relay = Relay(relayed, address, loop, is_local)
        self._ends: list[SocketListener | SocketConnector] = []

    def serve(
        self, kind: str = "object_storage", admit: Admission = welcome_all, outbox: OutboxLimits | None = None
    ) -> Server:
        async def make() -> SocketListener:
            return SocketListener(
                [self._address],
                server_kind=kind,
                admit=admit,
                on_events=server.on_events,
                outbox=outbox,
                has_local_listener=self._is_local,
                compression=self._compression,
            )

        server = Server()
        server.listener = listener = self._loop.run_until_complete(make())
        self._ends.append(listener)
        return server

    def connect(
        self,
        role: Role = Role.CLIENT,
        *,
        peer: bytes | None = None,
        hello: Hello | None = None,
        outbox: OutboxLimits | None = None,
    ) -> Peer:
        async def make() -> SocketConnector:
            return SocketConnector(
                self._relay.address,
                m.Server.OBJECT_STORAGE,
                Access(is_insecure=True, compression=self._compression),
                hello or own_hello(role),
                made.on_events,
                peer=peer or new_peer_id(),
                outbox=outbox,
            )

        made = Peer()
        made.connector = connector = self._loop.run_until_complete(make())
        self._ends.append(connector)
        return made

    def until(self, condition: Callable[[], bool]) -> None:
        self._loop.run_until_complete(soon(condition, PATIENCE_SECONDS))

    def break_connections(self) -> None:
        self._relay.cut()

    def swallow(self) -> None:
        self._relay.swallow()

    def set_reachable(self, reachable: bool) -> None:
        self._relay.reachable = reachable

    def close(self) -> None:
        for end in reversed(self._ends):
            end.close()
        self._loop.run_until_complete(self._relay.stop())


def free_tcp_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"tcp://127.0.0.1:{taken.getsockname()[1]}"


def make_network(kind: str, directory: Path, loop: asyncio.AbstractEventLoop) -> Network:
    match kind:
        case "memory":
            return InMemory()
        case "tcp":
            return OverZmq(free_tcp_address(), "tcp://127.0.0.1:0", loop)
        case "compressed":
            return OverZmq(free_tcp_address(), "tcp://127.0.0.1:0", loop, compression="on")
        case "local":
            return OverZmq(f"ipc://{directory}/server", f"ipc://{directory}/relay", loop, is_local=True)
        case _:
            return OverZmq(f"ipc://{directory}/server", f"ipc://{directory}/relay", loop)
