"""The protocol of scheduler and standby in simulated time: delays, silence, restarts, and slow or full disks."""

from __future__ import annotations

import random
from collections import deque

import pytest

from scaler.extensions.standby.core import CHUNK_BYTES, WINDOW_BYTES, FollowedStream, Follower
from scaler.extensions.standby.messages import Following, JournalBytes

TIMEOUT_SECONDS = 3.0
STEP_SECONDS = 0.05


class World:
    """One scheduler and its standby. Every record is acknowledged as soon as the rules allow it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.offset = self.random.uniform(0, 1e6)
        """Of the standby's clock."""
        self.source = FollowedStream(TIMEOUT_SECONDS)
        self.written: list[bytes] = []
        self.acknowledged = 0
        self.sessions = 0
        self.silent_until = 0.0
        self.delay = 0.0
        self.is_disk_full = False
        self.steps_in_step = 0
        self.begin()

    def begin(self) -> None:
        """Start the standby's process, with a new session."""
        self.sessions += 1
        self.follower = Follower()
        self.copy: list[bytes] | None = None
        """Records on the standby's disk, once the copy is complete."""
        self.base: list[bytes] = []
        self.unsynced: deque[bytes] = deque()
        self.to_standby: deque[tuple[float, JournalBytes]] = deque()
        self.to_scheduler: deque[tuple[float, Following]] = deque()
        self.source.last = len(self.written)
        assert self.source.follow(b"%d" % self.sessions, self.report(), self.now) == ""
        size = self.random.randint(0, len(self.written))
        self.source.add_base(self.written[:size])
        for body in self.written[size:]:
            self.source.add_base([body])
        assert self.source.end_base(len(self.written))

    def report(self) -> Following:
        number = 0 if self.copy is None else len(self.copy) + 1
        at = self.now + self.offset
        return Following("tcp://b:1", number, self.follower.received, at, self.is_disk_full)

    @property
    def is_certain(self) -> bool:
        return self.now + self.offset < self.follower.certain_until

    def step(self) -> None:
        self.now += STEP_SECONDS
        chance = self.random.random
        for _ in range(self.random.randint(0, 2)):
            self.written.append(self.random.randbytes(self.random.choice([1, 10, 1000])))
            self.source.appended(len(self.written), self.written[-1], self.now)
        if chance() < 0.01:
            self.silent_until = self.now + self.random.choice([1.0, 2.9, 3.1, 10.0])
        if chance() < 0.02:
            self.delay = self.random.choice([0.0, 0.0, 0.1, 1.0, 2.5])
        if chance() < (0.05 if self.is_disk_full else 0.003):
            self.is_disk_full = not self.is_disk_full
            if self.is_disk_full:
                self.follower.leave(self.now + self.offset)
        if chance() < 0.003:
            self.begin()
        self._move()
        if self.source.is_due_to_leave(self.now):
            self.source.leave()
        if self.source.peer:
            self.to_standby.extend((self.now + self.delay, message) for message in self.source.take())
        if chance() < 0.5:
            self.to_scheduler.append((self.now + self.delay, self.report()))
        self.acknowledged = max(self.acknowledged, int(min(len(self.written), self.source.limit)))
        self.steps_in_step += self.is_certain
        if self.is_certain:
            assert self.copy is not None
            assert self.copy[: self.acknowledged] == self.written[: self.acknowledged]

    def _move(self) -> None:
        if self.now < self.silent_until:
            return
        while self.to_standby and self.to_standby[0][0] <= self.now:
            for number, body in self.follower.take(self.to_standby.popleft()[1]):
                if not body:
                    assert self.base == self.written[:number]
                    self.copy = [*self.base]
                else:
                    (self.base if number == 0 else self.unsynced).append(body)
            if self.is_disk_full:
                self.follower.leave(self.now + self.offset)
        while self.unsynced and self.copy is not None and not self.is_disk_full and self.random.random() < 0.9:
            self.copy.append(self.unsynced.popleft())
        while self.to_scheduler and self.to_scheduler[0][0] <= self.now:
            self.source.heard(self.to_scheduler.popleft()[1], self.now)


@pytest.mark.parametrize("seed", range(20))
def test_standby_in_step_has_every_acknowledged_record(seed: int) -> None:
    world = World(seed)
    for _ in range(3_000):
        world.step()
    assert world.steps_in_step > 300
    assert world.acknowledged > len(world.written) - 500


def following(number: int, received: int = 0, at: float = 0.0, leaves: bool = False) -> Following:
    return Following("tcp://b:1", number, received, at, leaves)


def in_step() -> FollowedStream:
    source = FollowedStream(TIMEOUT_SECONDS)
    source.follow(b"b", following(0), 0.0)
    assert source.end_base(0)
    source.heard(following(1), 0.0)
    assert source.is_in_step
    return source


def test_scheduler_continues_without_a_silent_standby_only_after_the_timeout() -> None:
    source = in_step()
    (message,) = source.take()
    assert (message.at, message.seconds) == (0.0, TIMEOUT_SECONDS)
    source.appended(1, b"record", 0.5)
    assert source.limit == 0
    assert not any(source.is_due_to_leave(now) for now in (0.9, 1.9, 2.9))
    assert source.is_due_to_leave(3.1)
    source.leave()
    assert source.limit > 1
    (message,) = source.take()
    assert message.seconds == 0


def test_standby_without_disk_space_is_dropped_at_once_and_catches_up_later() -> None:
    source = in_step()
    source.appended(1, b"record", 0.5)
    source.heard(following(1, leaves=True), 1.0)
    assert not source.waits
    source.heard(following(2), 2.0)
    assert source.is_in_step


def test_stream_stays_within_its_window_and_splits_large_records() -> None:
    source, follower = in_step(), Follower()
    large = bytes(WINDOW_BYTES + 3)
    source.appended(1, large, 1.0)
    found: list[tuple[int, bytes]] = []
    while not found:
        messages = [*source.take()]
        assert all(len(message.data) <= CHUNK_BYTES for message in messages)
        assert sum(len(message.data) for message in messages) <= WINDOW_BYTES
        found += [frame for message in messages for frame in follower.take(message) if frame[1]]
        source.heard(following(1, follower.received), 1.0)
    assert found == [(1, large)]


def test_frozen_scheduler_gives_its_standby_the_whole_timeout_when_it_wakes() -> None:
    source = in_step()
    source.appended(1, b"record", 0.5)
    assert not source.is_due_to_leave(1.0)
    assert not any(source.is_due_to_leave(now) for now in (60.0, 61.0, 62.0, 62.9))
    assert source.limit == 0
    assert source.is_due_to_leave(63.1)


def test_second_standby_is_refused_until_the_first_is_dropped_and_disconnected() -> None:
    source = in_step()
    assert [*source.take()]
    other = Following("tcp://c:1", 0, 0, 0.0, False)
    assert "already has the standby tcp://b:1: stop one of the two" in source.follow(b"c", other, TIMEOUT_SECONDS + 1)
    source.lost()
    assert source.follow(b"c", other, TIMEOUT_SECONDS + 1), "nobody has left it behind"
    source.leave()
    assert source.follow(b"c", other, TIMEOUT_SECONDS + 1) == ""
    assert not source.waits


def test_standby_that_catches_up_is_not_replaced_by_another_one() -> None:
    source = FollowedStream(TIMEOUT_SECONDS)
    assert source.follow(b"b", following(0), 0.0) == ""
    assert source.follow(b"c", Following("tcp://c:1", 0, 0, 0.0, False), 1.0)
    assert source.peer == b"b"


def test_scheduler_without_a_standby_has_none_to_drop() -> None:
    source = FollowedStream(TIMEOUT_SECONDS)
    assert not source.is_due_to_leave(1.0)
    assert not source.must_start_over(1.0)


def test_nothing_is_kept_for_a_standby_that_is_lost_or_silent() -> None:
    source = in_step()
    source.appended(1, b"record", 0.5)
    assert source.can_send
    assert not source.must_start_over(59.0)
    assert source.must_start_over(61.0)
    source.lost()
    assert not source.can_send


def test_base_that_ends_before_the_first_later_record_is_refused() -> None:
    source = FollowedStream(TIMEOUT_SECONDS)
    source.last = 7
    source.follow(b"b", following(0), 0.0)
    source.appended(8, b"later", 0.0)
    assert not source.end_base(6)
    assert source.end_base(7)
