"""Objects with several copies on hosts that die, one after another: none of them is ever lost."""

from __future__ import annotations

from random import Random

import pytest

from scaler.protocol.messages import ReplicateResults
from scaler.scheduler.data.replicas import Replicas
from tests.short_forms import short_form
from tests.simulation.planting import Fault, plant
from tests.simulation.transfers import MB, LinkWorld

SEEDS = range(6)
STORED = 0
"""In ReplicateResults: a copy in the object storage."""

FAULTS: dict[str, tuple[type, str, str, str, str]] = {
    # name: (class, method, true line, faulty line, words of the assertion that catches it)
    "a lost copy is not replaced": (
        Replicas,
        "lost",
        "self._unsettle(identifier)",
        "pass",
        "lacks a copy",
    ),
    "one copy fewer is made than is wanted": (
        Replicas,
        "_settle",
        "while len(have) < target.copies:",
        "while len(have) < target.copies - 1:",
        "lacks a copy",
    ),
}


def run(seed: int) -> None:
    """Let hosts die, also while they copy, but never the only one that has an object whole; new ones come."""
    random = Random(seed)
    world = LinkWorld(6)
    numbers = list(range(7))
    wanted: dict[bytes, int] = {}
    for _ in range(40):
        identifier = world.make([random.choice(numbers)], random.choice([MB // 10, 3 * MB, 40 * MB]))
        wanted[identifier] = random.choice([STORED, 2, 2, 3])
    world.run()
    world.client_says(ReplicateResults(list(wanted), list(wanted.values())))

    def holders(identifier: bytes) -> set[int]:
        return {number for number in world.hosts if world.is_whole(number, identifier)}

    deaths = 0
    for turn in range(60):
        world.run(limit_seconds=random.choice([0.01, 0.2, 2.0]))
        for identifier in wanted:
            assert holders(identifier), f"{identifier.hex()} is lost after {deaths} deaths"
        alive = [number for number, host in world.hosts.items() if host.alive]
        victim = random.choice(alive)
        if len(alive) > 4 and all(holders(identifier) != {victim} for identifier in wanted):
            world.die(victim)
            deaths += 1
        elif turn % 3 == 0:
            world.join(len(world.hosts))
    assert deaths > 5
    world.run(limit_seconds=1000)
    for identifier, copies in wanted.items():
        found = holders(identifier)
        assert len(found) >= copies, f"{identifier.hex()} has {len(found)} copies"
        assert copies or STORED in found, f"{identifier.hex()} has no copies in the object storage"
    assert not world.core.state.data.tracker.transfers


@pytest.mark.parametrize("seed", short_form(SEEDS, 2))
def test_nothing_with_two_copies_is_lost_while_one_store_dies_at_a_time(seed: int) -> None:
    run(seed)


def run_all() -> None:
    for seed in SEEDS:
        run(seed)


@pytest.mark.long
def test_the_simulation_notices(fault_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = Fault(*FAULTS[fault_name])
    plant(fault, monkeypatch)
    with pytest.raises(AssertionError, match=fault.words):
        run_all()
