"""A store's reports about missing objects, and its fetches from sources."""

from __future__ import annotations

import pytest

from scaler.object_storage.commands import FetchObject, StopFetching
from scaler.object_storage.exchange import (
    UNAVAILABLE,
    ChunkRun,
    Exchange,
    ExchangeCommand,
    ExchangeInput,
    Fetched,
    NotFetched,
    RunCame,
    RunFailed,
    SchedulerOpened,
)
from scaler.object_storage.messages import (
    ChunksFetched,
    FetchChunks,
    FetchesFailed,
    ObjectsHeld,
    ObjectsUnavailable,
    ObjectsUnwanted,
    ObjectsWanted,
    StoreAddress,
    StoresChanged,
)
from scaler.protocol import messages as m
from scaler.protocol.chunks import MIN_CHUNK_BYTES
from scaler.testing.storage_invariants import check_exchange

OBJECT, OTHER = b"o" * 16, b"p" * 16
SIZE = 10 * MIN_CHUNK_BYTES - 1
"""Of an object of ten chunks."""
STORE = StoreAddress(3, b"store--3", "tcp://10.0.0.3:1", "")


class Story:
    """Drives an exchange whose invariants are checked after every step."""

    def __init__(self) -> None:
        self.exchange = Exchange()
        self.says(StoresChanged([STORE], []))

    def says(self, *inputs: ExchangeInput) -> list[ExchangeCommand]:
        commands = self.exchange.step(inputs)
        check_exchange(self.exchange)
        return commands


@pytest.fixture
def story() -> Story:
    return Story()


def told(commands: list[ExchangeCommand]) -> list[m.Message]:
    return [command for command in commands if isinstance(command, m.Message)]


def chunks(first: int, count: int, source: int = 3, object_id: bytes = OBJECT, size: int = SIZE) -> FetchChunks:
    return FetchChunks([object_id], [size], [first], [count], [source])


def run(first: int, count: int, source: int = 3, size: int = SIZE) -> ChunkRun:
    return ChunkRun(OBJECT, size, first, count, source)


def test_object_arrives_in_assigned_runs_and_completes_with_the_last(story: Story) -> None:
    assert told(story.says(FetchObject(OBJECT))) == [ObjectsWanted([OBJECT])]
    assert story.says(chunks(4, 6), chunks(0, 4, source=0)) == [run(4, 6), run(0, 4, 0)]
    assert story.says(RunCame(run(4, 6), SIZE)) == [ChunksFetched([OBJECT], [4], [6], [SIZE])]
    assert story.says(RunCame(run(0, 4, 0), SIZE)) == [
        ChunksFetched([OBJECT], [0], [4], [SIZE]),
        Fetched(OBJECT),
    ]


def test_missing_run_is_reported_and_fetched_elsewhere(story: Story) -> None:
    story.says(FetchObject(OBJECT), chunks(0, 10))
    assert told(story.says(RunFailed(run(0, 10), is_unreachable=True))) == [FetchesFailed([OBJECT], [0], [3], [True])]
    assert story.says(chunks(0, 10, source=0)) == [run(0, 10, 0)]


def test_unreachable_store_is_not_tried(story: Story) -> None:
    hidden = StoreAddress(4, b"store--4", "", "")
    commands = story.says(FetchObject(OBJECT), StoresChanged([hidden], []), chunks(0, 10, source=4))
    assert told(commands) == [ObjectsWanted([OBJECT]), FetchesFailed([OBJECT], [0], [4], [True])]


def test_abandoned_fetch_is_reported_and_its_runs_are_ignored(story: Story) -> None:
    story.says(FetchObject(OBJECT), chunks(0, 4))
    assert story.says(StopFetching(OBJECT)) == [NotFetched(OBJECT, ""), ObjectsUnwanted([OBJECT])]
    assert story.says(RunCame(run(0, 4), SIZE), RunFailed(run(0, 4), is_unreachable=False), chunks(4, 6)) == []


def test_objects_that_no_store_holds_are_not_fetched(story: Story) -> None:
    story.says(FetchObject(OBJECT))
    assert story.says(ObjectsUnavailable([OBJECT, OTHER])) == [NotFetched(OBJECT, UNAVAILABLE)]


def test_object_lost_with_a_host_is_reported_as_lost(story: Story) -> None:
    story.says(FetchObject(OBJECT))
    lost = [NotFetched(OBJECT, "its only copy was lost with host alpha")]
    assert story.says(ObjectsUnavailable([OBJECT], "alpha")) == lost


def test_restarted_scheduler_learns_held_wanted_and_partial_objects(story: Story) -> None:
    story.says(FetchObject(OBJECT), chunks(1, 2), chunks(6, 1), chunks(8, 2))
    story.says(RunCame(run(1, 2), SIZE), RunCame(run(6, 1), SIZE))
    assert told(story.says(SchedulerOpened([(OTHER, 7)]))) == [
        ObjectsWanted([OBJECT]),
        ChunksFetched([OBJECT] * 2, [1, 6], [2, 1], [SIZE] * 2),
        ObjectsHeld([OTHER], [7]),
    ]
    assert story.says(RunCame(run(8, 2), SIZE)) == [], "of a run that this scheduler has not named"
    assert told(story.says(chunks(0, 1))) == [FetchesFailed([OBJECT], [0], [3], [False])], "it has named no store yet"
