"""The tracker in isolation: fetches that no bounded scan finds."""

from __future__ import annotations

from scaler.extensions.data_plane.directory import Directory
from scaler.extensions.data_plane.tracker import MAX_LOOKS, SWEEP_SECONDS, Tracker
from scaler.extensions.data_plane.transfer import Moved
from scaler.object_storage.messages import FetchChunks
from scaler.protocol.chunks import LARGE_BYTES, chunk_count
from scaler.protocol.messages import Message
from scaler.scheduler.core.stores import Timer
from scaler.testing.store_invariants import check_tracker

OBJECT = b"client..\xff\xff\x00\x00\x00\x00\x00\x01"


def tracker_of(stores: int) -> Tracker:
    directory = Directory()
    tracker = Tracker(directory, Moved(), Timer(now=0.0))
    for number in range(1, stores + 1):
        tracker.came(number)
    return tracker


def told(tracker: Tracker, store: int) -> list[Message]:
    """Return the fetches assigned to a store now."""
    messages = tracker.take()
    check_tracker(tracker)
    return [message for number, message in messages if number == store and isinstance(message, FetchChunks)]


def test_sweep_finds_a_fetch_missed_by_bounded_scans() -> None:
    holder, other, late, *blocked = range(1, 20 * MAX_LOOKS)
    tracker = tracker_of(blocked[-1])
    tracker.held(holder, OBJECT, LARGE_BYTES)
    for store in blocked:  # none of these has a route to the holder or to the other fetcher
        for source in (holder, other):
            tracker.failed(store, OBJECT, 0, source, is_unreachable=True)
        tracker.wanted(store, [OBJECT])
    assert not told(tracker, late)
    tracker.wanted(other, [OBJECT])
    assert told(tracker, other)
    tracker.wanted(late, [OBJECT])
    assert not told(tracker, late)
    for chunk in range(chunk_count(LARGE_BYTES)):
        tracker.fetched(other, OBJECT, chunk, 1, LARGE_BYTES)
        assert not told(tracker, late)
    tracker.timer.now += SWEEP_SECONDS
    assert tracker.timer.next_at <= tracker.timer.now
    tracker.sweep()
    assert told(tracker, late)
