from __future__ import annotations

import pytest

from scaler.ids import IdFactory, result_id
from scaler.net.connection import Identity, Received
from scaler.object_storage.core import MAX_GETS_PER_PEER
from scaler.object_storage.messages import GetObject, PutObject, StatStorage, StorageStatus
from scaler.object_storage.objects import MAX_UPLOADS_PER_PEER
from scaler.object_storage.sending import MAX_UNACKNOWLEDGED_BYTES_PER_PEER
from scaler.protocol import messages as m
from tests.unit.object_storage.storage_story import (
    CLIENT,
    READER,
    SCHEDULER,
    WORKER,
    Story,
    contents,
    messages,
    replies,
)

MADE = IdFactory(CLIENT)
OBJECT = MADE.object()
OTHER = MADE.object()
RESULT = result_id(MADE.task(), 1)


@pytest.fixture
def story() -> Story:
    return Story()


def status(story: Story) -> StorageStatus:
    message = story.says(SCHEDULER, StatStorage(99))[0].message
    assert isinstance(message, StorageStatus)
    return message


# -- put and get -----------------------------------------------------------------------------------------------------


def test_get_returns_the_layout_of_the_put(story: Story) -> None:
    assert replies(story.puts(CLIENT, OBJECT, b"pickle", b"", b"buffer", request=7)) == [(CLIENT, 7, "ok")]
    (answer,) = story.says(READER, GetObject(3, OBJECT, 0.0))
    assert messages([answer])[0].parts == [6, 0, 6]
    assert contents([answer]) == [(READER, 3, b"picklebuffer")]
    assert replies(story.says(READER, GetObject(4, OBJECT, 0.0, offset=9, size=4))) == [(READER, 4, "invalid")]


def test_each_frame_of_an_object_is_answered(story: Story) -> None:
    assert replies(story.says(CLIENT, PutObject(1, OBJECT, [4, 3], 0), [b"ab", b"cd"])) == [(CLIENT, 1, "ok")]
    assert replies(story.says(READER, GetObject(1, OBJECT, 0.0))) == [(READER, 1, "missing")]
    assert replies(story.says(CLIENT, PutObject(2, OBJECT, [4, 3], 4), [b"efg"])) == [(CLIENT, 2, "ok")]
    assert contents(story.says(READER, GetObject(2, OBJECT, 0.0))) == [(READER, 2, b"abcdefg")]


def test_gets_wait_until_the_object_is_complete(story: Story) -> None:
    story.core.can_fetch = True
    assert story.says(READER, GetObject(1, OBJECT, 0.0)) == []
    assert story.says(WORKER, GetObject(1, OBJECT, 0.0)) == []
    story.says(CLIENT, PutObject(1, OBJECT, [4], 0), [b"ab"])
    assert status(story).waiting_gets == 2
    sent = story.says(CLIENT, PutObject(2, OBJECT, [4], 2), [b"cd"])
    assert contents(sent) == [(READER, 1, b"abcd"), (WORKER, 1, b"abcd")]
    assert status(story).waiting_gets == 0


# -- repeats and nonsense ----------------------------------------------------------------------------------------------


def test_repeated_put_succeeds_and_its_bytes_are_dropped(story: Story) -> None:
    story.puts(CLIENT, OBJECT, b"first")
    assert replies(story.puts(WORKER, OBJECT, b"again")) == [(WORKER, 1, "ok")]
    assert contents(story.says(READER, GetObject(2, OBJECT, 0.0))) == [(READER, 2, b"first")]
    assert status(story).bytes == 5


@pytest.mark.parametrize(
    ("parts", "offset", "frames"),
    [
        ([4, 4], 1, [b"cd"]),  # overlaps
        ([4, 4], 3, [b"cd"]),  # leaves a gap
        ([4, 4], 2, [b"1234567"]),  # too much
        ([4, 4], 2, []),  # nothing
        ([4, 5], 2, [b"cd"]),  # another layout
        ([4, 4], 0, [b"ab"]),  # from the beginning
        ([4, 4], 2, [b""] * 300),  # too many
    ],
)
def test_frames_that_do_not_continue_the_object_end_it_as_invalid(
    story: Story, parts: list[int], offset: int, frames: list[bytes]
) -> None:
    story.says(CLIENT, PutObject(1, OBJECT, [4, 4], 0), [b"ab"])
    assert replies(story.says(CLIENT, PutObject(2, OBJECT, parts, offset), frames)) == [(CLIENT, 2, "invalid")]
    assert story.core.objects.used_bytes == 0
    assert replies(story.says(CLIENT, PutObject(3, OBJECT, [4, 4], 4), [b"efgh"])) == [(CLIENT, 3, "missing")]
    assert replies(story.puts(CLIENT, OBJECT, b"abcd", b"efgh", request=4)) == [(CLIENT, 4, "ok")]


# -- limits ------------------------------------------------------------------------------------------------------------


def test_full_storage_refuses_until_there_is_room(story: Story) -> None:
    story.puts(CLIENT, OBJECT, bytes(600))
    assert replies(story.puts(CLIENT, OTHER, bytes(401))) == [(CLIENT, 1, "full")]
    story.says(SCHEDULER, m.ForgetObjects([OBJECT]))
    assert replies(story.puts(CLIENT, OTHER, bytes(401))) == [(CLIENT, 1, "ok")]


def test_unfinished_uploads_count_in_full_so_that_none_starves(story: Story) -> None:
    story.says(CLIENT, PutObject(1, OBJECT, [600], 0), [b"x"])
    assert replies(story.says(WORKER, PutObject(1, OTHER, [600], 0), [b"x"])) == [(WORKER, 1, "full")]
    assert replies(story.says(CLIENT, PutObject(2, OBJECT, [600], 1), [bytes(599)])) == [(CLIENT, 2, "ok")]


def test_object_that_never_fits_is_too_large(story: Story) -> None:
    sent = story.puts(CLIENT, OBJECT, bytes(1001))
    assert replies(sent) == [(CLIENT, 1, "too_large")]
    assert "memory_limit_bytes = 1000" in messages(sent)[0].text


def test_object_above_the_configured_limit_is_too_large() -> None:
    story = Story(limit_bytes=-1, max_object_bytes=10)
    sent = story.puts(CLIENT, OBJECT, bytes(11))
    assert replies(sent) == [(CLIENT, 1, "too_large")]
    assert "max_object_bytes = 10" in messages(sent)[0].text
    assert replies(story.puts(CLIENT, OBJECT, bytes(10))) == [(CLIENT, 1, "ok")]


def test_peer_cannot_begin_unlimited_uploads() -> None:
    story = Story(limit_bytes=-1)
    for _ in range(MAX_UPLOADS_PER_PEER):
        story.core.step([Received(WORKER, PutObject(1, MADE.object(), [2], 0), [memoryview(b"x")])], story.now)
    assert replies(story.puts(WORKER, OTHER, b"x")) == [(WORKER, 1, "full")]
    assert replies(story.puts(CLIENT, OTHER, b"x")) == [(CLIENT, 1, "ok")]


def test_peer_cannot_wait_for_unlimited_objects() -> None:
    story, objects = big_story()
    story.core.can_fetch = True
    story.step(*(Received(READER, GetObject(n, key, 0.0)) for n, key in enumerate(objects)))
    gets = [Received(READER, GetObject(n, OBJECT, 0.0)) for n in range(2, MAX_GETS_PER_PEER)]
    assert replies(story.step(*gets)) == []
    assert replies(story.says(READER, GetObject(0, OBJECT, 0.0))) == [(READER, 0, "full")]


# -- forget ---------------------------------------------------------------------------------------------------


def test_object_released_before_its_arrival_is_refused(story: Story) -> None:
    story.says(SCHEDULER, m.ForgetObjects([RESULT]))
    assert replies(story.puts(WORKER, RESULT, b"late")) == [(WORKER, 1, "missing")]


def test_all_objects_of_an_owner_and_no_others_are_dropped_at_once(story: Story) -> None:
    foreign = IdFactory(READER).object()
    story.puts(CLIENT, OBJECT, b"1")
    story.puts(WORKER, RESULT, b"22")
    story.puts(READER, foreign, b"333")
    story.says(CLIENT, PutObject(1, OTHER, [9], 0), [b"4"])
    story.core.can_fetch = True
    story.says(READER, GetObject(1, MADE.object(), 0.0))
    assert replies(story.says(SCHEDULER, m.ForgetOwner(CLIENT))) == [(READER, 1, "missing")]
    assert status(story) == StorageStatus(99, 1, 3, 1000, 0, misses=1)


# -- slow readers ------------------------------------------------------------------------------------------------------


def big_story() -> tuple[Story, list[bytes]]:
    story = Story(limit_bytes=-1)
    frame = bytes(m.MAX_ATTACHED_BYTES)
    objects = [MADE.object() for _ in range(4)]
    for object_id in objects:
        story.puts(CLIENT, object_id, frame)
    return story, objects


def test_slow_reader_gets_one_window_and_delays_no_other() -> None:
    story, objects = big_story()
    sent = story.step(*(Received(READER, GetObject(n, key, 0.0)) for n, key in enumerate(objects)))
    assert [request for _, request, _ in replies(sent)] == [0, 1]
    assert story.outboxes[READER] == MAX_UNACKNOWLEDGED_BYTES_PER_PEER
    assert story.is_sending
    assert replies(story.says(WORKER, GetObject(9, objects[3], 0.0))) == [(WORKER, 9, "ok")]
    story.acknowledges(READER, m.MAX_ATTACHED_BYTES)
    assert replies(story.step()) == [(READER, 2, "ok")]
    story.acknowledges(READER)
    assert replies(story.step()) == [(READER, 3, "ok")]
    assert not story.is_sending


def test_large_object_is_sent_in_chunk_messages_with_offsets() -> None:
    story = Story(limit_bytes=-1)
    frame = bytes(m.MAX_ATTACHED_BYTES)
    parts = [2 * m.MAX_ATTACHED_BYTES + 5]
    for offset, content in ((0, frame), (m.MAX_ATTACHED_BYTES, frame), (2 * m.MAX_ATTACHED_BYTES, b"12345")):
        story.says(CLIENT, PutObject(1, OBJECT, parts, offset), [content])
    sent = story.says(READER, GetObject(1, OBJECT, 0.0))
    assert [message.offset for message in messages(sent)] == [0, m.MAX_ATTACHED_BYTES]
    assert [message.parts for message in messages(sent)] == [parts, []]
    story.acknowledges(READER)
    assert [message.offset for message in messages(story.step())] == [2 * m.MAX_ATTACHED_BYTES]


# -- peers that go -----------------------------------------------------------------------------------------------------


def test_local_processor_ends_with_its_connection(story: Story) -> None:
    story.says(WORKER, PutObject(1, RESULT, [4], 0), [b"ab"])
    story.core.can_fetch = True
    story.says(WORKER, GetObject(2, OTHER, 0.0))
    story.breaks(WORKER)
    story.wait(0.9, alive=(CLIENT, READER, SCHEDULER))
    assert story.expired == []
    story.wait(0.1, alive=(CLIENT, READER, SCHEDULER))
    assert story.expired == [WORKER]
    assert status(story) == StorageStatus(99, 0, 0, 1000, 0, misses=1)


def test_stalled_storage_ends_no_peer(story: Story) -> None:
    story.now += 100.0
    story.step()
    assert story.expired == []


def test_broken_connection_ends_nothing_within_the_lease(story: Story) -> None:
    story.opens(WORKER, m.Role.WORKER, Identity("their key"))  # on another host: the network may recover
    story.says(WORKER, PutObject(1, RESULT, [4], 0), [b"ab"])
    story.core.can_fetch = True
    story.says(WORKER, GetObject(2, OTHER, 0.0))
    story.breaks(WORKER)
    others = (CLIENT, READER, SCHEDULER)
    story.wait(58.0, alive=others)
    assert story.core.objects.used_bytes == 4
    assert story.wait(4.0, alive=others) == []
    assert story.expired == [WORKER]
    assert status(story) == StorageStatus(99, 0, 0, 1000, 0, misses=1)
