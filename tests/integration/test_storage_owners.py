"""Clients with two keys and one object storage, reached over TCP as if from another host."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

import pytest

from scaler import Client
from scaler.config.addresses import beside
from scaler.errors import ObjectLostError, ProtocolError, RefusedError
from scaler.ids import IdFactory, content_id, result_id
from scaler.net.access import Access
from scaler.net.connection import ConnectorEvent, Received, Welcomed
from scaler.net.connector import SocketConnector
from scaler.net.versions import own_hello
from scaler.object_storage.client import StorageClient
from scaler.protocol.messages import (
    ClientDetails,
    Finished,
    Outcome,
    Role,
    Server,
    Spec,
    Submit,
    TaskGroup,
    stored_reference,
)
from scaler.security.credential import load_credential
from scaler.security.directory import KeysDirectory
from tests.integration.free_ports import free_addresses
from tests.integration.test_admission import Cluster

BIG = 2_000_000
COMMAND = "import sys, scaler.cli; sys.exit(getattr(scaler.cli, sys.argv.pop(1))())"


class FarCluster(Cluster):
    """A scheduler with two workers. No local listener exists, so all have keys."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.keys = KeysDirectory.create(home / "keys", "test")
        self.far = free_addresses("127.0.0.2")[0]
        self.storage = beside(self.far, 1, "")
        everywhere = self.far.replace("127.0.0.2", "0.0.0.0")
        farm = self.credential("farm", "manager")
        commands = (
            ("scheduler", everywhere, "-aosa", self.storage, "--credentials", str(self.keys.path)),
            ("cluster", self.far, "-n", "2", "--credentials", farm),
        )
        self.processes = [subprocess.Popen([sys.executable, "-c", COMMAND, *each]) for each in commands]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FarCluster]:
    made = FarCluster(tmp_path_factory.mktemp("owners"))
    try:
        yield made
    finally:
        for each in reversed(made.processes):
            each.terminate()
            each.wait(20)


class Peer:
    """A hand-written client that sends arbitrary messages to scheduler and storage."""

    def __init__(self, cluster: FarCluster, name: str, peer: bytes) -> None:
        path = cluster.home / f"{name}.credentials"
        self.access = Access(load_credential(path) if path.exists() else cluster.keys.add(name, "client"))
        if not path.exists():
            assert self.access.credential is not None
            cluster.file(self.access.credential)
        self.ids = IdFactory(peer)
        self.token = b""
        self._storage_address = cluster.storage
        self._arrived: asyncio.Queue[ConnectorEvent] = asyncio.Queue()
        hello = own_hello(Role.CLIENT, ClientDetails(name))
        self.connector = SocketConnector(cluster.far, Server.SCHEDULER, self.access, hello, self._on_events, peer=peer)

    def _on_events(self, events: Sequence[ConnectorEvent]) -> None:
        for event in events:
            self._arrived.put_nowait(event)

    async def welcomed(self) -> Peer:
        while not isinstance(event := await self._arrived.get(), Welcomed):
            pass
        self.token = event.welcome.owner_token
        return self

    async def answer(self, message: Submit) -> Finished:
        self.connector.send(message)
        while not (isinstance(event := await self._arrived.get(), Received) and isinstance(event.message, Finished)):
            pass
        return event.message

    def storage(self, peer: bytes | None = None, token: bytes | None = None) -> StorageClient:
        token = self.token if token is None else token
        return StorageClient(self._storage_address, peer or self.ids.owner, Role.CLIENT, self.access, owner_token=token)


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(main(), 30)

    asyncio.run(bounded())


def test_objects_of_a_key_cannot_be_read_or_replaced_by_another(cluster: FarCluster) -> None:
    async def main() -> None:
        alice = await Peer(cluster, "alice", b"alice--1").welcomed()
        bob = await Peer(cluster, "bob", b"bob----1").welcomed()
        mine, theirs = alice.storage(), bob.storage()
        secret, planned, absent = alice.ids.object(), alice.ids.object(), alice.ids.object()
        await mine.put(secret, [b"secret", bytes(BIG)])
        found = []
        for name in (secret, absent):
            with pytest.raises(ObjectLostError) as raised:
                await theirs.get(name)
            found.append(str(raised.value).replace(name.hex(), "ID"))
        assert found == ["object ID is not in the object storage: there is no such object"] * 2
        for name in (secret, planned, result_id(alice.ids.task(), 1)):
            with pytest.raises(ProtocolError, match="only its own objects"):
                await theirs.put(name, [b"evil"])
        assert [bytes(part[:6]) for part in await mine.get(secret)] == [b"secret", bytes(6)]
        with pytest.raises(ObjectLostError):
            await mine.get(planned)
        for each in (mine, theirs, alice.connector, bob.connector):
            each.close()

    run(main)


def test_storage_rejects_a_peer_id_of_another_client(cluster: FarCluster) -> None:
    async def main() -> None:
        alice = await Peer(cluster, "alice", b"alice--2").welcomed()
        bob = await Peer(cluster, "bob", b"bob----2").welcomed()
        secret = alice.ids.object()
        for token in (bob.token, b"", bytes(16)):
            intruder = bob.storage(alice.ids.owner, token)
            with pytest.raises(RefusedError, match="does not know key bob"):
                await intruder.get(secret)
            intruder.close()
        mine = alice.storage()  # the attempts cost her nothing
        await mine.put(secret, [b"secret"])
        mine.close()
        thief = bob.storage(alice.ids.owner, alice.token)  # a leaked token is useless with another key
        with pytest.raises(RefusedError, match="objects under another key"):
            await thief.get(secret)
        for each in (thief, alice.connector, bob.connector):
            each.close()

    run(main)


def test_tasks_get_no_objects_or_functions_of_another_key(cluster: FarCluster) -> None:
    async def main() -> None:
        alice = await Peer(cluster, "alice", b"alice--3").welcomed()
        bob = await Peer(cluster, "bob", b"bob----3").welcomed()
        mine = alice.storage()
        arguments, code = pickle.dumps(((bytes(BIG),), {})), pickle.dumps(len)
        secret, function = alice.ids.object(), alice.ids.object()
        await mine.put(secret, [arguments])
        await mine.put(function, [pickle.dumps(abs)])
        own = content_id(code)

        def submit(who: Peer, identifier: bytes, payload: bytes, references: tuple[bytes, ...] = ()) -> Submit:
            task = TaskGroup(Spec(identifier), [who.ids.task()], [pickle.dumps((b"abc",))], [references])
            return Submit([(identifier, payload)], [task])

        def outcome(answer: Finished) -> tuple[Outcome, bytes]:
            return Outcome(answer.outcomes[0]), answer.payloads[0]

        evil = pickle.dumps(abs)
        assert outcome(await bob.answer(submit(bob, own, evil)))[0] is Outcome.REJECTED
        assert outcome(await alice.answer(submit(alice, own, code))) == (Outcome.SUCCESS, pickle.dumps(3, 5))
        stored = stored_reference(function, 100)
        assert outcome(await bob.answer(submit(bob, function, stored)))[0] is Outcome.REJECTED
        assert outcome(await bob.answer(submit(bob, own, code, references=(secret,))))[0] is Outcome.OBJECT_LOST
        for each in (mine, alice.connector, bob.connector):
            each.close()

    run(main)


def total(*values: bytes) -> int:
    return sum(map(len, values))


def nested(client: Client) -> bytes:
    """Submit with large arguments and results from inside a task."""
    return bytes(client.submit(bytes.__add__, bytes(BIG), bytes(BIG)).result())


def test_workers_with_a_key_run_nested_tasks_with_large_objects(cluster: FarCluster) -> None:
    with cluster.connect(cluster.credential("carol")) as client:
        reference = client.send_object(bytes(BIG))
        assert client.submit(total, reference, bytes(BIG)).result(30) == 2 * BIG
        assert client.submit(total, client.submit(bytes, BIG)).result(30) == BIG
        assert len(client.submit(nested, client).result(30)) == 2 * BIG
