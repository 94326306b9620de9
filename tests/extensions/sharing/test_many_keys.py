"""Turns among many keys of one group cost little more than turns among a few."""

from __future__ import annotations

import pytest

from scaler.extensions.sharing.use import User
from scaler.net.connection import Identity
from scaler.security.keys import Share
from tests.extensions.sharing.bed import Bed


def standings_read_per_turn(keys: int, tasks: int, monkeypatch: pytest.MonkeyPatch) -> float:
    """Let each key's client submit tasks, and a worker take one per key in one step."""
    bed = Bed(0)
    names = [f"k{number}" for number in range(keys)]
    bed.share(group_desk=Share(), **{name: Share(group="desk") for name in names})
    for name in names:
        bed.client(name, identity=Identity(name))
        bed.submit(name, tasks, retries=3)
    read = 0
    top = User.top.fget  # type: ignore[attr-defined]

    def counted(user: User) -> User:
        nonlocal read
        read += 1
        found: User = top(user)
        return found

    monkeypatch.setattr(User, "top", property(counted))
    bed.worker("w", slots=keys)
    assert len(bed.on("w")) >= keys
    return read / len(bed.on("w"))


@pytest.mark.parametrize("tasks", [1, 2])
def test_choosing_among_500_keys_of_one_group_reads_few_standings(tasks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert standings_read_per_turn(500, tasks, monkeypatch) <= 8


def test_every_key_of_a_group_gets_a_turn_before_any_gets_a_second() -> None:
    bed = Bed(0)
    names = [f"k{number}" for number in range(50)]
    bed.share(group_desk=Share(), **{name: Share(group="desk") for name in names})
    for name in names:
        bed.client(name, identity=Identity(name))
        bed.submit(name, 4, retries=0)
    bed.worker("w", slots=50)
    assert len({task[:8] for task in bed.on("w")}) == len(bed.on("w")) == 50
