"""What only real sockets can show: unidentified peers, processes that die, addresses, and what is left behind."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import cycle
from pathlib import Path

import psutil
import pytest
import zmq

from scaler.errors import UsageError
from scaler.net import transport, zmq_listener
from scaler.net.connection import Broken, Closed, ConnectionRefused, Opened, Received
from scaler.net.keys import PeerKeys, ServerKeys, without_credential
from scaler.net.transport import MAX_MALFORMED_IN_A_ROW
from scaler.net.versions import own_hello
from scaler.protocol.codec import decode, encode
from scaler.protocol.messages import (
    MAX_ATTACHED_BYTES,
    PROTOCOL_VERSION,
    Hello,
    RefusalReason,
    Refused,
    Role,
    StatStorage,
)
from scaler.protocol.session import Header
from scaler.security.keys import Entry, new_key_pair
from tests.integration.net_rig import SESSION_ID, Asker, Servant, header, made, on_a_loop, run, until


class UnidentifiedPeer:
    """A bare ZeroMQ socket that says what it likes."""

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
        """Say Hello and return the id of the session that the server opens."""
        self.say(header(), encode(hello or own_hello(Role.CLIENT)))
        return Header.read((await self.hears())[0]).session

    async def hears(self) -> list[bytes]:
        """Return the frames of the next message that comes."""
        await until(lambda: bool(self._socket.poll(0)))
        return self._socket.recv_multipart()

    async def refused(self) -> Refused:
        """The next message that comes, which is a refusal."""
        await until(lambda: bool(self._socket.poll(0)))
        message = decode(self._socket.recv_multipart()[1])
        assert isinstance(message, Refused)
        return message

    def was_cut(self) -> bool:
        return bool(self._monitor.poll(0))


def test_a_process_with_few_free_descriptors_sends_its_first_large_frame() -> None:
    program = """if True:
        import os, resource, sys
        from collections import deque
        import zmq
        from scaler.net.zmq_transport import send_envelopes
        from scaler.protocol.session import Envelope
        context = zmq.Context()
        ours, theirs = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
        ours.bind("inproc://pair")
        theirs.connect("inproc://pair")
        lowest_free = os.dup(0)
        os.close(lowest_free)
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free + int(sys.argv[1]), hard))
        send_envelopes(ours, b"", deque([Envelope(b"header", bytes(1_000_000), (), [])]))
        print([len(frame) for frame in theirs.recv_multipart()], flush=True)
        os._exit(0)
    """
    for free in ("0", "3"):
        command = [sys.executable, "-c", program, free]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "[6, 1000000]\n", "")


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
async def test_garbage_in_good_frames_is_counted_and_in_the_end_refused_and_cut() -> None:
    server = Servant("tcp://127.0.0.1:0")
    client = Asker(server.address)
    other = UnidentifiedPeer(server.address)
    malformed: list[tuple[bytes, ...]] = [
        (b"alone",),
        (b"short", b"header"),
        (header(), os.urandom(100)),
        (header(sequence=1), encode(StatStorage(1))),
        (header(), b"", *([b"x"] * 3000)),
    ]
    assert len(malformed) == MAX_MALFORMED_IN_A_ROW
    for frames in malformed:
        other.say(*frames)
    refused = await other.refused()
    assert refused.reason is RefusalReason.MALFORMED
    await until(other.was_cut)
    await client.ask(1)


@on_a_loop
async def test_malformed_within_a_session_counts_for_its_peer_and_ends_it() -> None:
    server = Servant("tcp://127.0.0.1:0")
    other = UnidentifiedPeer(server.address)
    session = await other.greet()
    other.say(header(session=bytes(16)), encode(StatStorage(1)))
    other.say(Header(PROTOCOL_VERSION, 0, session, 1, 99).pack(), encode(StatStorage(1)))
    other.say(header(session=session), encode(own_hello(Role.CLIENT)))
    other.say(header(sequence=1, session=session), encode(StatStorage(1)))
    await until(lambda: server.saw(Received))
    assert not server.saw(Closed)
    for _ in range(MAX_MALFORMED_IN_A_ROW):
        other.say(header(session=session), b"no message")
    await until(lambda: server.saw(Closed))


@on_a_loop
async def test_a_missing_message_breaks_the_connection_and_not_the_session() -> None:
    server = Servant("tcp://127.0.0.1:0")
    other = UnidentifiedPeer(server.address)
    session = await other.greet()
    other.say(header(sequence=1, session=session), encode(StatStorage(1)))
    other.say(header(sequence=3, session=session), encode(StatStorage(3)))
    await until(lambda: server.saw(Broken))
    await until(other.was_cut)
    assert not server.saw(Closed)
    assert server.listener.outbox_bytes(SESSION_ID[:8]) > 0


@on_a_loop
async def test_another_protocol_version_is_refused_in_words_that_name_both() -> None:
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


@on_a_loop
async def test_an_oversized_frame_costs_its_sender_the_connection_and_no_other_peer() -> None:
    server = Servant("tcp://127.0.0.1:0")
    client = Asker(server.address)
    await client.ask(1)
    other = UnidentifiedPeer(server.address)
    session = await other.greet()
    other.say(header(sequence=1, session=session), encode(StatStorage(1)), bytes(MAX_ATTACHED_BYTES + 1))
    await until(other.was_cut)
    await until(lambda: server.saw(Broken))
    await client.ask(2)
    assert not server.saw(Closed)


# -- processes --------------------------------------------------------------------------------------------------------

CHILD = """
import asyncio, sys
from scaler.ids import new_peer_id
from scaler.net.versions import own_hello
from scaler.net.connector import SocketConnector
from scaler.protocol.messages import Role, StatStorage

async def main():
    welcomed = asyncio.Event()
    connector = SocketConnector(
        sys.argv[1], peer=new_peer_id(), hello=own_hello(Role.CLIENT), on_events=lambda events: welcomed.set()
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
async def test_a_killed_process_is_noticed_at_once(scheme: str, tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/socket" if scheme == "ipc" else "tcp://127.0.0.1:0"
    server = Servant(address, has_local_listener=scheme == "local")
    process = child(server.address, "stay")
    try:
        await until(lambda: server.saw(Received))
        process.kill()
        # Long before its lease of 60 s is over.
        await until(lambda: server.saw(Broken))
    finally:
        process.kill()
        process.wait()
    assert not server.saw(Closed)


@pytest.mark.parametrize("has_local_listener", [False, True], ids=["tcp", "local"])
@on_a_loop
async def test_what_was_sent_before_a_close_arrives_though_the_process_ends(has_local_listener: bool) -> None:
    server = Servant("tcp://127.0.0.1:0", has_local_listener=has_local_listener)
    process = child(server.address, "close")
    try:
        await until(lambda: server.saw(Closed))
    finally:
        process.kill()
        process.wait()
    assert sum(isinstance(event, Received) for event in server.events) == 100


@pytest.mark.parametrize("has_local_listener", [False, True], ids=["tcp", "local"])
@on_a_loop
async def test_a_forked_child_leaves_its_parents_connections_alone(has_local_listener: bool) -> None:
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


@pytest.mark.parametrize("has_local_listener", [False, True], ids=["tcp", "local"])
def test_closing_leaves_no_descriptor_and_no_thread_and_frees_the_address(has_local_listener: bool) -> None:
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


@on_a_loop
async def test_a_server_may_have_several_addresses(tmp_path: Path) -> None:
    server = Servant("tcp://127.0.0.1:0", f"ipc://{tmp_path}/socket", "tcp://*:0")
    assert len(server.listener.addresses) == 3
    clients = [Asker(address.replace("0.0.0.0", "127.0.0.1")) for address in server.listener.addresses]
    for client in clients:
        await client.ask(1)
    for client in clients:
        client.connector.close()
    server.listener.close()
    assert not (tmp_path / "socket").exists()


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="this host has no IPv6")
@on_a_loop
async def test_ipv6_addresses_are_written_in_brackets() -> None:
    server = Servant("tcp://[::1]:0")
    client = Asker(server.address)
    await client.ask(1)


@on_a_loop
async def test_what_a_dead_server_left_at_an_ipc_path_is_no_hindrance(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))

    server = Servant(f"ipc://{path}")
    client = Asker(server.address)
    await client.ask(1)


@on_a_loop
async def test_addresses_that_cannot_be_listened_on_are_named_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a socket")

    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"tcp://127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(UsageError, match=rf"{taken}: it is in use by this process itself; .*another address"):
            Servant(taken)
    with pytest.raises(UsageError, match="this host has no such address"):
        Servant("tcp://192.0.2.7:0")
    with pytest.raises(UsageError, match="directory does not exist"):
        Servant(f"ipc://{tmp_path}/missing/socket")
    with pytest.raises(UsageError, match="no socket"):
        Servant(f"ipc://{tmp_path}/file")
    with pytest.raises(UsageError, match="tcp://host:port"):
        Servant("http://127.0.0.1:80")
    # Nothing of the good address stays behind when another one is bad.
    server = Servant("tcp://127.0.0.1:0")
    good = server.address
    server.listener.close()
    with pytest.raises(UsageError):
        Servant(good, "tcp://192.0.2.7:0")
    Servant(good).listener.close()


# -- why there is no connection ----------------------------------------------------------------------------------------


@on_a_loop
async def test_a_server_that_is_not_there_is_tried_again_and_the_reason_known() -> None:
    with socket.create_server(("127.0.0.1", 0)) as once:
        address = f"tcp://127.0.0.1:{once.getsockname()[1]}"
    client = Asker(address)
    await until(lambda: client.connector.last_error.startswith("connection refused"))
    # It has not given up.
    Servant(address)
    await client.ask(1)
    client.connector.close()
    assert client.connector.last_error == "it was closed"


@on_a_loop
async def test_something_that_is_no_server_is_named_as_such() -> None:
    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    web = await asyncio.start_server(answer, "127.0.0.1", 0)
    client = Asker(f"tcp://127.0.0.1:{web.sockets[0].getsockname()[1]}")
    await until(lambda: "does not speak ZeroMQ" in client.connector.last_error)
    client.connector.close()
    web.close()
    await web.wait_closed()


@on_a_loop
async def test_a_forwarder_whose_server_is_away_refuses_nobody() -> None:
    """It accepts, reads, and closes: to ZeroMQ this looks like a server that this peer has the wrong key of."""
    attempts = 0

    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal attempts
        attempts += 1
        # With nothing left to read, the connection ends as that to a server with another key does, without a reset.
        with suppress(TimeoutError):
            await asyncio.wait_for(reader.read(1000), 0.02)
        writer.close()

    forwarder = await asyncio.start_server(close, "127.0.0.1", 0)
    address = f"tcp://127.0.0.1:{forwarder.sockets[0].getsockname()[1]}"
    clients = [Asker(address), Asker(address, keys=without_credential())]
    await until(lambda: attempts > 8 * len(clients))
    forwarder.close()
    await forwarder.wait_closed()
    assert [client.events for client in clients] == [[], []]
    assert all("closed at once" in client.connector.last_error for client in clients)

    Servant(address)
    await clients[0].ask(1)


@pytest.mark.parametrize(
    ("mechanism", "keys", "text"),
    [(b"NULL", without_credential(), "older than keys"), (b"CURVE", None, "asks for keys")],
)
@on_a_loop
async def test_a_server_that_ends_the_handshake_first_is_known_by_its_greeting(
    mechanism: bytes, keys: PeerKeys | None, text: str
) -> None:
    """The end of the connection may overtake what ZeroMQ would have said of the greeting."""
    greeting = b"\xff" + bytes(8) + b"\x7f\3\1" + mechanism.ljust(52, b"\0")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append(writer)
        writer.write(greeting[:10])
        if len(await reader.readexactly(11)) == 11 and next(attempts):
            writer.write(greeting[10:])
        writer.close()

    attempts = cycle((False, True))  # a plain connection follows each that ZeroMQ makes
    accepted: list[asyncio.StreamWriter] = []

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    client = Asker(f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}", keys=keys)
    await until(lambda: was_refused(client))
    assert has_heard(client, text)
    client.connector.close()
    server.close()
    await server.wait_closed()
    while answers := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.gather(*answers, return_exceptions=True)
    for writer in accepted:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


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
async def test_a_program_on_the_port_of_a_server_that_has_ended_ends_no_peer_that_was_welcomed() -> None:
    """What it says about keys is not encrypted, so it need not have the server's."""

    pair, own = new_key_pair(), new_key_pair()
    admits = ServerKeys(pair, Admitted({own.public: Entry("alice", "client")}))
    keys = PeerKeys(pair.public, own, "alice")
    server = Servant("tcp://127.0.0.1:0", keys=admits)
    client = Asker(server.address, keys)
    await client.ask(1)
    for squatter, text in ((None, "insecure_no_auth"), (ServerKeys(pair, Admitted()), "does not know the key")):
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


@on_a_loop
async def test_a_newcomer_with_a_key_waits_for_a_server_that_has_no_descriptor_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server cuts its connections in the handshake, as one does that has another key."""
    scarce = iter([True] * 10)  # a plain connection follows each that ZeroMQ makes
    monkeypatch.setattr(zmq_listener, "is_scarce", lambda _descriptor: next(scarce, False))

    pair, own = new_key_pair(), new_key_pair()
    server = Servant("tcp://127.0.0.1:0", keys=ServerKeys(pair, Admitted({own.public: Entry("alice", "client")})))
    await Asker(server.address, PeerKeys(pair.public, own, "alice")).ask(1)
    assert next(scarce, None) is None


@on_a_loop
async def test_a_newcomer_waits_for_a_server_that_cannot_read_its_list_of_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "HANDSHAKE_SECONDS", 0.2)  # ZeroMQ keeps such a connection open and says nothing

    class Unreadable(Admitted):
        is_unreadable = True
        refreshed = 0

        def refresh(self) -> None:
            self.refreshed += 1
            if self.refreshed == 4:
                self.is_unreadable = False
                self[own.public] = Entry("alice", "client")

    pair, own = new_key_pair(), new_key_pair()

    server = Servant("tcp://127.0.0.1:0", keys=ServerKeys(pair, Unreadable()))
    await Asker(server.address, PeerKeys(pair.public, own, "alice")).ask(1)


@on_a_loop
async def test_a_refusal_is_the_last_error_of_its_connector() -> None:
    server = Servant("tcp://127.0.0.1:0", refuse=Refused(RefusalReason.VERSION, "Python 3.10 here, 3.11 there"))
    client = Asker(server.address)
    await until(lambda: any(isinstance(event, ConnectionRefused) for event in client.events))
    assert client.connector.last_error == "Python 3.10 here, 3.11 there"
