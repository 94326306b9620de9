"""Cached results: their owners, and evictions."""

from __future__ import annotations

import pytest

from scaler.ids import cache_owner, cached_id
from scaler.net.connection import Identity
from scaler.object_storage.messages import GetObject
from scaler.protocol.messages import Role
from tests.unit.object_storage.storage_story import CLIENT, Story, contents, replies

ALICE, MALLORY, WORKER = b"alice---", b"mallory-", b"worker--"
OF_ALICE, OF_MALLORY = Identity("alice", frozenset({Role.CLIENT})), Identity("mallory", frozenset({Role.CLIENT}))
OF_WORKER = Identity("farm.units", frozenset({Role.WORKER}))


def result_of(call: str, key: str = "") -> bytes:
    return cached_id(cache_owner(key), call.encode().ljust(16))


def got(story: Story, peer: bytes, object_id: bytes) -> list[bytes]:
    return [data for _, _, data in contents(story.says(peer, GetObject(1, object_id, 0.0)))]


@pytest.fixture
def story() -> Story:
    """A cache of 100 bytes."""
    return Story()


def test_least_recently_used_results_are_evicted(story: Story) -> None:
    for call in "ab":
        story.puts(CLIENT, result_of(call), b"x" * 50)
    assert got(story, CLIENT, result_of("a"))
    story.puts(CLIENT, result_of("c"), b"x" * 40)
    assert [bool(got(story, CLIENT, result_of(call))) for call in "abc"] == [True, False, True]
    story.puts(CLIENT, result_of("d"), b"x" * 100)
    assert [bool(got(story, CLIENT, result_of(call))) for call in "abcd"] == [False, False, False, True]


def test_result_larger_than_the_cache_is_refused_and_evicts_nothing(story: Story) -> None:
    story.puts(CLIENT, result_of("a"), b"x" * 50)
    assert replies(story.puts(CLIENT, result_of("b"), b"x" * 101)) == [(CLIENT, 1, "too_large")]
    assert got(story, CLIENT, result_of("a"))
    assert not got(story, CLIENT, result_of("b"))


def test_results_belong_to_a_key_and_are_hidden_from_other_peers(story: Story) -> None:
    story.opens(ALICE, Role.CLIENT, OF_ALICE)
    story.opens(MALLORY, Role.CLIENT, OF_MALLORY)
    story.opens(WORKER, Role.WORKER, OF_WORKER)
    of_alice = result_of("a", "alice")
    for peer in (MALLORY, WORKER):
        assert replies(story.puts(peer, of_alice, b"evil")) == [(peer, 1, "invalid")]
    story.puts(ALICE, of_alice, b"value")
    assert not got(story, MALLORY, of_alice)
    story.leaves(ALICE)
    story.opens(b"alice--2", Role.CLIENT, OF_ALICE)
    assert got(story, b"alice--2", of_alice) == [b"value"]
