"""The storage core's handling of objects in other stores, and memory for fetched objects."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from scaler.ids import IdFactory, cache_owner, cached_id, result_id
from scaler.net.connection import Opened, Received
from scaler.object_storage.body import Body
from scaler.object_storage.commands import (
    FetchFailed,
    ObjectNotPersisted,
    RunCame,
    SendToPeer,
    SendToScheduler,
    StorageCommand,
    StorageInput,
)
from scaler.object_storage.exchange import ChunkRun
from scaler.object_storage.messages import (
    ChunksFetched,
    CopyObjects,
    FetchChunks,
    GetObject,
    ObjectsDropped,
    ObjectsHeld,
    ObjectsUnavailable,
    ObjectsUnwanted,
    ObjectsWanted,
    SoleCopies,
)
from scaler.object_storage.shared_memory import GrowingMemory
from scaler.protocol.chunks import LARGE_BYTES, MIN_CHUNK_BYTES
from scaler.protocol.messages import ForgetObjects, Message, Role
from tests.unit.object_storage.storage_story import CLIENT, SCHEDULER, WORKER, Story, contents, hello, messages, replies

STORE = b"store--3"
MADE = IdFactory(CLIENT)
OBJECT, OTHER = MADE.object(), MADE.object()
RESULT = result_id(MADE.task(), 1)


class HostStory(Story):
    """The store of one host among several."""

    def __init__(self, limit_bytes: int = 1000, *, is_durable: bool = False, spill_limit_bytes: int = 0) -> None:
        super().__init__(limit_bytes, is_durable=is_durable, spill_limit_bytes=spill_limit_bytes)
        self.core.can_fetch = True
        self.step(Opened(STORE, hello(Role.STORE)))
        self.told: list[Message] = []
        self.runs: list[ChunkRun] = []
        step = self.core.step

        def note(inputs: list[StorageInput], now: float) -> list[StorageCommand]:
            commands = step(inputs, now)
            told = [command.message for command in commands if isinstance(command, SendToScheduler)]
            self.told += [message for message in told if not isinstance(message, ChunksFetched)]
            self.runs += [command for command in commands if isinstance(command, ChunkRun)]
            return commands

        self.core.step = note  # type: ignore[method-assign,assignment]

    def take_told(self) -> list[Message]:
        told, self.told = self.told, []
        return told

    def assign(self, object_id: bytes, size_bytes: int) -> ChunkRun | None:
        """Let the scheduler assign an object. Returns the run, or None if it waits for room."""
        self.runs.clear()
        self.says(SCHEDULER, FetchChunks([object_id], [size_bytes], [0], [1], [0]))
        return self.runs[0] if self.runs else None

    def fetch(self, object_id: bytes, content: bytes) -> list[SendToPeer]:
        """Let an object arrive."""
        run = self.assign(object_id, len(content))
        assert run is not None
        self.core.exchange.fetches[object_id].small = Body([len(content)], [memoryview(content)], len(content))
        return self.step(RunCame(run, len(content)))


class Chunks(GrowingMemory):
    def __init__(self, have: bytes) -> None:  # without a memory file
        self.parts = [len(have)]
        self._content = have

    def frames(self, offset: int, size: int) -> list[memoryview] | None:
        found = self._content[offset : offset + size]
        return None if b"-" in found else [memoryview(found)]

    def write(self, offset: int, frames: Sequence[memoryview]) -> None:
        self._content = self._content[:offset] + b"".join(frames) + self._content[offset + len(b"".join(frames)) :]

    def body(self) -> Body:
        return body(self._content)


def body(content: bytes) -> Body:
    return Body([len(content)], [memoryview(content)], len(content))


@pytest.fixture
def story() -> HostStory:
    return HostStory()


def test_missing_object_is_fetched_once_for_all_waiters(story: HostStory) -> None:
    assert story.says(WORKER, GetObject(1, OBJECT, 0.0)) == []
    assert story.says(WORKER, GetObject(2, OBJECT, 0.0)) == []
    assert story.take_told() == [ObjectsWanted([OBJECT])]
    answers = story.fetch(OBJECT, b"content")
    assert contents(answers) == [(WORKER, 1, b"content"), (WORKER, 2, b"content")]
    assert contents(story.says(WORKER, GetObject(3, OBJECT, 0.0))) == [(WORKER, 3, b"content")]
    assert (story.core.hits, story.core.misses) == (1, 2)


def test_fetch_waits_for_spilling_or_fails_without_a_disk() -> None:
    story = HostStory(1000, spill_limit_bytes=700)
    story.puts(WORKER, RESULT, bytes(700))
    story.says(WORKER, GetObject(1, OBJECT, 0.0))
    assert story.assign(OBJECT, 600) is None
    assert [write.bodies[0].size_bytes for write in story.writes] == [700]
    story.step()
    assert not story.runs
    story.writes_end()
    assert [run.id for run in story.runs] == [OBJECT]
    assert story.core.reserve(OBJECT, Chunks(bytes(600)), 600)
    assert (story.core.objects.used_bytes, story.core.objects.spilling.used_bytes) == (600, 700)
    story.says(WORKER, GetObject(2, OTHER, 0.0))
    assert story.assign(OTHER, 600) is not None, "the disk takes no more: its fetch fails at once"
    assert not story.core.reserve(OTHER, Chunks(bytes(600)), 600)
    assert replies(story.step(FetchFailed(OTHER, "no room"))) == [(WORKER, 2, "missing")]
    assert story.take_told() == [ObjectsWanted([OBJECT]), ObjectsWanted([OTHER]), ObjectsUnwanted([OTHER])]


def test_released_object_is_no_longer_fetched(story: HostStory) -> None:
    story.says(WORKER, GetObject(1, OBJECT, 0.0))
    assert replies(story.says(SCHEDULER, ForgetObjects([OBJECT]))) == [(WORKER, 1, "missing")]
    assert story.take_told() == [ObjectsWanted([OBJECT]), ObjectsUnwanted([OBJECT])]


def test_nothing_is_spilled_for_a_stopped_fetch() -> None:
    story = HostStory(1000, spill_limit_bytes=700)
    story.puts(WORKER, RESULT, bytes(700))
    story.says(WORKER, GetObject(1, OBJECT, 0.0))
    story.step(
        Received(SCHEDULER, FetchChunks([OBJECT], [600], [0], [1], [0])), Received(SCHEDULER, ForgetObjects([OBJECT]))
    )
    assert (story.writes, story.runs) == ([], [])


def test_object_without_room_is_missing_and_reported_as_dropped(story: HostStory) -> None:
    story.puts(WORKER, RESULT, bytes(700))
    story.says(WORKER, GetObject(1, OBJECT, 0.0))
    assert replies(story.fetch(OBJECT, bytes(400))) == [(WORKER, 1, "missing")]
    assert story.take_told() == [ObjectsWanted([OBJECT]), ObjectsDropped([OBJECT])]


def test_failed_fetch_releases_memory_and_stops_serving_chunks(story: HostStory) -> None:
    story.says(WORKER, GetObject(1, OBJECT, 0.0))
    assert replies(story.says(STORE, GetObject(4, OBJECT, 0.0, offset=0, size=4))) == [(STORE, 4, "missing")]
    story.core.reserve(OBJECT, Chunks(b"abcd"), 4)
    assert replies(story.says(SCHEDULER, ObjectsUnavailable([OBJECT, OTHER]))) == [(WORKER, 1, "missing")]
    assert story.core.objects.used_bytes == 0
    assert replies(story.says(STORE, GetObject(5, OBJECT, 0.0, offset=0, size=4))) == [(STORE, 5, "missing")]


def test_objects_are_reported_if_large_or_from_another_store() -> None:
    story = HostStory(-1)
    story.puts(CLIENT, OBJECT, bytes(LARGE_BYTES - 1))
    story.puts(CLIENT, OTHER, bytes(LARGE_BYTES))
    story.puts(WORKER, RESULT, bytes(LARGE_BYTES))  # the scheduler learns of it with the end of its task
    story.puts(STORE, moved := result_id(MADE.task(), 1), b"1")
    assert story.take_told() == [ObjectsHeld([OTHER], [LARGE_BYTES]), ObjectsHeld([moved], [1])]


def test_object_that_cannot_be_spilled_is_dropped_and_reported() -> None:
    story = HostStory(is_durable=True)
    story.puts(CLIENT, OBJECT, b"content")
    sent = story.step(ObjectNotPersisted(OBJECT, "No space left on device", [(CLIENT, 1)]))
    assert replies(sent) == [(CLIENT, 1, "unwritable")]
    assert story.take_told() == [ObjectsDropped([OBJECT])]
    assert story.core.objects.sizes() == []


def test_cached_results_on_disk_count_and_are_reported_once_as_dropped(story: HostStory) -> None:
    results = [cached_id(cache_owner(""), name * 16) for name in (b"a", b"b", b"c", b"d")]
    for each in results[:2]:
        story.core.restore(each, body(bytes(50)), "")
    for each in results[2:]:
        story.puts(CLIENT, each, bytes(50))
    assert story.take_told() == [ObjectsDropped([results[0]]), ObjectsDropped([results[1]])]


def test_received_chunks_are_served_before_the_object_is_complete(story: HostStory) -> None:
    story.says(WORKER, GetObject(1, OBJECT, 0.0))
    run = story.assign(OBJECT, 8)
    assert run is not None
    assert story.core.reserve(OBJECT, Chunks(b"abcd--gh"), 8)
    assert story.core.objects.used_bytes == 8
    assert contents(story.says(STORE, GetObject(5, OBJECT, 0.0, offset=1, size=3))) == [(STORE, 5, b"bcd")]
    assert replies(story.says(STORE, GetObject(6, OBJECT, 0.0, offset=3, size=3))) == [(STORE, 6, "missing")]
    story.core.exchange.fetches[OBJECT].memory.write(4, [memoryview(b"ef")])  # type: ignore[union-attr]
    story.step(RunCame(run, 8))
    assert story.core.objects.used_bytes == 8
    (answer,) = story.says(STORE, GetObject(7, OBJECT, 0.0, offset=3, size=3))
    assert contents([answer]) == [(STORE, 7, b"def")]
    assert (messages([answer])[0].parts, messages([answer])[0].offset) == ([8], 3)


def test_copies_are_evicted_first_and_sole_ones_kept(story: HostStory) -> None:
    story.puts(WORKER, RESULT, bytes(300))
    for object_id in (OBJECT, OTHER):
        story.says(WORKER, GetObject(1, object_id, 0.0))
        story.fetch(object_id, bytes(200))
    story.says(WORKER, GetObject(2, OBJECT, 0.0))  # most recently used
    story.take_told()
    late = result_id(MADE.task(), 1)
    assert replies(story.puts(WORKER, late, bytes(300))) == [(WORKER, 1, "ok")]
    assert story.take_told() == [ObjectsDropped([OTHER])]
    assert dict(story.core.objects.sizes()).keys() == {RESULT, OBJECT, late}
    assert story.core.sole() == [RESULT, late]
    story.says(SCHEDULER, SoleCopies([OBJECT]))
    assert story.core.sole() == [RESULT, OBJECT, late]
    assert replies(story.puts(WORKER, result_id(MADE.task(), 1), bytes(300))) == [(WORKER, 1, "full")]
    assert story.take_told() == []


def test_requested_copy_is_fetched_and_kept_under_memory_pressure(story: HostStory) -> None:
    story.says(SCHEDULER, CopyObjects([OBJECT], [400]))
    assert story.step() == []
    assert story.take_told() == [ObjectsWanted([OBJECT])]
    story.fetch(OBJECT, bytes(400))
    story.says(WORKER, GetObject(1, OTHER, 0.0))
    story.fetch(OTHER, bytes(300))
    story.take_told()
    assert replies(story.puts(WORKER, RESULT, bytes(300))) == [(WORKER, 1, "ok")]
    assert story.take_told() == [ObjectsDropped([OTHER])]
    assert dict(story.core.objects.sizes()).keys() == {OBJECT, RESULT}


def test_rejects_copies_beyond_four_fifths_of_memory(story: HostStory) -> None:
    ids = [result_id(MADE.task(), 1) for _ in range(4)]
    story.puts(WORKER, RESULT, bytes(500))
    story.says(SCHEDULER, CopyObjects(ids[:3], [300, 200, 1]))
    assert story.take_told() == [ObjectsWanted(ids[:3]), ObjectsUnwanted(ids[2:3])]
    story.fetch(ids[0], bytes(300))
    story.says(SCHEDULER, ObjectsUnavailable([ids[1]]))
    story.puts(WORKER, result_id(MADE.task(), 1), bytes(50))
    story.says(SCHEDULER, CopyObjects(ids[3:], [50]))
    assert story.take_told() == [ObjectsWanted(ids[3:]), ObjectsUnwanted(ids[3:])]


def test_object_is_assembled_from_chunks_in_any_order() -> None:
    parts = [b"p" * 100, b"", b"x" * (2 * MIN_CHUNK_BYTES), b"end"]
    content = b"".join(parts)
    memory = GrowingMemory([len(part) for part in parts])
    size = MIN_CHUNK_BYTES
    for number in (2, 0, 1):
        assert memory.frames(number * size, 10) is None
        memory.write(number * size, [memoryview(content[number * size : (number + 1) * size])])
        assert b"".join(memory.frames(number * size, 10) or []) == content[number * size : number * size + 10]
    assert memory.frames(0, len(content) + 1) is None
    with pytest.raises(ValueError, match="ends before"):
        memory.write(len(content) - 1, [memoryview(b"xy")])
    memory.write(len(content) - 1, [memoryview(b"d")])
    whole = memory.body()
    assert whole.memory is not None
    assert b"".join(whole.memory.frames()) == content
    assert whole.parts == [len(part) for part in parts]
