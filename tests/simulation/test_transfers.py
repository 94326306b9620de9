"""Objects between hosts with limited links: durations, link usage, and effects of failures."""

from __future__ import annotations

from random import Random

import pytest

from scaler.object_storage.messages import ObjectsDropped, ObjectsUnwanted
from tests.short_forms import short_form
from tests.simulation.transfers import GIGABIT, MB, LinkWorld, broadcast, shuffle
from tests.unit.scheduler.driver import host_stores


@pytest.mark.parametrize("source", [0, 1], ids=["from the object storage", "from a host"])
def test_sixteen_hosts_get_an_object_much_faster_than_sixteen_copies(source: int) -> None:
    outcome = broadcast(16, 100 * MB, source)
    assert outcome.ratio < 1.25
    assert outcome.copies < 1.25


def test_shuffle_keeps_all_links_busy() -> None:
    outcome = shuffle(8, 64, 4 * MB, checked=False)
    assert outcome.ratio < 1.1
    assert outcome.copies < 1.1


def test_small_object_does_not_wait_behind_large_ones_at_a_source() -> None:
    world = LinkWorld(12)
    large = [world.make([1], 200 * MB) for _ in range(10)]
    small = world.make([1], MB // 10)
    for number, identifier in enumerate(large, 2):
        world.want(number, [identifier])
    world.run(limit_seconds=0.1)
    began_at = world.now
    world.want(12, [small])
    world.run(limit_seconds=1.0)
    assert world.hosts[12].ended[small] - began_at < 0.05
    world.run()
    assert all(identifier in world.hosts[number].ended for number, identifier in enumerate(large, 2))


@pytest.mark.parametrize("fetcher", [0, 2], ids=["the object storage", "a host"])
def test_stores_without_a_route_pass_objects_through_the_object_storage(fetcher: int) -> None:
    world = LinkWorld(2)
    world.unreachable |= {(fetcher, 1), (1, fetcher)}
    identifier = world.make([1], 50 * MB)
    world.want(fetcher, [identifier])
    world.run(limit_seconds=30)
    assert identifier in world.hosts[fetcher].ended
    assert not world.hosts[fetcher].lost


def test_slow_link_delays_only_its_own_host() -> None:
    world = LinkWorld(16)
    world.hosts[5].bytes_per_second = GIGABIT / 20
    identifier = world.make([0], 50 * MB)
    for number in range(1, 17):
        world.want(number, [identifier])
    world.run()
    others = [world.hosts[number].ended[identifier] for number in range(1, 17) if number != 5]
    assert max(others) < 2.0 * 50 * MB / GIGABIT
    assert world.hosts[5].ended[identifier] > 20 * 50 * MB / GIGABIT


@pytest.mark.parametrize("seed", short_form(range(12), 4))
def test_every_living_store_gets_wanted_objects_or_learns_of_their_loss(seed: int) -> None:
    """Hosts fail, lose copies, cannot reach each other, and change their requests during fetches."""
    random = Random(seed)
    world = LinkWorld(10)
    numbers = range(11)
    world.unreachable = {(random.choice(numbers), random.choice(numbers[1:])) for _ in range(15)}
    objects = [
        world.make(random.sample(numbers, random.randint(1, 3)), random.choice([MB // 10, 3 * MB, 40 * MB]))
        for _ in range(8)
    ]
    wanted: set[tuple[int, bytes]] = set()

    def want() -> None:
        number, identifier = random.choice(numbers), random.choice(objects)
        host = world.hosts[number]
        if host.alive and not host.has.get(identifier) and (number, identifier) not in wanted:
            wanted.add((number, identifier))
            world.want(number, [identifier])

    def change_mind() -> None:
        number, identifier = random.choice(sorted(wanted)) if wanted else (0, objects[0])
        if identifier not in world.hosts[number].ended:
            wanted.discard((number, identifier))
            world.hosts[number].unwanted.add(identifier)
            world.say(number, ObjectsUnwanted([identifier]))

    def lose_copy() -> None:
        number, identifier = random.choice(numbers), random.choice(objects)
        host = world.hosts[number]
        if (number, identifier) not in wanted and host.has.pop(identifier, 0):
            world.say(number, ObjectsDropped([identifier]))

    def die() -> None:
        number = random.choice(numbers[1:])
        if world.hosts[number].alive:
            world.die(number)

    for _ in range(60):
        world.later(random.uniform(0, 2), want)
    for misfortune, times in ((change_mind, 4), (lose_copy, 6), (die, 3)):
        for _ in range(times):
            world.later(random.uniform(0.1, 2), misfortune)
    world.run(limit_seconds=200)
    for number, identifier in wanted:
        host = world.hosts[number]
        assert identifier in host.ended or not host.alive, f"host {number} still waits for {identifier.hex()}"
    assert not host_stores(world.core.state).tracker.transfers
    assert any(identifier not in world.hosts[number].lost for number, identifier in wanted)
