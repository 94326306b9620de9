"""Behaviour that needs real sockets: unidentified peers, dying processes, addresses, and leftovers."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import pytest
import zmq

from scaler.errors import UsageError
from scaler.net.connection import Broken, Closed, ConnectionRefused, Opened, Received
from scaler.net.keys import PeerKeys, ServerKeys
from scaler.net.versions import own_hello
from scaler.object_storage.messages import StatStorage
from scaler.protocol.codec import decode, encode
from scaler.protocol.messages import PROTOCOL_VERSION, Hello, RefusalReason, Refused, Role
from scaler.protocol.session import Header
from scaler.security.keys import Entry, new_key_pair
from tests.integration.net_rig import Asker, Servant, header, made, on_a_loop, run, until


class UnidentifiedPeer:
    """A bare ZeroMQ socket that sends arbitrary messages."""

    def __init__(self, address: str) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.reconnect_ivl = 3_600_000
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._socket.connect(address)
        made.append(lambda: self._context.destroy(linger=0))

    def say(self, *frames: bytes) -> None:
        self._socket.send_multipart(frames)

    async def greet(self, hello: Hello | None = None) -> bytes:
        """Send a Hello and return the id of the session that the server opens."""
        self.say(header(), encode(hello or own_hello(Role.CLIENT)))
        return Header.read((await self.hears())[0]).session

    async def hears(self) -> list[bytes]:
        """Return the frames of the next message."""
        await until(lambda: bool(self._socket.poll(0)))
        return self._socket.recv_multipart()

    async def refused(self) -> Refused:
        """Return the next message, which must be a refusal."""
        await until(lambda: bool(self._socket.poll(0)))
        message = decode(self._socket.recv_multipart()[1])
        assert isinstance(message, Refused)
        return message

    def was_cut(self) -> bool:
        return bool(self._monitor.poll(0))


# -- unidentified peers -----------------------------------------------------------------------------------------------


@on_a_loop
async def test_http_and_random_bytes_on_the_port_disturb_no_peer() -> None:
    server = Servant("tcp://127.0.0.1:0")
    client = Asker(server.address)
    await client.ask(1)
    port = int(server.address.rpartition(":")[2])
    others = []
    for noise in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", os.urandom(10_000), b"\xff" + bytes(200), b""):
        other = socket.create_connection(("127.0.0.1", port))
        others.append(other)
        other.sendall(noise)
    await client.ask(2)
    for other in others:
        other.close()
    await client.ask(3)
    assert sum(isinstance(event, Opened) for event in server.events) == 1
    assert not server.saw(Closed)


@on_a_loop
async def test_peer_that_ends_before_its_first_message_is_not_called_a_peer_without_a_key(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "scaler.net.listener")
    server = Servant("tcp://127.0.0.1:0")
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    made.append(lambda: context.destroy(linger=0))
    peer = context.socket(zmq.DEALER)
    monitor = peer.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
    peer.connect(server.address)
    assert monitor.poll(10_000)
    peer.disable_monitor()
    for each in monitor, peer:
        each.close(linger=0)
    await until(lambda: "closed before it sent a message" in caplog.text or "refused" in caplog.text)
    assert "refused" not in caplog.text


@pytest.mark.parametrize(
    "frames",
    [
        (b"alone",),
        (b"short", b"header"),
        (header(), os.urandom(100)),
        (header(sequence=1), encode(StatStorage(1))),
        (header(), b"", *([b"x"] * 3000)),
    ],
    ids=["alone", "short", "random", "sequenced", "attachments"],
)
@on_a_loop
async def test_peer_that_does_not_begin_with_a_hello_is_refused(frames: tuple[bytes, ...]) -> None:
    server = Servant("tcp://127.0.0.1:0")
    client = Asker(server.address)
    other = UnidentifiedPeer(server.address)
    other.say(*frames)
    refused = await other.refused()
    assert refused.reason is RefusalReason.MALFORMED
    await until(other.was_cut)
    await client.ask(1)


@on_a_loop
async def test_refusal_of_another_protocol_version_names_both() -> None:
    server = Servant("tcp://127.0.0.1:0")
    other = UnidentifiedPeer(server.address)
    other.say(header(version=9), b"whatever that version says")
    refused = await other.refused()
    assert refused.reason is RefusalReason.VERSION
    assert "protocol 9" in refused.text
    again = UnidentifiedPeer(server.address)
    again.say(header(version=9), encode(replace(own_hello(Role.CLIENT), hostname="far-away", scaler_version="9.9")))
    refused = await again.refused()
    assert re.match(r"the client on far-away \(pid \d+, scaler 9\.9\) speaks protocol 9, this server on", refused.text)
    assert f"protocol {PROTOCOL_VERSION}" in refused.text


# -- processes --------------------------------------------------------------------------------------------------------

CHILD = """
import asyncio, sys
from scaler.net.access import Access
from scaler.net.versions import own_hello
from scaler.net.connector import SocketConnector
from scaler.object_storage.messages import StatStorage
from scaler.protocol.messages import Role, Server

async def main():
    welcomed = asyncio.Event()
    access, hello = Access(is_insecure=True), own_hello(Role.CLIENT)
    connector = SocketConnector(
        sys.argv[1], Server.OBJECT_STORAGE, access, hello, lambda events: welcomed.set()
    )
    await welcomed.wait()
    for number in range(100):
        connector.send(StatStorage(number))
    if sys.argv[2] == "close":
        connector.close("done")
    else:
        await asyncio.Event().wait()

asyncio.run(main())
"""


def child(address: str, then: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", CHILD, address, then])


@pytest.mark.parametrize("scheme", ["tcp", "ipc", "local"])
@on_a_loop
async def test_notices_a_killed_process_at_once(scheme: str, tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/socket" if scheme == "ipc" else "tcp://127.0.0.1:0"
    server = Servant(address, has_local_listener=scheme == "local")
    process = child(server.address, "stay")
    try:
        await until(lambda: server.saw(Received))
        process.kill()
        # Long before its lease of 60 s expires.
        await until(lambda: server.saw(Broken))
    finally:
        process.kill()
        process.wait()
    assert not server.saw(Closed)


@pytest.mark.parametrize("has_local_listener", [False, True], ids=["tcp", "local"])
@on_a_loop
async def test_messages_before_a_close_arrive_although_the_process_exits(has_local_listener: bool) -> None:
    server = Servant("tcp://127.0.0.1:0", has_local_listener=has_local_listener)
    process = child(server.address, "close")
    try:
        await until(lambda: server.saw(Closed))
    finally:
        process.kill()
        process.wait()
    assert sum(isinstance(event, Received) for event in server.events) == 100


@pytest.mark.parametrize("has_local_listener", [False, True], ids=["tcp", "local"])
def test_closing_leaves_no_descriptor_or_thread_and_frees_the_address(has_local_listener: bool) -> None:
    process = psutil.Process()

    async def test() -> None:
        address = "tcp://127.0.0.1:0"
        for _ in range(10):
            server = Servant(address, has_local_listener=has_local_listener)
            address = server.address
            client = Asker(address)
            await client.ask(1)
            client.connector.close()
            server.listener.close()
            server.listener.close()

    run(test)
    descriptors, threads = process.num_fds(), process.num_threads()
    run(test)
    assert process.num_fds() == descriptors
    assert process.num_threads() == threads


# -- addresses --------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="this host has no IPv6")
@on_a_loop
async def test_ipv6_addresses_are_written_in_brackets() -> None:
    server = Servant("tcp://[::1]:0")
    client = Asker(server.address)
    await client.ask(1)


@on_a_loop
async def test_unusable_listening_addresses_are_named_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a socket")

    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"tcp://127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(UsageError, match=rf"{taken}: it is in use by this process itself; .*another address"):
            Servant(taken)
    with pytest.raises(UsageError, match="this host has no such address"):
        Servant("tcp://192.0.2.7:0")
    with pytest.raises(UsageError, match="directory does not exist"):
        Servant(f"ipc://{tmp_path}/missing/socket")
    with pytest.raises(UsageError, match="not a socket"):
        Servant(f"ipc://{tmp_path}/file")
    with pytest.raises(UsageError, match="tcp://host:port"):
        Servant("http://127.0.0.1:80")
    # If one address is bad, nothing of the good one remains.
    server = Servant("tcp://127.0.0.1:0")
    good = server.address
    server.listener.close()
    with pytest.raises(UsageError):
        Servant(good, "tcp://192.0.2.7:0")
    Servant(good).listener.close()


# -- why there is no connection ----------------------------------------------------------------------------------------


@on_a_loop
async def test_unreachable_server_is_retried_with_a_known_reason() -> None:
    with socket.create_server(("127.0.0.1", 0)) as once:
        address = f"tcp://127.0.0.1:{once.getsockname()[1]}"
    client = Asker(address)
    await until(lambda: client.connector.last_error.startswith("connection refused"))
    # The client has not given up.
    Servant(address)
    await client.ask(1)
    client.connector.close()
    assert client.connector.last_error == "it was closed"


@pytest.mark.parametrize(
    "keys", [None, PeerKeys(new_key_pair().public, new_key_pair(), "of a test")], ids=["plain", "keys"]
)
@on_a_loop
async def test_connection_of_a_client_to_itself_counts_as_no_connection(
    keys: PeerKeys | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scaler.net.connector.check_server_addresses", str)
    with socket.create_server(("127.0.0.1", 0)) as once:
        port = once.getsockname()[1]
    # The kernel may choose a stopped server's port for the client's end. Here, the address forces that.
    client = Asker(f"tcp://127.0.0.1:{port};127.0.0.1:{port}", keys)
    await until(lambda: client.connector.last_error.startswith("connection refused"))
    assert not client.events
    assert not client.connector.connected


def was_refused(client: Asker) -> bool:
    return any(isinstance(event, ConnectionRefused) for event in client.events)


def has_heard(client: Asker, text: str) -> bool:
    return text in client.connector.last_error


class Admitted(dict[str, Entry]):
    """Public keys, as an allow-list that never changes."""

    is_unreadable = False

    def entry(self, public_key: str) -> Entry | None:
        return self.get(public_key)

    def entries(self) -> dict[str, Entry]:
        return self

    def refresh(self) -> None: ...


@on_a_loop
async def test_foreign_program_on_a_stopped_servers_port_ends_no_welcomed_peer() -> None:
    """Its statement about keys is not encrypted, so it need not have the server's."""

    pair, own = new_key_pair(), new_key_pair()
    admits = ServerKeys(pair, Admitted({own.public: Entry("alice", "client")}))
    keys = PeerKeys(pair.public, own, "alice")
    server = Servant("tcp://127.0.0.1:0", keys=admits)
    client = Asker(server.address, keys)
    await client.ask(1)
    for squatter, text in ((None, "insecure_no_auth"), (ServerKeys(pair, Admitted()), "does not know key")):
        server.listener.close()
        server = Servant(server.address, keys=squatter)
        newcomer = Asker(server.address, keys)
        await until(partial(was_refused, newcomer))
        assert has_heard(newcomer, text)
        await until(partial(has_heard, client, text))
        assert not was_refused(client)
    server.listener.close()
    Servant(server.address, keys=admits)
    await until(lambda: client.connector.connected)
    await client.ask(2)


@pytest.mark.parametrize("has_local_listener", [False, True], ids=["tcp", "local"])
@on_a_loop
async def test_forked_child_leaves_its_parents_connections_alone(has_local_listener: bool) -> None:
    server = Servant("tcp://127.0.0.1:0", has_local_listener=has_local_listener)
    client = Asker(server.address)
    await client.ask(1)
    pid = os.fork()
    if pid == 0:
        client.connector.close()
        server.listener.close()
        os._exit(0)
    assert os.waitpid(pid, 0) == (pid, 0)  # noqa: ASYNC222 (it ends at once, and the loop has to stand still)
    await client.ask(2)
    assert not server.saw(Closed)
