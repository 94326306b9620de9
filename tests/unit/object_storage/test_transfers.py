"""A store with unresponsive peers: silent sources, and failing pushes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, cast

import pytest

from scaler.errors import ObjectLostError, ScalerError, UnreachableError
from scaler.object_storage import transfers
from scaler.object_storage.body import Body
from scaler.object_storage.client import StorageClient
from scaler.object_storage.commands import SendToScheduler, StorageInput
from scaler.object_storage.core import StorageCore
from scaler.object_storage.exchange import ChunkRun
from scaler.object_storage.messages import FetchChunks, FetchesFailed, ObjectsHeld, StoreAddress, StoresChanged
from scaler.object_storage.requests import ByteRange
from scaler.object_storage.spilling import StorageLimits
from scaler.object_storage.transfers import OBJECT_STORAGE, Transfers
from scaler.protocol import messages as m
from tests.waiting import soon

OBJECT = bytes(15) + b"\1"
SIZE = 1000
SOURCE = 7


class PlayedSource:
    """Another store, which answers only on request."""

    def __init__(self, is_slow: bool) -> None:
        self.connected = True
        self.is_closed = False
        self.looks = 0
        self.calls: list[asyncio.Future[Any]] = []
        self._is_slow = is_slow

    @property
    def heard(self) -> int:
        """Received bytes; of a slow source, more each time."""
        self.looks += self._is_slow
        return self.looks

    def get_range(self, _object_id: bytes, _offset: int, _size: int) -> asyncio.Future[ByteRange]:
        return self._begin()

    def put(self, _object_id: bytes, _parts: object) -> asyncio.Future[None]:
        return self._begin()

    def _begin(self) -> asyncio.Future[Any]:
        self.calls.append(asyncio.get_running_loop().create_future())
        return self.calls[-1]

    def close(self) -> None:
        self.is_closed = True


class Play:
    """The transfers of a store, which records messages to the scheduler in `told`."""

    def __init__(self) -> None:
        self.told: list[m.Message] = []
        self.sources: list[PlayedSource] = []
        self.is_slow = False
        self.core = StorageCore(
            StorageLimits(10**9), outbox_bytes=lambda _peer: 0, lease_seconds=60.0, tick_seconds=1.0
        )
        self.core.exchange.opened([], [])
        self.transfers = Transfers(self.core, self.feed, self._connect)
        self.feed([StoresChanged([StoreAddress(SOURCE, bytes(8), "tcp://127.0.0.1:1", "")], [])])

    def feed(self, inputs: Sequence[StorageInput]) -> None:
        for command in self.core.step(inputs, asyncio.get_running_loop().time()):
            match command:
                case SendToScheduler(message):
                    self.told.append(message)
                case ChunkRun():
                    self.transfers.get(command)

    def _connect(self, _address: object) -> StorageClient:
        self.sources.append(PlayedSource(self.is_slow))
        return cast("StorageClient", self.sources[-1])

    def fetch(self, source: int, size_bytes: int = SIZE) -> PlayedSource:
        """Request the fetch of an object from a source."""
        self.core.exchange.want(OBJECT).kept_bytes = size_bytes
        self.feed([FetchChunks([OBJECT], [size_bytes], [0], [1], [source])])
        return self.sources[-1]

    def failures(self) -> list[tuple[int, bool]]:
        """Return the sources of failed runs, and whether they are unreachable."""
        told = [message for message in self.told if isinstance(message, FetchesFailed)]
        return [pair for each in told for pair in zip(each.sources, each.unreachable, strict=True)]


@pytest.fixture(autouse=True)
def _short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers, "SOURCE_SECONDS", 0.1)
    monkeypatch.setattr(transfers, "LOOK_SECONDS", 0.01)


def played(story: Callable[[Play], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        play = Play()
        try:
            await story(play)
        finally:
            play.transfers.close()

    asyncio.run(run())


def test_run_from_a_silent_source_fails_and_closes_its_connection() -> None:
    async def story(play: Play) -> None:
        source = play.fetch(SOURCE)
        assert await soon(play.failures) == [(SOURCE, True)]
        assert source.is_closed
        assert play.fetch(SOURCE) is not source  # another connection: the scheduler may request it again

    played(story)


def test_waits_for_a_source_that_sends_anything() -> None:
    async def story(play: Play) -> None:
        play.is_slow = True
        source = play.fetch(SOURCE)
        await soon(lambda: source.looks > 30)
        assert play.failures() == []

    played(story)


@pytest.mark.parametrize(
    ("number", "is_connected", "is_unreachable"),
    [(SOURCE, True, False), (SOURCE, False, True), (OBJECT_STORAGE, False, False)],
)
def test_only_a_disconnected_store_counts_as_unreachable(number: int, is_connected: bool, is_unreachable: bool) -> None:
    async def story(play: Play) -> None:
        source = play.fetch(number)
        source.connected = is_connected
        source.calls[0].set_exception(ObjectLostError("it is not there, or nothing answers"))
        assert await soon(play.failures) == [(number, is_unreachable)]

    played(story)


@pytest.mark.parametrize("error", [None, UnreachableError("no object storage")])
def test_scheduler_learns_of_a_failed_push(error: ScalerError | None) -> None:
    async def story(play: Play) -> None:
        content = Body([SIZE], [memoryview(bytes(SIZE))], SIZE)
        play.core.objects.body = lambda object_id: content if object_id == OBJECT else None  # type: ignore[method-assign]
        play.transfers.push([OBJECT])
        [put] = await soon(lambda: play.sources and play.sources[0].calls)
        if error is None:
            put.set_result(None)
            play.fetch(SOURCE)
            await soon(play.failures)  # the same time later
            assert not any(isinstance(each, ObjectsHeld) for each in play.told)
        else:
            put.set_exception(error)
            await soon(lambda: ObjectsHeld([OBJECT], [SIZE]) in play.told)

    played(story)
