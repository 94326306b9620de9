"""Costs of hostile connections for a server, and that its other peers are unaffected."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from scaler.net import connector, local
from scaler.net.connection import Broken, Opened
from scaler.net.versions import own_hello
from scaler.protocol.codec import encode
from scaler.protocol.messages import MAX_BATCH_BYTES, MAX_HELLO_BYTES, Role
from tests.integration.net_rig import SESSION_ID, Asker, Servant, header, made, on_a_loop, run, until
from tests.integration.test_net_local import UnidentifiedPeer, name_of

MEBIBYTE = 1024 * 1024
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="the kernel does not say what is needed")


def resident_bytes() -> int:
    return int(psutil.Process().memory_info().rss)


def announcement(body_bytes: int, attachments: int = 0, session: bytes = SESSION_ID) -> bytes:
    """The start of an envelope on the local transport."""
    return struct.pack("=IHH", body_bytes, attachments, 0) + header(session=session)


# -- the local transport ----------------------------------------------------------------------------------------------


@needs_linux
@pytest.mark.parametrize(
    "envelope",
    [announcement(MAX_HELLO_BYTES + 1), announcement(10, attachments=1), struct.pack("=IHH", 10, 0, 1) + header()],
    ids=["body", "attachment", "descriptor"],
)
@on_a_loop
async def test_local_peer_may_announce_only_a_hello_before_its_welcome(envelope: bytes) -> None:
    server = Servant(has_local_listener=True)
    peer = UnidentifiedPeer(name_of(server.address))
    await peer.put(envelope)
    assert await peer.was_cut()
    assert not server.saw(Opened)


@needs_linux
@on_a_loop
async def test_large_announced_but_unsent_bodies_use_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "MAX_PARTIAL_BYTES", 2 * MAX_BATCH_BYTES)

    server = Servant(has_local_listener=True)
    client = Asker(server.address)
    await client.ask(1)
    before = resident_bytes()
    peers = []
    for number in range(5):
        session = bytes([number]) * 16
        peer = UnidentifiedPeer(name_of(server.address))
        await peer.say(encode(own_hello(Role.CLIENT)), session=session)
        peers.append((peer, session))
    await until(lambda: sum(isinstance(event, Opened) for event in server.events) == 6)
    for peer, session in peers:
        await peer.put(announcement(MAX_BATCH_BYTES, session=session))
    for peer, _ in peers[2:]:
        assert await peer.was_cut()
    assert resident_bytes() - before < 2 * MAX_BATCH_BYTES + 16 * MEBIBYTE
    await client.ask(2)
    # Announcements of a cut connection no longer count.
    for peer, _ in peers[:2]:
        peer.socket.close()
    await until(lambda: sum(isinstance(event, Broken) for event in server.events) == 5)
    last = UnidentifiedPeer(name_of(server.address))
    await last.say(encode(own_hello(Role.CLIENT)))
    await until(lambda: sum(isinstance(event, Opened) for event in server.events) == 7)
    await last.put(announcement(MAX_BATCH_BYTES))
    await client.ask(3)
    assert sum(isinstance(event, Broken) for event in server.events) == 5


# -- attachments ------------------------------------------------------------------------------------------------------


# -- endless and incomplete messages over TCP -------------------------------------------------------------------------

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
READY = b"\x04\x29\x05READY\x0bSocket-Type\0\0\0\x06DEALER\x08Identity\0\0\0\0"
MORE = 1
LARGE_FRAME = struct.pack(">BQ", MORE | 2, MEBIBYTE) + bytes(MEBIBYTE)


class RawPeer:
    """A peer that implements ZeroMQ's protocol itself, and so can break its rules."""

    def __init__(self, address: str) -> None:
        self.socket = socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])))
        made.append(self.socket.close)
        self.socket.sendall(GREETING + READY)
        # A frame that arrives before the server is ready would be part of the handshake.
        received = b""
        while b"ROUTER" not in received:
            received += self.socket.recv(1000)

    def say(self, data: bytes, flags: int = 0) -> None:
        self.socket.sendall(struct.pack(">BQ", flags | 2, len(data)) + data)

    async def say_without_end(self) -> int:
        """Send frames of one message until the connection ends. Returns the peak memory growth."""
        before, peak = resident_bytes(), 0
        self.socket.setblocking(False)

        async def say() -> None:
            nonlocal peak
            while True:
                with contextlib.suppress(OSError):
                    await asyncio.get_running_loop().sock_sendall(self.socket, LARGE_FRAME)
                peak = max(peak, resident_bytes() - before)
                await asyncio.sleep(0)

        saying = asyncio.create_task(say())
        with contextlib.suppress(ConnectionResetError):
            while await asyncio.get_running_loop().sock_recv(self.socket, 1000):
                pass
        saying.cancel()
        return peak


@needs_linux
@pytest.mark.parametrize("is_welcome", [False, True], ids=["before its welcome", "after it"])
@on_a_loop
async def test_message_of_endless_frames_is_cut_before_filling_memory(is_welcome: bool) -> None:
    server = Servant("tcp://127.0.0.1:0")
    client = Asker(server.address)
    await client.ask(1)
    peer = RawPeer(server.address)
    if is_welcome:
        peer.say(header(), MORE)
        peer.say(encode(own_hello(Role.CLIENT)))
        await until(lambda: sum(isinstance(event, Opened) for event in server.events) == 2)
    # Everything that arrived during the growth was checked, and shut down the connection.
    assert await peer.say_without_end() < (512 if is_welcome else 128) * MEBIBYTE
    await client.ask(2)
    if is_welcome:
        await until(lambda: server.saw(Broken))
    assert not any(isinstance(event, Broken) for event in client.events)


# -- ipc --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0o000, 0o027])
@on_a_loop
async def test_ipc_socket_is_private_from_the_start(
    umask: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "socket"
    listen = socket.socket.listen
    modes = []

    def note_mode(self: socket.socket, backlog: int) -> None:
        modes.append(path.stat().st_mode & 0o777)
        listen(self, backlog)

    monkeypatch.setattr(socket.socket, "listen", note_mode)
    before = os.umask(umask)
    try:
        server = Servant(f"ipc://{path}")
    finally:
        os.umask(before)
    assert modes == [0o600]
    assert path.stat().st_mode & 0o777 == 0o600
    await Asker(server.address).ask(1)


# -- many silent connections ------------------------------------------------------------------------------------------

WITH_FEW_DESCRIPTORS = """
import asyncio, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
from tests.integration.net_rig import Servant

async def main():
    server = Servant("tcp://127.0.0.1:0", has_local_listener=True)
    print(server.address, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    server.listener.close()

asyncio.run(main())
"""


def connect(kind: str, address: str) -> socket.socket:
    if kind == "local":
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(name_of(address))
    else:
        connection = socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])))
    connection.setblocking(False)
    made.append(connection.close)
    return connection


@needs_linux
@pytest.mark.parametrize("kind", ["tcp", "local"])
def test_silent_connections_leave_descriptors_for_new_peers(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "tcp":
        monkeypatch.setattr(connector, "connect_local", lambda *_: None)

    async def test() -> None:
        known = Asker(address)
        await known.ask(1)
        for _ in range(300):
            connect(kind, address)
        new = Asker(address)
        await new.ask(1)
        await known.ask(2)
        assert not any(isinstance(event, Broken) for event in known.events)
        await until(lambda: psutil.Process(process.pid).num_fds() <= 256 - 64)

    command = [sys.executable, "-c", WITH_FEW_DESCRIPTORS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        address = process.stdout.readline().strip()
        try:
            run(test)
        finally:
            process.stdin.close()
