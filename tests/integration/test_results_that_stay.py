"""Results in a host's store: they stay there until requested."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence

import pytest

from scaler import Client
from scaler.client.future import ScalerFuture
from scaler.client.object_reference import ObjectReference
from scaler.object_storage.client import StorageClient
from scaler.object_storage.server import EmbeddedStorage
from scaler.protocol.messages import stored_reference
from tests.integration.client_rig import RigScheduler
from tests.waiting import until


class Rig:
    """A client with counted gets from the object storage, which can be delayed."""

    def __init__(self, scheduler: RigScheduler, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        self.client = client
        self.scheduler = scheduler
        self.fetched: list[bytes] = []
        self.may_come = threading.Event()
        self.may_come.set()
        self._sent: list[ObjectReference] = []
        get = StorageClient.get

        async def counted(storage: StorageClient, identifier: bytes) -> list[memoryview]:
            await asyncio.to_thread(self.may_come.wait)
            self.fetched.append(identifier)
            return await get(storage, identifier)

        monkeypatch.setattr(StorageClient, "get", counted)

    def store(self, value: object) -> bytes:
        """Put a value where a worker puts a result; return its id."""
        self._sent.append(self.client.send_object(value))
        return self._sent[-1]._upload.id  # noqa: SLF001 (as a worker names it)

    def finish(self, ends: dict[bytes, bytes], size_bytes: int = 100_000, *, is_at_host: bool = True) -> None:
        """End tasks, each with the object of its value."""
        self.scheduler.finish(
            {task: stored_reference(each, size_bytes, is_at_host=is_at_host) for task, each in ends.items()}
        )


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    storage = EmbeddedStorage("tcp://127.0.0.1:0")
    with RigScheduler(storage=storage) as scheduler, Client(scheduler.address) as client:
        yield Rig(scheduler, client, monkeypatch)
    storage.close()


def test_result_stays_on_its_host_until_requested(rig: Rig) -> None:
    future, stored = rig.client.submit(abs, 1), rig.store("value")
    rig.scheduler.next_tasks(1)
    rig.finish({future.task_id: stored})
    until(future.done)
    last = rig.client.submit(abs, -2)  # by its end, a fetch of the first one would have begun
    rig.scheduler.next_tasks(1)
    rig.scheduler.finish({last.task_id: 2})
    assert last.result(20) == 2
    assert rig.fetched == []
    assert future.result(20) == "value"
    assert rig.fetched == [stored]


def values_of(rig: Rig, count: int, size_bytes: int = 100_000) -> tuple[Sequence[ScalerFuture], list[bytes]]:
    """Return finished futures, and where their values are stored."""
    futures = [rig.client.submit(abs, number) for number in range(count)]
    stored = [rig.store(number) for number in range(count)]
    rig.scheduler.next_tasks(count)
    rig.finish({future.task_id: each for future, each in zip(futures, stored, strict=True)}, size_bytes)
    until(lambda: all(future.done() for future in futures))
    return futures, stored


def test_awaiting_a_retained_value_does_not_block_the_loop(rig: Rig) -> None:
    (future,), _ = values_of(rig, 1)
    rig.may_come.clear()

    async def release() -> None:
        rig.may_come.set()

    async def both() -> object:
        value, _ = await asyncio.gather(_value(future), release())
        return value

    async def _value(each: ScalerFuture) -> object:
        return await each

    assert asyncio.run(asyncio.wait_for(both(), 20)) == 0
