from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from scaler.errors import ClientClosedError, LimitError, ObjectLostError, UnreachableError
from scaler.ids import IdFactory, cached_id, new_peer_id
from scaler.net.access import Access
from scaler.net.connection import ConnectionRefused, ConnectorEvent, Welcomed
from scaler.net.connector import SocketConnector
from scaler.net.versions import own_hello
from scaler.object_storage.client import BlockingStorage, StorageClient
from scaler.object_storage.server import EmbeddedStorage
from scaler.protocol.messages import RefusalReason, Role, Server
from tests.integration.storage_rig import ObservedStorage, storage_process

PEER = new_peer_id()
MADE = IdFactory(PEER)
MB = 1_000_000


@contextmanager
def embedded() -> Iterator[str]:
    storage = EmbeddedStorage("tcp://127.0.0.1:0", 1_000 * MB)
    yield storage.address
    storage.close()


@contextmanager
def blocking(address: str, timeout_seconds: float = 5.0) -> Iterator[BlockingStorage]:
    storage = BlockingStorage(
        lambda: StorageClient(address, new_peer_id(), Role.WORKER, timeout_seconds=timeout_seconds)
    )
    yield storage
    storage.close()


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(main(), 30)

    asyncio.run(bounded())


def test_large_object_is_stored_once_and_freed_on_release() -> None:
    content = os.urandom(100 * MB)
    object_id = MADE.object()

    async def main() -> None:
        with storage_process() as storage:
            client = ObservedStorage(storage.address, PEER)
            await client.put(MADE.object(), [b"warm up"])
            before = storage.rss_bytes()
            await client.put(object_id, [b"pickle", content])
            assert (await client.stat()).bytes == 100 * MB + 13
            for _ in range(3):
                assert await client.get(object_id) == [b"pickle", content]
            assert storage.rss_bytes() - before < 130 * MB
            client.forget([object_id])
            assert (await client.stat()).bytes == 7
            gc.collect()
            while storage.rss_bytes() - before > 30 * MB:
                await client.stat()
            client.close()

    run(main)


def test_storage_serves_the_scheduler_with_the_latest_epoch_alone() -> None:
    async def main() -> None:
        with storage_process() as storage:

            def scheduler(epoch: int) -> asyncio.Queue[ConnectorEvent]:
                arrived = asyncio.Queue[ConnectorEvent]()
                access, hello = Access(is_insecure=True), replace(own_hello(Role.SCHEDULER), epoch=epoch)

                def take(events: list[ConnectorEvent]) -> None:
                    for event in events:
                        arrived.put_nowait(event)

                SocketConnector(storage.address, Server.OBJECT_STORAGE, access, hello, take)
                return arrived

            first = scheduler(1)
            assert isinstance(await first.get(), Welcomed)
            second = scheduler(2)
            assert isinstance(await second.get(), Welcomed)
            for refused in (await first.get(), await scheduler(1).get()):
                assert isinstance(refused, ConnectionRefused)
                assert refused.refused.reason is RefusalReason.STANDBY

    run(main)


def test_calls_fail_soon_after_the_storage_is_killed() -> None:
    with storage_process() as storage, blocking(storage.address, 0.5) as client:
        client.put(MADE.object(), [b"it works"])
        storage.kill()
        with pytest.raises(ObjectLostError, match=storage.address):
            client.get(MADE.object())
        with pytest.raises(UnreachableError, match=storage.address):
            client.put(MADE.object(), [b"nobody there"])


def test_calls_survive_a_storage_restart() -> None:
    async def main() -> None:
        object_id = MADE.object()
        with storage_process() as storage:
            address = storage.address
            client = ObservedStorage(address, PEER)
            await client.put(MADE.object(), [b"it works"])
            storage.kill()
            put = client.put(object_id, [b"said to the second one"])
        with storage_process(address):
            await put
            assert await client.get(object_id) == [b"said to the second one"]
            assert (await client.stat()).objects == 1
            client.close()

    run(main)


def test_command_line_limits_apply() -> None:
    flags = ("--memory-limit-bytes", "1000000", "--max-object-bytes", "400000", "--cache-limit-bytes", "1000")
    with storage_process("tcp://127.0.0.1:0", *flags) as storage, blocking(storage.address) as client:
        with pytest.raises(LimitError, match="max_object_bytes = 400000"):
            client.put(MADE.object(), [bytes(400_001)])
        client.put(MADE.object(), [bytes(400_000)])
        client.put(MADE.object(), [bytes(400_000)])
        with pytest.raises(LimitError, match="memory_limit_bytes = 1000000"):
            client.put(MADE.object(), [bytes(300_000)])
        with pytest.raises(LimitError, match="larger than cache_limit_bytes"):
            client.put(cached_id(MADE.owner, bytes(16)), [bytes(1_001)])


def test_forked_child_must_create_its_own_client() -> None:
    with embedded() as address, blocking(address) as inherited:
        object_id = MADE.object()
        inherited.put(object_id, [b"parent"])
        child = os.fork()
        if child == 0:
            code = 1
            try:
                try:
                    inherited.get(object_id)
                except ClientClosedError:
                    with blocking(address) as own:
                        code = 0 if own.get(object_id) == [b"parent"] else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# -- more than memory has room for -------------------------------------------------------------------------------------


def test_objects_beyond_memory_are_on_disk_and_read_from_there(tmp_path: Path) -> None:
    flags = ["--memory-limit-bytes", "20000000", "--spill-directory", str(tmp_path)]
    with storage_process("tcp://127.0.0.1:0", *flags) as storage, blocking(storage.address) as peer:
        contents = {MADE.object(): os.urandom(size) for size in [100_000] * 300 + [6_000_000] * 10}
        for identifier, content in contents.items():
            peer.put(identifier, [content])
        for identifier, content in contents.items():
            assert b"".join(peer.get(identifier)) == content
        assert list(tmp_path.iterdir()) == []  # the storage's files have no names, so a crash leaves none
        assert str(tmp_path) in Path(f"/proc/{storage.process.pid}/maps").read_text()


def test_full_spill_directory_refuses_new_objects_without_loss(tmp_path: Path) -> None:
    limits = ["--memory-limit-bytes", "10000000", "--spill-limit-bytes", "10000000"]
    with (
        storage_process("tcp://127.0.0.1:0", *limits, "--spill-directory", str(tmp_path)) as storage,
        blocking(storage.address) as peer,
    ):
        contents: dict[bytes, bytes] = {}
        error = None
        while error is None and len(contents) < 40:
            identifier, content = MADE.object(), os.urandom(900_000)
            try:
                peer.put(identifier, [content])
                contents[identifier] = content
            except LimitError as refused:
                error = refused
        assert "spill_limit_bytes = 10000000" in str(error)
        assert len(contents) >= 18
        for identifier, content in contents.items():
            assert b"".join(peer.get(identifier)) == content
