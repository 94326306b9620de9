"""Stored objects in an offload agent: fetched once for all waiters, and cached within a limit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from scaler.errors import ObjectLostError
from scaler.object_storage.client import StorageClient
from scaler.protocol.messages import stored_reference
from scaler.serialization import load_value, parts_of
from scaler.worker_manager.offload.service import FetchedObjects


class MemoryStorage:
    """Answers on a test's request."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.answers: list[asyncio.Future[list[memoryview]]] = []
        self.closed = 0

    def get(self, object_id: bytes) -> asyncio.Future[list[memoryview]]:
        self.asked.append(object_id)
        answer: asyncio.Future[list[memoryview]] = asyncio.get_running_loop().create_future()
        self.answers.append(answer)
        return answer

    def close(self) -> None:
        self.closed += 1


def pickled(text: str) -> list[memoryview]:
    import pickle  # noqa: PLC0415

    return [memoryview(pickle.dumps(text, 5))]


def play(story: Callable[[FetchedObjects, MemoryStorage], Awaitable[None]], cache_bytes: int = 1000) -> MemoryStorage:
    storage = MemoryStorage()

    async def run() -> None:
        objects = FetchedObjects(lambda _: cast("StorageClient", storage), cache_bytes)
        objects.move("tcp://127.0.0.1:1")
        await story(objects, storage)
        objects.close()

    asyncio.run(run())
    return storage


def reference(number: int) -> bytes:
    return stored_reference(bytes([number]) * 16, 10)


async def fetch(objects: FetchedObjects, storage: MemoryStorage, number: int, text: str) -> str:
    task = asyncio.create_task(objects.payload(reference(number)))
    asked = len(storage.answers)
    for _ in range(10):
        await asyncio.sleep(0)
    if len(storage.answers) > asked:
        storage.answers[-1].set_result(pickled(text))
    return cast("str", load_value(parts_of(await task)))


def test_shared_fetch_happens_once_even_if_a_waiter_leaves() -> None:
    async def story(objects: FetchedObjects, storage: MemoryStorage) -> None:
        waiting = [asyncio.create_task(objects.payload(reference(1))) for _ in range(3)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.sleep(0)
        storage.answers[0].set_result(pickled("abc"))
        assert [load_value(parts_of(await each)) for each in waiting[1:]] == ["abc", "abc"]

    assert len(play(story).asked) == 1


def test_most_recently_used_objects_are_kept_within_the_limit() -> None:
    async def story(objects: FetchedObjects, storage: MemoryStorage) -> None:
        for number in (1, 2, 1, 3, 1, 2):
            assert await fetch(objects, storage, number, str(number) * 400) == str(number) * 400

    assert [identifier[0] for identifier in play(story).asked] == [1, 2, 3, 2]


def test_fetch_failure_is_reported_to_all_waiters_and_not_cached() -> None:
    async def story(objects: FetchedObjects, storage: MemoryStorage) -> None:
        task = asyncio.create_task(objects.payload(reference(1)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        storage.answers[0].set_exception(ObjectLostError("gone"))
        with pytest.raises(ObjectLostError, match="gone"):
            await task
        assert await fetch(objects, storage, 1, "back") == "back"

    play(story)
