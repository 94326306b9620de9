"""Peers with a server's host and user use its local listener. Other peers, and peers that fail there, use ZeroMQ."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import subprocess
import sys

import psutil
import pytest

from scaler.net import transport
from scaler.net.connection import Closed, Opened, Received
from scaler.net.local import local_name
from scaler.net.versions import own_hello
from scaler.object_storage.messages import GetObject
from scaler.protocol.codec import encode
from scaler.protocol.messages import MAX_ATTACHED_BYTES, MAX_BATCH_BYTES, Role
from scaler.protocol.session import HEADER_BYTES, Header, OutboxLimits
from tests.integration.net_rig import SESSION_ID, Asker, Servant, header, made, on_a_loop, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there are no local listeners here")


def server_with(outbox: OutboxLimits | None = None, address: str = "tcp://127.0.0.1:0") -> Servant:
    return Servant(address, has_local_listener=True, outbox=outbox)


def name_of(address: str) -> str:
    found = local_name(address)
    assert found is not None
    return found


class UnidentifiedPeer:
    """A bare socket at a local listener."""

    def __init__(self, name: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(name)
        self.socket.setblocking(False)
        made.append(self.socket.close)

    async def say(self, body: bytes, sequence: int = 0, session: bytes = SESSION_ID) -> None:
        await self.put(struct.pack("=II", len(body), 0) + header(sequence=sequence, session=session) + body)

    async def greet(self) -> bytes:
        """Send a Hello and return the id of the session that the server opens."""
        await self.say(encode(own_hello(Role.CLIENT)))
        answer = await asyncio.get_running_loop().sock_recv(self.socket, 1 << 16)
        return Header.read(answer[8 : 8 + HEADER_BYTES]).session

    async def put(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.socket, data)

    async def was_cut(self) -> bool:
        async with asyncio.timeout(4):
            try:
                while await asyncio.get_running_loop().sock_recv(self.socket, 1 << 20):
                    pass
            except ConnectionResetError:
                pass
        return True


def tcp_connections(address: str) -> int:
    """Number of this process's ZeroMQ connections to this address."""
    port = int(address.rpartition(":")[2])
    return sum(
        connection.status == psutil.CONN_ESTABLISHED and connection.raddr.port == port
        for connection in psutil.Process().net_connections("tcp")
        if connection.raddr
    )


# -- which peers use it ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:0", "tcp://*:0"])
@on_a_loop
async def test_local_peers_use_the_local_listener_without_tcp(address: str) -> None:
    server = server_with(address=address)
    client = Asker(server.address)
    await client.ask(1)
    assert tcp_connections(server.address) == 0


@on_a_loop
async def test_bypasses_a_squatter_on_a_local_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "HANDSHAKE_SECONDS", 0.2)

    with socket.create_server(("127.0.0.1", 0)) as once:
        address = f"tcp://127.0.0.1:{once.getsockname()[1]}"
    name = local_name(address)
    with socket.socket(socket.AF_UNIX) as squatter:
        squatter.bind(name)  # type: ignore[arg-type]
        squatter.listen()
        client = Asker(server_with(address=address).address)
        await client.ask(1)


AS_NOBODY = """
import os, socket, sys
os.setuid(65534)
end = socket.socket(socket.AF_UNIX)
name = sys.argv[2].replace("@", chr(0), 1)
if sys.argv[1] == "sit":
    end.bind(name)
    end.listen()
    print("ready", flush=True)
    sys.stdin.read()
else:
    end.connect(name)
    print("cut" if end.recv(1) == b"" else "welcomed", flush=True)
"""


def as_nobody(what: str, name: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", AS_NOBODY, what, name.replace("\0", "@")]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")


@needs_root
@on_a_loop
async def test_other_user_is_refused_without_disturbing_peers() -> None:
    server = server_with()
    with as_nobody("come", name_of(server.address)) as other:
        client = Asker(server.address)
        await client.ask(1)
        said, _ = await asyncio.to_thread(other.communicate)
    assert said == "cut\n"
    await client.ask(2)
    assert sum(isinstance(event, Opened) for event in server.events) == 1


@needs_root
@on_a_loop
async def test_ignores_a_local_listener_of_another_user() -> None:
    with socket.create_server(("127.0.0.1", 0)) as once:
        address = f"tcp://127.0.0.1:{once.getsockname()[1]}"
    name = local_name(address)
    assert name is not None
    with as_nobody("sit", name) as other:
        assert other.stdout is not None
        assert await asyncio.to_thread(other.stdout.readline) == "ready\n"
        client = Asker(server_with(address=address).address)
        await client.ask(1)
        assert tcp_connections(address) == 1
        other.kill()


# -- unidentified peers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "noise",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 3,
        struct.pack("=II40s", MAX_BATCH_BYTES + 1, 0, bytes(40)),
        struct.pack("=II40sI", 1, 1, bytes(40), MAX_ATTACHED_BYTES + 1),
    ],
    ids=["http", "body", "attachment"],
)
@on_a_loop
async def test_only_the_connection_with_a_foreign_protocol_is_cut(noise: bytes) -> None:
    server = server_with()
    client = Asker(server.address)
    await client.ask(1)
    other_peer = UnidentifiedPeer(name_of(server.address))
    await other_peer.put(noise)
    assert await other_peer.was_cut()
    await client.ask(2)


# -- slow peers -------------------------------------------------------------------------------------------------------


@on_a_loop
async def test_peer_that_never_reads_is_closed_without_delaying_others() -> None:
    server = server_with(outbox=OutboxLimits(size_bytes=100_000_000))
    client = Asker(server.address)
    lazy = UnidentifiedPeer(name_of(server.address))
    session = await lazy.greet()
    await lazy.say(encode(GetObject(1, bytes(16), 1.0)), 1, session)
    await until(lambda: server.saw(Received))
    await client.ask(1)
    assert server.listener.outbox_bytes(SESSION_ID[:8]) > 60_000_000
    assert not server.saw(Closed)
    await lazy.say(encode(GetObject(2, bytes(16), 1.0)), 2, session)
    await until(lambda: server.saw(Closed))
    await client.ask(2)
