"""An object storage with a state directory, killed at any time: all stored objects survive."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from scaler.errors import LimitError, ObjectLostError, ScalerError
from scaler.ids import IdFactory, new_peer_id
from scaler.journal.journal import SEGMENT_BYTES
from scaler.object_storage.client import BlockingStorage, StorageClient
from scaler.object_storage.durable import MIN_FILE_BYTES, compact
from scaler.object_storage.server import StorageServer
from scaler.object_storage.spilling import StorageLimits
from scaler.protocol.messages import MAX_ATTACHED_BYTES, Role
from tests.integration.storage_rig import ObservedStorage, StorageProcess, storage_process

LARGE = [b"pickle", os.urandom(2 * MIN_FILE_BYTES)]


class Owner:
    """A client of a storage, and the ids of its objects."""

    def __init__(self) -> None:
        self.peer = new_peer_id()
        self.ids = IdFactory(self.peer)

    def at(self, storage: StorageProcess, timeout_seconds: float = 5.0) -> BlockingStorage:
        return BlockingStorage(
            lambda: StorageClient(storage.address, self.peer, Role.CLIENT, timeout_seconds=timeout_seconds)
        )


def run(path: Path, test: Callable[[ObservedStorage], Awaitable[None]], owner: Owner) -> None:
    """Run a storage of this process with a client, and stop it in order."""

    async def whole() -> None:
        server = StorageServer("tcp://127.0.0.1:0", StorageLimits(1 << 30), state_directory=str(path))
        client = ObservedStorage(server.addresses[0], owner.peer)
        try:
            await asyncio.wait_for(test(client), 30)
        finally:
            client.close()
            server.close()

    asyncio.run(whole())


def test_small_and_large_objects_survive_a_restart_unless_released(tmp_path: Path) -> None:
    owner = Owner()
    many_messages = [b"pickle", bytes(MAX_ATTACHED_BYTES) + b"end", b"another part"]
    kept = {owner.ids.object(): parts for parts in ([b"small"], LARGE, [], many_messages)}
    forgotten = {owner.ids.object(): parts for parts in ([b"small"], LARGE)}

    async def first(client: ObservedStorage) -> None:
        for identifier, parts in (kept | forgotten).items():
            await client.put(identifier, parts)
        before = (await client.stat()).state_bytes
        client.forget(list(forgotten))
        status = await client.stat()
        assert status.objects == len(kept)
        assert before - status.state_bytes == sum(map(len, LARGE))
        assert status.state_bytes == SEGMENT_BYTES + sum(map(len, [*LARGE, *many_messages]))

    async def second(client: ObservedStorage) -> None:
        for identifier, parts in kept.items():
            assert [bytes(part) for part in await client.get(identifier)] == parts
        for identifier in forgotten:
            with pytest.raises(ObjectLostError):
                await client.get(identifier)
        status = await client.stat()
        assert status.bytes == len(b"small")  # of memory
        assert status.state_bytes > SEGMENT_BYTES + sum(map(len, [*LARGE, *many_messages]))

    run(tmp_path, first, owner)
    run(tmp_path, second, owner)
    assert len(list((tmp_path / "objects" / "files").iterdir())) == 2
    compact(tmp_path / "objects", 3)
    run(tmp_path, second, owner)


def test_corrupt_file_counts_as_missing_and_can_be_rewritten(tmp_path: Path) -> None:
    owner = Owner()
    damaged, cut = owner.ids.object(), owner.ids.object()
    files = tmp_path / "objects" / "files"

    async def put(client: ObservedStorage) -> None:
        for identifier in (damaged, cut):
            await client.put(identifier, LARGE)

    async def get(client: ObservedStorage) -> None:
        for identifier in (damaged, cut):
            assert [bytes(part) for part in await client.get(identifier)] == LARGE

    async def miss(client: ObservedStorage) -> None:
        for identifier in (damaged, cut):
            with pytest.raises(ObjectLostError):
                await client.get(identifier)
        await put(client)

    run(tmp_path, put, owner)
    with (files / damaged.hex()).open("rb+") as file:
        file.seek(1_000_000)
        file.write(b"x")
    with (files / cut.hex()).open("rb+") as file:
        file.truncate(1_000)
    run(tmp_path, miss, owner)
    run(tmp_path, get, owner)


@pytest.mark.parametrize(("disk_bytes", "left"), [(1 << 40, 128), (1 << 28, 32)])
def test_object_too_large_for_the_disk_is_refused_and_the_next_is_stored(
    disk_bytes: int, left: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The reserve for journals is kept. The status reports missing space while it lasts, and the log once."""
    owner = Owner()
    free_bytes = left << 20
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=free_bytes, f_frsize=1, f_blocks=disk_bytes))
    refused, stored = owner.ids.object(), owner.ids.object()

    async def test(client: ObservedStorage) -> None:
        for _ in range(2):
            with pytest.raises(LimitError, match=r"cannot write to .*objects: No space left on device"):
                await client.put(refused, LARGE)
        with pytest.raises(ObjectLostError):
            await client.get(refused)
        assert f"objects are refused until {left + 3} MiB are free there" in (await client.stat()).disk_failure
        assert len([each for each in caplog.records if "objects are refused" in each.getMessage()]) == 1
        nonlocal free_bytes
        free_bytes = 1 << 30
        await client.put(stored, LARGE)
        assert not (await client.stat()).disk_failure

    run(tmp_path, test, owner)
    assert [path.name for path in (tmp_path / "objects" / "files").iterdir()] == [stored.hex()]


def test_answers_only_once_the_object_is_on_disk(tmp_path: Path) -> None:
    """Kills the storage while eight threads put: all acknowledged objects survive with the right bytes."""
    owner = Owner()
    answered: dict[bytes, int] = {}
    is_enough = threading.Event()

    def put_many(storage: StorageProcess, thread: int) -> None:
        client = owner.at(storage, timeout_seconds=1.0)
        try:
            for number in range(10_000):
                identifier = owner.ids.object()
                size = 50_000 if number % 5 else MIN_FILE_BYTES + number
                client.put(identifier, [bytes([thread]) * size])
                answered[identifier] = thread
                if len(answered) >= 60:
                    is_enough.set()
        except ScalerError:
            pass
        finally:
            client.close()

    with ThreadPoolExecutor(4) as threads:
        with storage_process("tcp://127.0.0.1:0", "--state-directory", str(tmp_path)) as storage:
            puts: list[Future[None]] = [threads.submit(put_many, storage, number) for number in range(4)]
            assert is_enough.wait(20)
            storage.kill()
        for put in puts:
            put.result()
    with storage_process("tcp://127.0.0.1:0", "--state-directory", str(tmp_path)) as storage:
        client = owner.at(storage)
        for identifier, thread in answered.items():
            (content,) = client.get(identifier)
            assert set(bytes(content)) == {thread}
        client.close()
