"""A store's reports to the scheduler: missing objects, fetched chunks, and objects here."""

from __future__ import annotations

import pytest

from scaler.object_storage.exchange import REPORT_SECONDS, ChunkRun, Exchange
from scaler.object_storage.messages import (
    ChunksFetched,
    FetchChunks,
    FetchesFailed,
    ObjectsDropped,
    ObjectsHeld,
    ObjectsUnwanted,
    ObjectsWanted,
    StoreAddress,
    StoresChanged,
)
from scaler.protocol.chunks import MIN_CHUNK_BYTES
from scaler.protocol.messages import Message

OBJECT, OTHER = b"o" * 16, b"p" * 16
SIZE = 10 * MIN_CHUNK_BYTES - 1
"""Of an object of ten chunks."""
STORE = StoreAddress(3, b"store--3", "tcp://10.0.0.3:1", "")


@pytest.fixture
def exchange() -> Exchange:
    exchange = Exchange()
    exchange.opened([], [])
    exchange.stores_changed(StoresChanged([STORE], []))
    return exchange


def told(exchange: Exchange, *, now: float = 0.0, is_awaited: bool = True) -> list[Message]:
    return exchange.take_messages(now, is_awaited=is_awaited)


def assign(exchange: Exchange, *rows: tuple[int, int], source: int = 3) -> list[ChunkRun]:
    """Assign runs of chunks, given as (first, count), of the object."""
    firsts, counts = zip(*rows, strict=True)
    some = len(rows)
    return exchange.assigned(FetchChunks([OBJECT] * some, [SIZE] * some, [*firsts], [*counts], [source] * some))


def test_object_arrives_in_assigned_runs_and_completes_with_the_last(exchange: Exchange) -> None:
    exchange.want(OBJECT)
    assert exchange.want(OBJECT) is exchange.fetches[OBJECT]
    assert told(exchange) == [ObjectsWanted([OBJECT])]
    [late] = assign(exchange, (4, 6))
    [early] = assign(exchange, (0, 4), source=0)
    assert not exchange.came(late, SIZE)
    assert told(exchange) == [ChunksFetched([OBJECT], [4], [6], [SIZE])]
    assert exchange.came(early, SIZE)
    assert told(exchange) == [ChunksFetched([OBJECT], [0], [4], [SIZE])]


def test_missing_run_is_reported_and_assigned_elsewhere(exchange: Exchange) -> None:
    exchange.want(OBJECT)
    [run] = assign(exchange, (0, 10))
    exchange.failed(run, is_unreachable=True)
    assert told(exchange) == [ObjectsWanted([OBJECT]), FetchesFailed([OBJECT], [0], [3], [True])]
    assert not exchange.is_active(run)
    assert [each.source for each in assign(exchange, (0, 10), source=0)] == [0]


def test_unreachable_store_is_not_tried(exchange: Exchange) -> None:
    exchange.want(OBJECT)
    exchange.stores_changed(StoresChanged([StoreAddress(4, b"store--4", "", "")], []))
    assert assign(exchange, (0, 10), source=4) == []
    assert told(exchange) == [ObjectsWanted([OBJECT]), FetchesFailed([OBJECT], [0], [4], [True])]


def test_runs_of_an_ended_fetch_are_ignored(exchange: Exchange) -> None:
    exchange.want(OBJECT)
    [run] = assign(exchange, (0, 4))
    del exchange.fetches[OBJECT]
    exchange.unwant(OBJECT)
    assert told(exchange) == [ObjectsWanted([OBJECT]), ObjectsUnwanted([OBJECT])]
    assert not exchange.is_active(run)
    assert assign(exchange, (4, 6)) == []


def test_restarted_scheduler_learns_held_wanted_and_partial_objects(exchange: Exchange) -> None:
    exchange.want(OBJECT)
    *came, late = assign(exchange, (1, 2), (6, 1), (8, 2))
    for run in came:
        exchange.came(run, SIZE)
    told(exchange)
    exchange.opened([(OTHER, 7)], [(OTHER, 7)])
    assert told(exchange) == [
        ObjectsWanted([OBJECT]),
        ChunksFetched([OBJECT] * 2, [1, 6], [2, 1], [SIZE] * 2),
        ObjectsHeld([OTHER], [7]),
        ObjectsHeld([OTHER], [7], in_backend=True),
    ]
    assert not exchange.is_active(late), "this scheduler has not named it"
    assert assign(exchange, (0, 1)) == [], "the scheduler has not named a store yet"
    assert told(exchange) == [FetchesFailed([OBJECT], [0], [3], [False])]


def test_put_objects_are_reported_once_in_batches(exchange: Exchange) -> None:
    exchange.put(OBJECT, 1)
    assert told(exchange, is_awaited=False) == []
    assert exchange.report_at == REPORT_SECONDS
    exchange.put(OTHER, 2)
    assert told(exchange, now=exchange.report_at, is_awaited=False) == [ObjectsHeld([OBJECT, OTHER], [1, 2])]
    assert told(exchange) == []


def test_objects_released_before_the_report_are_omitted(exchange: Exchange) -> None:
    exchange.put(OBJECT, 1)
    exchange.forgotten([OBJECT])
    assert told(exchange) == []


def test_objects_released_after_their_report_are_reported_as_dropped(exchange: Exchange) -> None:
    exchange.put(OBJECT, 1)
    told(exchange)
    exchange.forgotten([OBJECT, OTHER])
    assert told(exchange) == [ObjectsDropped([OBJECT])]
    exchange.forgotten([OBJECT])
    assert told(exchange) == []


def test_new_scheduler_learns_only_of_objects_that_are_still_here(exchange: Exchange) -> None:
    exchange.put(OBJECT, 1)
    told(exchange)
    exchange.opened([(OTHER, 2)], [])
    exchange.forgotten([OBJECT])
    assert told(exchange) == [ObjectsHeld([OTHER], [2])]
