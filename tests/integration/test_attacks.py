"""What hostile connections cost a server, and that its other peers do not notice them."""

from __future__ import annotations

import os
import socket
import struct
import sys
from pathlib import Path

import psutil
import pytest
import zmq

from scaler.net import local
from scaler.net.connection import Broken, Closed, Opened
from scaler.net.versions import own_hello
from scaler.protocol.codec import encode
from scaler.protocol.messages import MAX_BATCH_BYTES, MAX_HELLO_BYTES, Heartbeat, Role
from scaler.protocol.session import Header
from tests.integration.net_rig import SESSION_ID, Asker, Servant, header, run, until
from tests.integration.test_net_local import UnidentifiedPeer, name_of

MEBIBYTE = 1024 * 1024
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="the kernel does not say what is needed")


def resident_bytes() -> int:
    return int(psutil.Process().memory_info().rss)


def announcement(body_bytes: int, attachments: int = 0, session: bytes = SESSION_ID) -> bytes:
    """The beginning of an envelope on the local transport."""
    return struct.pack("=IHH", body_bytes, attachments, 0) + header(session=session)


# -- the local transport ----------------------------------------------------------------------------------------------


@needs_linux
@pytest.mark.parametrize(
    "envelope",
    [announcement(MAX_HELLO_BYTES + 1), announcement(10, attachments=1), struct.pack("=IHH", 10, 0, 1) + header()],
    ids=["body", "attachment", "descriptor"],
)
def test_before_its_welcome_a_local_peer_may_announce_no_more_than_a_hello(envelope: bytes) -> None:
    async def test() -> None:
        server = Servant(has_local_listener=True)
        peer = UnidentifiedPeer(name_of(server.address))
        await peer.put(envelope)
        assert await peer.was_cut()
        assert not server.saw(Opened)

    run(test)


@needs_linux
def test_large_bodies_that_local_peers_announce_and_never_send_take_bounded_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(local, "MAX_PARTIAL_BYTES", 2 * MAX_BATCH_BYTES)

    async def test() -> None:
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
        # What a cut connection has announced counts no more.
        for peer, _ in peers[:2]:
            peer.socket.close()
        await until(lambda: sum(isinstance(event, Broken) for event in server.events) == 5)
        last = UnidentifiedPeer(name_of(server.address))
        await last.say(encode(own_hello(Role.CLIENT)))
        await until(lambda: sum(isinstance(event, Opened) for event in server.events) == 7)
        await last.put(announcement(MAX_BATCH_BYTES))
        await client.ask(3)
        assert sum(isinstance(event, Broken) for event in server.events) == 5

    run(test)


# -- attachments ------------------------------------------------------------------------------------------------------


def test_a_heartbeat_with_attachments_is_dropped_as_malformed() -> None:
    async def test() -> None:
        server = Servant("tcp://127.0.0.1:0")
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        with context, context.socket(zmq.DEALER) as peer:
            peer.linger = 0
            peer.connect(server.address)
            peer.send_multipart([header(), encode(own_hello(Role.CLIENT))])
            await until(lambda: server.saw(Opened))
            await until(lambda: bool(peer.poll(0)))
            session = Header.read(peer.recv_multipart()[0]).session
            for _ in range(5):
                peer.send_multipart([header(session=session), encode(Heartbeat(1.0)), b"x"])
            await until(lambda: server.saw(Closed))
            (closed,) = (event for event in server.events if isinstance(event, Closed))
            assert "Heartbeat carries no attachments" in closed.text

    run(test)


# -- ipc --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0o000, 0o027])
def test_an_ipc_socket_is_its_owners_only_from_its_first_moment(
    umask: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "socket"
    listen = socket.socket.listen
    modes = []

    def note_mode(self: socket.socket, backlog: int) -> None:
        modes.append(path.stat().st_mode & 0o777)
        listen(self, backlog)

    async def test() -> None:
        monkeypatch.setattr(socket.socket, "listen", note_mode)
        before = os.umask(umask)
        try:
            server = Servant(f"ipc://{path}")
        finally:
            os.umask(before)
        assert modes == [0o600]
        assert path.stat().st_mode & 0o777 == 0o600
        await Asker(server.address).ask(1)

    run(test)
