"""The storage when memory is scarce: it spills to disk, delays puts, and only then refuses."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from scaler.ids import IdFactory
from scaler.object_storage.commands import SendToPeer
from scaler.object_storage.core import MAX_WAITING_PUT_BYTES
from scaler.object_storage.messages import GetObject, PutObject, StatStorage, StorageStatus
from scaler.protocol import messages as m
from tests.unit.object_storage.storage_story import CLIENT, READER, SCHEDULER, Story, contents, messages, replies

MADE = IdFactory(CLIENT)
THEIRS = IdFactory(READER)


@pytest.fixture
def story() -> Story:
    return Story(spill_limit_bytes=5000, put_wait_seconds=5.0)


def put(story: Story, count: int, request: int = 1) -> list[bytes]:
    ids = [MADE.object() for _ in range(count)]
    for identifier in ids:
        story.puts(CLIENT, identifier, bytes([len(ids)]) * 300, request=request)
    return ids


def announces(story: Story, peer: bytes, made: IdFactory, size: int, request: int) -> list[SendToPeer]:
    return story.says(peer, PutObject(request, made.object(), [size], 0))


def answered(sent: Sequence[SendToPeer]) -> dict[int, str]:
    return {request: result for _, request, result in replies(sent)}


# -- to disk and back ------------------------------------------------------------------------------------------------


def test_least_recently_used_objects_are_spilled_before_memory_is_full(story: Story) -> None:
    first, second, _ = put(story, 3)
    (write,) = story.writes
    assert len(write.bodies) == 1
    story.says(READER, GetObject(1, first, 0.0))
    story.writes_end()
    assert (story.core.objects.used_bytes, story.core.objects.spilling.used_bytes) == (600, 300)
    put(story, 1)
    assert [len(frames[0]) for frames in story.writes[0].frames] == [300]
    story.writes_end()
    assert contents(story.says(READER, GetObject(2, first, 0.0))) == [(READER, 2, b"\x03" * 300)]
    assert contents(story.says(READER, GetObject(3, second, 0.0))) == [(READER, 3, b"\x03" * 300)]


# -- puts wait ---------------------------------------------------------------------------------------------------------


def test_put_without_room_waits_for_spilling(story: Story) -> None:
    put(story, 3)
    late = MADE.object()
    assert story.puts(CLIENT, late, bytes(400), request=7) == []
    assert answered(story.writes_end()) == {7: "ok"}
    assert len(contents(story.says(READER, GetObject(1, late, 0.0)))) == 1


def test_put_without_room_waits_for_a_release() -> None:
    story = Story(put_wait_seconds=5.0)
    ids = put(story, 3)
    assert story.puts(CLIENT, MADE.object(), bytes(400), request=7) == []
    story.wait(2.0)
    assert answered(story.says(SCHEDULER, m.ForgetObjects(ids[:1]))) == {7: "ok"}


def test_waiting_put_is_refused_at_its_deadline_without_data_loss() -> None:
    story = Story(put_wait_seconds=5.0)
    ids = put(story, 3)
    assert story.puts(CLIENT, MADE.object(), bytes(400), request=7) == []
    sent = story.wait(6.0)
    assert answered(sent) == {7: "full"}
    assert "there is no space for size 400: 900 of memory_limit_bytes = 1000 are used" in messages(sent)[0].text
    assert [len(contents(story.says(READER, GetObject(1, each, 0.0)))) for each in ids] == [1, 1, 1]


def test_waiting_put_is_refused_beyond_the_buffer_limit() -> None:
    frame, most = bytes(m.MAX_ATTACHED_BYTES), MAX_WAITING_PUT_BYTES + m.MAX_ATTACHED_BYTES
    story = Story(most + 1, put_wait_seconds=5.0)
    put(story, 1)
    late = MADE.object()
    for offset in range(0, most, m.MAX_ATTACHED_BYTES):
        assert story.says(CLIENT, PutObject(7, late, [most + 1], offset), [frame]) == []
    assert set(answered(story.says(CLIENT, PutObject(8, late, [most + 1], most), [b"x"])).items()) >= {(8, "missing")}


# -- full disks --------------------------------------------------------------------------------------------------------


def test_objects_stay_in_memory_on_a_full_disk_and_the_refusal_explains(story: Story) -> None:
    ids = put(story, 3)
    story.puts(CLIENT, MADE.object(), bytes(400), request=7)
    story.writes_end("No space left on device")
    assert (story.core.objects.used_bytes, story.core.objects.spilling.used_bytes) == (900, 0)
    sent = story.wait(6.0)
    assert answered(sent) == {7: "full"}
    assert messages(sent)[0].text.endswith("; the disk for spilled objects is full or failing: No space left on device")
    assert [len(contents(story.says(READER, GetObject(1, each, 0.0)))) for each in ids] == [1, 1, 1]
    assert len(story.writes) == 1  # retries


def test_disk_use_never_exceeds_the_limit() -> None:
    story = Story(spill_limit_bytes=700, put_wait_seconds=5.0)
    for _ in range(20):
        put(story, 1)
        while story.writes:
            story.writes_end()
    story.wait(6.0)
    assert story.core.objects.spilling.used_bytes == 600
    status = story.says(SCHEDULER, StatStorage(1))[0].message
    assert isinstance(status, StorageStatus)
    assert (status.objects, status.bytes, status.spilled_bytes) == (5, 900, 600)


# -- announcements that never come ------------------------------------------------------------------------------------


def test_announcements_of_one_key_reserve_at_most_half_of_the_memory() -> None:
    story = Story(put_wait_seconds=5.0)
    assert answered(announces(story, CLIENT, MADE, 300, 1)) == {1: "ok"}
    assert answered(announces(story, CLIENT, MADE, 200, 2)) == {2: "ok"}
    assert announces(story, CLIENT, MADE, 100, 3) == []
    assert answered(story.puts(READER, THEIRS.object(), bytes(400), request=4)) == {4: "ok"}


def test_stalled_announcement_yields_to_other_puts() -> None:
    story = Story(put_wait_seconds=5.0)
    announces(story, CLIENT, MADE, 1000, 1)
    assert story.puts(READER, THEIRS.object(), bytes(400), request=2) == []
    assert answered(story.wait(2.0)) == {2: "ok"}
