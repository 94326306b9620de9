"""The storage core's handling of objects in other stores, and memory for fetched objects."""

from __future__ import annotations

import pytest

from scaler.ids import IdFactory, cache_owner, cached_id, result_id
from scaler.net.connection import Opened
from scaler.object_storage.body import Body
from scaler.object_storage.commands import (
    FetchObject,
    ObjectFetched,
    ObjectNotFetched,
    ObjectNotPersisted,
    PersistObject,
    ReportDropped,
    ReportPut,
    StopFetching,
    StorageCommand,
    StorageInput,
)
from scaler.object_storage.messages import CopyObjects, GetObject
from scaler.object_storage.shared_memory import GrowingMemory
from scaler.protocol.chunks import LARGE_BYTES, MIN_CHUNK_BYTES
from scaler.protocol.messages import ForgetObjects, Role
from tests.unit.object_storage.storage_story import (
    CLIENT,
    SCHEDULER,
    WORKER,
    Story,
    contents,
    hello,
    messages,
    replies,
)

STORE = b"store--3"
MADE = IdFactory(CLIENT)
OBJECT, OTHER = MADE.object(), MADE.object()
RESULT = result_id(MADE.task(), 1)


class HostStory(Story):
    """The store of a host: there are others."""

    def __init__(self, limit_bytes: int = 1000, *, is_durable: bool = False, spill_limit_bytes: int = 0) -> None:
        super().__init__(limit_bytes, is_durable=is_durable, spill_limit_bytes=spill_limit_bytes)
        self.core.fetches = self.core.reports = True
        self.step(Opened(STORE, hello(Role.STORE)))
        self.told: list[StorageCommand] = []
        step = self.core.step

        def note(inputs: list[StorageInput], now: float) -> list[StorageCommand]:
            commands = step(inputs, now)
            kinds = FetchObject | StopFetching | ReportDropped | ReportPut | PersistObject
            self.told += [command for command in commands if isinstance(command, kinds)]
            return commands

        self.core.step = note  # type: ignore[method-assign,assignment]

    def take_told(self) -> list[StorageCommand]:
        told, self.told = self.told, []
        return told


class Chunks:
    def __init__(self, have: bytes) -> None:
        self.parts = [len(have)]
        self._have = have

    def frames(self, offset: int, size: int) -> list[memoryview] | None:
        found = self._have[offset : offset + size]
        return None if b"-" in found else [memoryview(found)]


def body(content: bytes) -> Body:
    return Body([len(content)], [memoryview(content)], len(content))


@pytest.fixture
def story() -> HostStory:
    return HostStory()


def test_missing_object_is_fetched_once_for_all_waiters(story: HostStory) -> None:
    assert story.says(WORKER, GetObject(1, OBJECT, 0.0)) == []
    assert story.says(WORKER, GetObject(2, OBJECT, 5.0)) == []
    assert story.take_told() == [FetchObject(OBJECT)]
    answers = story.step(ObjectFetched(OBJECT, body(b"content")))
    assert contents(answers) == [(WORKER, 1, b"content"), (WORKER, 2, b"content")]
    assert contents(story.says(WORKER, GetObject(3, OBJECT, 0.0))) == [(WORKER, 3, b"content")]
    assert (story.core.hits, story.core.misses) == (1, 2)


def test_fetch_waits_for_spilling_or_fails_without_a_disk() -> None:
    story = HostStory(1000, spill_limit_bytes=700)
    story.puts(WORKER, RESULT, bytes(700))
    story.says(WORKER, GetObject(1, OBJECT, 0.0))
    assert not story.core.has_room_for(OBJECT, 600)
    assert not story.writes
    story.step()
    assert [write.bodies[0].size_bytes for write in story.writes] == [700]
    assert not story.core.has_room_for(OBJECT, 600)
    story.writes_end()
    assert story.core.has_room_for(OBJECT, 600)
    assert story.core.begin_fetch(OBJECT, Chunks(bytes(600)), 600)
    assert (story.core.objects.used_bytes, story.core.objects.spilling.used_bytes) == (600, 700)
    story.says(WORKER, GetObject(2, OTHER, 0.0))
    assert story.core.has_room_for(OTHER, 600), "the disk takes no more: its fetch fails at once"
    assert not story.core.begin_fetch(OTHER, Chunks(bytes(600)), 600)


def test_released_object_is_no_longer_fetched(story: HostStory) -> None:
    story.says(WORKER, GetObject(1, OBJECT, 0.0))
    assert replies(story.says(SCHEDULER, ForgetObjects([OBJECT]))) == [(WORKER, 1, "missing")]
    assert story.take_told() == [FetchObject(OBJECT), StopFetching(OBJECT)]


def test_nothing_is_spilled_for_a_stopped_fetch() -> None:
    story = HostStory(1000, spill_limit_bytes=700)
    story.puts(WORKER, RESULT, bytes(700))
    story.says(WORKER, GetObject(1, OBJECT, 0.0))
    assert not story.core.has_room_for(OBJECT, 600)
    story.says(SCHEDULER, ForgetObjects([OBJECT]))
    story.step()
    assert story.writes == []


def test_object_without_room_is_missing_and_reported_as_dropped(story: HostStory) -> None:
    story.puts(WORKER, RESULT, bytes(700))
    story.says(WORKER, GetObject(1, OBJECT, 0.0))
    assert replies(story.step(ObjectFetched(OBJECT, body(bytes(400))))) == [(WORKER, 1, "missing")]
    assert story.take_told() == [FetchObject(OBJECT), ReportDropped([OBJECT])]


def test_failed_fetch_releases_memory_and_stops_serving_chunks(story: HostStory) -> None:
    story.says(WORKER, GetObject(1, OBJECT, 0.0))
    assert replies(story.says(STORE, GetObject(4, OBJECT, 0.0, offset=0, size=4))) == [(STORE, 4, "missing")]
    story.core.begin_fetch(OBJECT, Chunks(b"abcd"), 4)
    assert replies(story.step(ObjectNotFetched(OBJECT, "all stores have lost it"))) == [(WORKER, 1, "missing")]
    assert story.core.objects.used_bytes == 0
    assert replies(story.says(STORE, GetObject(5, OBJECT, 0.0, offset=0, size=4))) == [(STORE, 5, "missing")]


def test_objects_are_reported_if_large_or_from_another_store() -> None:
    story = HostStory(-1)
    story.puts(CLIENT, OBJECT, bytes(LARGE_BYTES - 1))
    story.puts(CLIENT, OTHER, bytes(LARGE_BYTES))
    story.puts(WORKER, RESULT, bytes(LARGE_BYTES))  # the scheduler learns of it with the end of its task
    story.puts(STORE, moved := result_id(MADE.task(), 1), b"1")
    assert story.take_told() == [ReportPut(OTHER, LARGE_BYTES), ReportPut(moved, 1)]


def test_object_refused_by_the_disk_is_dropped_and_reported() -> None:
    story = HostStory(is_durable=True)
    story.puts(CLIENT, OBJECT, b"content")
    story.take_told()
    sent = story.step(ObjectNotPersisted(OBJECT, "No space left on device", [(CLIENT, 1)]))
    assert replies(sent) == [(CLIENT, 1, "unwritable")]
    assert story.take_told() == [ReportDropped([OBJECT])]
    assert story.core.objects.sizes() == []


def test_cached_results_on_disk_count_and_are_reported_once_as_dropped(story: HostStory) -> None:
    results = [cached_id(cache_owner(""), name * 16) for name in (b"a", b"b", b"c", b"d")]
    for each in results[:2]:
        story.core.restore(each, body(bytes(50)), "")
    for each in results[2:]:
        story.puts(CLIENT, each, bytes(50))
    assert story.take_told() == [ReportDropped([results[0]]), ReportDropped([results[1]])]


def test_received_chunks_are_served_before_the_object_is_complete(story: HostStory) -> None:
    story.says(WORKER, GetObject(1, OBJECT, 0.0))
    assert story.core.begin_fetch(OBJECT, Chunks(b"abcd--gh"), 8)
    assert story.core.objects.used_bytes == 8
    assert contents(story.says(STORE, GetObject(5, OBJECT, 0.0, offset=1, size=3))) == [(STORE, 5, b"bcd")]
    assert replies(story.says(STORE, GetObject(6, OBJECT, 0.0, offset=3, size=3))) == [(STORE, 6, "missing")]
    story.step(ObjectFetched(OBJECT, body(b"abcdefgh")))
    assert story.core.objects.used_bytes == 8
    (answer,) = story.says(STORE, GetObject(7, OBJECT, 0.0, offset=3, size=3))
    assert contents([answer]) == [(STORE, 7, b"def")]
    assert (messages([answer])[0].parts, messages([answer])[0].offset) == ([8], 3)


def test_copies_are_evicted_first_and_sole_ones_kept(story: HostStory) -> None:
    story.puts(WORKER, RESULT, bytes(300))
    for object_id in (OBJECT, OTHER):
        story.says(WORKER, GetObject(1, object_id, 0.0))
        story.step(ObjectFetched(object_id, body(bytes(200))))
    story.says(WORKER, GetObject(2, OBJECT, 0.0))  # most recently used
    story.take_told()
    late = result_id(MADE.task(), 1)
    assert replies(story.puts(WORKER, late, bytes(300))) == [(WORKER, 1, "ok")]
    assert story.take_told() == [ReportDropped([OTHER])]
    assert dict(story.core.objects.sizes()).keys() == {RESULT, OBJECT, late}
    assert story.core.sole() == [RESULT, late]
    story.core.keep([OBJECT])
    assert story.core.sole() == [RESULT, OBJECT, late]
    assert replies(story.puts(WORKER, result_id(MADE.task(), 1), bytes(300))) == [(WORKER, 1, "full")]
    assert story.take_told() == []


def test_requested_copy_is_fetched_and_kept_under_memory_pressure(story: HostStory) -> None:
    story.says(SCHEDULER, CopyObjects([OBJECT], [400]))
    assert story.step() == []
    assert story.take_told() == [FetchObject(OBJECT)]
    story.step(ObjectFetched(OBJECT, body(bytes(400))))
    story.says(WORKER, GetObject(1, OTHER, 0.0))
    story.step(ObjectFetched(OTHER, body(bytes(300))))
    story.take_told()
    assert replies(story.puts(WORKER, RESULT, bytes(300))) == [(WORKER, 1, "ok")]
    assert story.take_told() == [ReportDropped([OTHER])]
    assert dict(story.core.objects.sizes()).keys() == {OBJECT, RESULT}


def test_rejects_copies_beyond_four_fifths_of_memory(story: HostStory) -> None:
    ids = [result_id(MADE.task(), 1) for _ in range(4)]
    story.puts(WORKER, RESULT, bytes(500))
    story.says(SCHEDULER, CopyObjects(ids[:3], [300, 200, 1]))
    assert story.take_told() == [*map(FetchObject, ids[:3]), StopFetching(ids[2])]
    story.step(ObjectFetched(ids[0], body(bytes(300))), ObjectNotFetched(ids[1], "lost"))
    story.puts(WORKER, result_id(MADE.task(), 1), bytes(50))
    story.says(SCHEDULER, CopyObjects(ids[3:], [50]))
    assert story.take_told() == [FetchObject(ids[3]), StopFetching(ids[3])]


def test_object_is_assembled_from_chunks_in_any_order() -> None:
    parts = [b"p" * 100, b"", b"x" * (2 * MIN_CHUNK_BYTES), b"end"]
    content = b"".join(parts)
    memory = GrowingMemory([len(part) for part in parts])
    size = MIN_CHUNK_BYTES
    for number in (2, 0, 1):
        assert memory.frames(number * size, 10) is None
        memory.write(number * size, [memoryview(content[number * size : (number + 1) * size])])
        memory.add_chunk(number)
        assert b"".join(memory.frames(number * size, 10) or []) == content[number * size : number * size + 10]
    assert memory.frames(0, len(content) + 1) is None
    with pytest.raises(ValueError, match="ends before"):
        memory.write(len(content) - 1, [memoryview(b"xy")])
    memory.write(len(content) - 1, [memoryview(b"d")])
    whole = memory.body()
    assert whole.memory is not None
    assert b"".join(whole.memory.frames()) == content
    assert whole.parts == [len(part) for part in parts]
