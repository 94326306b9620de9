from __future__ import annotations

import asyncio
import gc
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from unittest.mock import patch

import pytest

from scaler.object_storage import descriptors
from scaler.object_storage.descriptors import MAX_UNTAKEN, DescriptorDoor, join
from scaler.object_storage.shared_memory import SharedMemory, is_supported

pytestmark = pytest.mark.skipif(not is_supported(), reason="a 64-bit Linux shares memory")
PEER = b"a peer-1"
OTHER = b"a peer-2"
SIZE = 100_000


def memory(content: bytes = bytes(SIZE)) -> SharedMemory:
    return SharedMemory.written([memoryview(content)])


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def at_a_door(story: Callable[[DescriptorDoor], Awaitable[None]]) -> None:
    """Tell a story, at the end of which no descriptor is left."""

    async def main() -> None:
        before = open_descriptors()
        door = DescriptorDoor()
        try:
            await story(door)
        finally:
            door.close()
        door.close()
        gc.collect()
        assert open_descriptors() == before

    asyncio.run(main())


def test_descriptors_go_both_ways_under_their_requests() -> None:
    async def story(door: DescriptorDoor) -> None:
        channel = join(door.invite(PEER), PEER)
        assert channel is not None
        channel.give(2, memory(b"two" * SIZE))
        channel.give(1, memory(b"one" * SIZE))
        one, two = door.take(PEER, 1, [3 * SIZE]), door.take(PEER, 2, [3 * SIZE])
        assert one is not None
        assert two is not None
        assert one.parts() == [b"one" * SIZE]
        assert two.parts() == [b"two" * SIZE]
        assert door.take(PEER, 1, [3 * SIZE]) is None, "it was taken"
        door.give(PEER, 7, two)
        again = channel.take(7, [3 * SIZE])
        assert again is not None
        assert again.parts() == [b"two" * SIZE]
        channel.close()
        channel.close()

    at_a_door(story)


def test_who_does_not_know_its_own_word_is_sent_away() -> None:
    async def story(door: DescriptorDoor) -> None:
        name, _, word = door.invite(OTHER).partition("/")
        for invitation in (f"{name}/{word}", f"{name}/{'0' * 32}", f"{name}/"):
            channel = join(invitation, PEER)
            assert channel is not None
            channel.give(1, memory())
            assert door.take(PEER, 1, [SIZE]) is None
            channel.drain()
            assert not channel.is_open
            channel.close()

    at_a_door(story)


@pytest.mark.parametrize("invitation", ["", "/", "scaler-elsewhere/00", "scaler-elsewhere", "x" * 200 + "/00", "a/xyz"])
def test_a_door_that_is_out_of_reach_is_none(invitation: str) -> None:
    assert join(invitation, PEER) is None


def test_a_door_of_another_user_is_none_and_another_user_is_sent_away() -> None:
    async def story(door: DescriptorDoor) -> None:
        with patch.object(os, "geteuid", return_value=os.geteuid() + 1):
            assert join(door.invite(PEER), PEER) is None
        channel = join(door.invite(PEER), PEER)
        assert channel is not None
        channel.give(1, memory())
        with patch.object(os, "geteuid", return_value=os.geteuid() + 1):
            assert door.take(PEER, 1, [SIZE]) is None
        channel.close()

    at_a_door(story)


def test_another_user_who_says_nothing_keeps_no_descriptor_of_the_storage() -> None:
    async def story(door: DescriptorDoor) -> None:
        name = door.invite(PEER).partition("/")[0]
        before = open_descriptors()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as end:
            end.settimeout(4.0)
            end.connect("\0" + name)
            with patch.object(os, "geteuid", return_value=os.geteuid() + 1):
                door.invite(OTHER)
            assert end.recv(1) == b""
        assert open_descriptors() == before

    at_a_door(story)


def test_a_peer_that_comes_again_has_its_last_channel_only() -> None:
    async def story(door: DescriptorDoor) -> None:
        first, second = join(door.invite(PEER), PEER), join(door.invite(PEER), PEER)
        assert first is not None
        assert second is not None
        second.give(1, memory())
        assert door.take(PEER, 1, [SIZE]) is not None
        first.drain()
        assert not first.is_open
        first.close()
        second.close()

    at_a_door(story)


def test_what_a_peer_gave_goes_with_it_when_it_ends() -> None:
    async def story(door: DescriptorDoor) -> None:
        channel = join(door.invite(PEER), PEER)
        assert channel is not None
        channel.give(1, memory())
        assert door.take(PEER, 2, [SIZE]) is None
        before = open_descriptors()
        channel.close()
        # Both ends and the memory go, in some turn of the loop: nothing else tells that it has seen the end.
        while open_descriptors() > before - 3:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert door.take(PEER, 1, [SIZE]) is None

    at_a_door(story)


def test_peers_that_left_before_they_were_let_in_do_not_fill_the_door() -> None:
    async def story(door: DescriptorDoor) -> None:
        for number in range(20):
            peer = number.to_bytes(8, "big")
            channel = join(door.invite(peer), peer)
            assert channel is not None
            channel.close()
        last = join(door.invite(PEER), PEER)
        assert last is not None
        last.give(1, memory())
        assert door.take(PEER, 1, [SIZE]) is not None
        last.close()

    with patch.object(descriptors, "MOST_AT_THE_DOOR", 1):
        at_a_door(story)


def test_a_storage_takes_no_more_memories_than_it_can_hold() -> None:
    async def story(door: DescriptorDoor) -> None:
        channel = join(door.invite(PEER), PEER)
        assert channel is not None
        for request in range(3):
            channel.give(request, memory())
        taken = [door.take(PEER, request, [SIZE]) for request in range(3)]
        assert [each is None for each in taken] == [False, False, True]
        taken.clear()
        channel.give(3, memory())
        assert door.take(PEER, 3, [SIZE]) is not None
        channel.close()

    with patch.object(descriptors, "MAX_MEMORIES", 2):
        at_a_door(story)


def test_descriptors_without_a_message_are_limited_and_a_full_socket_does_not_wait() -> None:
    async def story(door: DescriptorDoor) -> None:
        channel = join(door.invite(PEER), PEER)
        assert channel is not None
        one = memory()
        for request in range(2 * MAX_UNTAKEN):
            channel.give(request, one)
            if not request % 50:
                assert door.take(PEER, 5 * MAX_UNTAKEN, [SIZE]) is None
        assert door.take(PEER, 0, [SIZE]) is not None
        assert door.take(PEER, 2 * MAX_UNTAKEN - 1, [SIZE]) is None
        for request in range(20_000):
            channel.give(request, one)
        channel.close()

    at_a_door(story)


def test_nonsense_on_a_channel_harms_nobody() -> None:
    async def story(door: DescriptorDoor) -> None:
        channel = join(door.invite(PEER), PEER)
        assert channel is not None
        channel.end.send(b"x")
        channel.end.send(bytes(500))
        reading, writing = os.pipe()
        socket.send_fds(channel.end, [(9).to_bytes(8, "little")], [reading, writing])
        os.close(reading)
        os.close(writing)
        assert door.take(PEER, 9, [SIZE]) is None
        channel.give(10, memory())
        assert door.take(PEER, 10, [SIZE]) is not None
        channel.close()

    at_a_door(story)
