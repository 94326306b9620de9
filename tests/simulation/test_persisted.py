"""Persisted objects survive when their hosts and the object storage die one after another."""

from __future__ import annotations

from random import Random

import pytest

from scaler.extensions.data_plane.persisted import PersistedResults
from scaler.protocol.messages import PersistResults
from tests.short_forms import short_form
from tests.simulation.planting import Fault, plant
from tests.simulation.transfers import MB, LinkWorld
from tests.unit.scheduler.driver import host_stores

SEEDS = range(6)

FAULTS: dict[str, tuple[type, str, str, str, str]] = {
    # name: (class, method, true line, faulty line, words of the assertion that detects it)
    "a lost copy is not replaced": (PersistedResults, "lost", "self._unsettle(identifier)", "pass", "lacks a copy"),
    "a restarted object storage is not asked again": (
        PersistedResults,
        "gone",
        "self._unsettle(identifier)",
        "pass",
        "lacks a copy",
    ),
}


def run(seed: int) -> None:
    """Kill stores, even during copies, but never the only one with a complete object. New stores join."""
    random = Random(seed)
    world = LinkWorld(6)
    numbers = list(range(1, 7))
    sizes = MB // 10, 3 * MB, 40 * MB
    wanted = [world.make([random.choice(numbers)], random.choice(sizes)) for _ in range(40)]
    world.run()
    world.client_says(PersistResults(wanted))

    def holders(identifier: bytes) -> set[int]:
        return {number for number in world.hosts if world.is_whole(number, identifier)}

    deaths = 0
    for turn in range(60):
        world.run(limit_seconds=random.choice([0.01, 0.2, 2.0]))
        for identifier in wanted:
            assert holders(identifier), f"{identifier.hex()} is lost after {deaths} deaths"
        alive = [number for number, host in world.hosts.items() if host.alive]
        victim = random.choice(alive) if turn > 20 else 0  # first the object storage, while hosts have copies
        if len(alive) > 4 and all(holders(identifier) != {victim} for identifier in wanted):
            world.die(victim)
            deaths += 1
        elif turn % 3 == 0:
            world.join(len(world.hosts))
    assert deaths > 5
    world.run(limit_seconds=1000)
    for identifier in wanted:
        assert 0 in holders(identifier), f"{identifier.hex()} has no copy in the object storage"
    assert not host_stores(world.core.state).tracker.transfers


@pytest.mark.parametrize("seed", short_form(SEEDS, 2))
def test_single_store_failures_lose_no_persisted_object(seed: int) -> None:
    run(seed)


def run_all() -> None:
    for seed in SEEDS:
        run(seed)


@pytest.mark.long
def test_simulation_detects_a_planted_fault(fault_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = Fault(*FAULTS[fault_name])
    plant(fault, monkeypatch)
    with pytest.raises(AssertionError, match=fault.words):
        run_all()
