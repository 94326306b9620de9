"""Ownership of objects: peers with keys can read, name, and delete only their own."""

from __future__ import annotations

import pytest

from scaler.ids import IdFactory, result_id
from scaler.net.connection import Identity
from scaler.object_storage.core import UPLOAD_SECONDS
from scaler.object_storage.messages import GetObject, PutObject, StatStorage
from scaler.object_storage.objects import MIN_RECORDS_BYTES
from scaler.protocol import messages as m
from tests.unit.object_storage.storage_story import SCHEDULER, Story, contents, messages, replies

ALICE, TWIN, MALLORY, WORKER, ADMIN = b"alice---", b"alice--2", b"mallory-", b"worker--", b"admin---"
OF_ALICE, OF_MALLORY = Identity("alice", frozenset({m.Role.CLIENT})), Identity("mallory", frozenset({m.Role.CLIENT}))
OF_WORKER = Identity("farm.units", frozenset({m.Role.WORKER}))
OF_ADMIN = Identity("root", frozenset({m.Role.CLIENT, m.Role.ADMIN}), is_admin=True)
MADE = IdFactory(ALICE)
OBJECT, ABSENT, RESULT = MADE.object(), MADE.object(), result_id(MADE.task(), 1)


@pytest.fixture
def story() -> Story:
    """Clients of two keys, two sessions of one of them, a worker, and an admin. Alice has one object."""
    story = Story(limit_bytes=10_000)
    for peer, identity in ((ALICE, OF_ALICE), (TWIN, OF_ALICE), (MALLORY, OF_MALLORY), (ADMIN, OF_ADMIN)):
        story.opens(peer, m.Role.CLIENT, identity)
    story.opens(WORKER, m.Role.WORKER, OF_WORKER)
    story.puts(ALICE, OBJECT, b"secret")
    return story


def got(story: Story, peer: bytes, object_id: bytes) -> list[bytes]:
    return [data for _, _, data in contents(story.says(peer, GetObject(1, object_id, 0.0)))]


@pytest.mark.parametrize("can_fetch", [False, True])
def test_objects_of_another_key_are_not_found_whether_or_not_they_exist(story: Story, can_fetch: bool) -> None:
    story.core.can_fetch = can_fetch
    story.says(SCHEDULER, m.ForgetObjects([RESULT]))  # the object existed
    answers = [messages(story.says(MALLORY, GetObject(1, name, 0.0))) for name in (OBJECT, ABSENT, RESULT)]
    assert answers[0] == answers[1] == answers[2]
    assert [(str(answer.result), answer.text) for answer in answers[0]] == [("missing", "there is no such object")]
    story.says(MALLORY, GetObject(2, ABSENT, 0.0))
    assert contents(story.puts(ALICE, ABSENT, b"later")) == []


def test_objects_stored_first_by_another_client_never_replace_the_real_one(story: Story) -> None:
    for name in (ABSENT, RESULT):
        assert replies(story.puts(MALLORY, name, b"evil")) == [(MALLORY, 1, "invalid")]
    story.puts(ALICE, ABSENT, b"real")
    story.puts(WORKER, RESULT, b"value")
    assert got(story, WORKER, ABSENT) == [b"real"]
    assert got(story, ALICE, RESULT) == [b"value"]


def test_worker_reads_named_objects_and_stores_only_results(story: Story) -> None:
    assert got(story, WORKER, OBJECT) == [b"secret"]
    assert replies(story.puts(WORKER, ABSENT, b"evil")) == [(WORKER, 1, "invalid")]
    assert replies(story.puts(WORKER, RESULT, b"value")) == [(WORKER, 1, "ok")]


def test_sessions_of_a_key_share_data_and_an_admin_reads_everything(story: Story) -> None:
    story.puts(WORKER, RESULT, b"value")
    for peer in (TWIN, ADMIN):
        assert got(story, peer, OBJECT) == [b"secret"]
        assert got(story, peer, RESULT) == [b"value"]


def test_space_of_a_stalled_upload_is_released(story: Story) -> None:
    def used_bytes() -> int:
        return int(messages(story.says(SCHEDULER, StatStorage(1)))[0].bytes)

    alive = (ALICE, MALLORY, SCHEDULER)
    mine = IdFactory(MALLORY).object()
    story.says(MALLORY, PutObject(1, mine, [9_000], 0))
    assert replies(story.puts(ALICE, ABSENT, bytes(2_000))) == [(ALICE, 1, "full")]
    story.wait(UPLOAD_SECONDS - 2.0, alive)
    story.says(MALLORY, PutObject(2, mine, [9_000], 0), [bytes(10)])
    story.wait(UPLOAD_SECONDS - 2.0, alive)
    assert used_bytes() == 9_006
    story.wait(4.0, alive)
    assert used_bytes() == 6
    assert replies(story.puts(ALICE, ABSENT, bytes(2_000))) == [(ALICE, 1, "ok")]
    assert replies(story.says(MALLORY, PutObject(3, mine, [9_000], 10), [bytes(10)])) == [(MALLORY, 3, "missing")]


def test_empty_objects_with_many_parts_use_bounded_memory(story: Story) -> None:
    made = IdFactory(MALLORY)
    parts = [0] * 100_000
    kept = 0
    while replies(story.says(MALLORY, PutObject(1, made.object(), parts, 0))) == [(MALLORY, 1, "ok")]:
        kept += 1
    assert kept * 8 * len(parts) <= MIN_RECORDS_BYTES + 8 * len(parts)
    story.leaves(MALLORY)
    story.says(SCHEDULER, m.ForgetOwner(MALLORY))
    assert replies(story.puts(ALICE, ABSENT, b"x")) == [(ALICE, 1, "ok")]
