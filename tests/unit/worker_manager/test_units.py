"""What is remembered of units at a service whose lists are late."""

from __future__ import annotations

import pytest

from scaler.protocol.messages import UnitState
from scaler.worker_manager.units import SeenUnit, UnitCache

PENDING, RUNNING, STOPPING = UnitState.PENDING, UnitState.RUNNING, UnitState.STOPPING
FAILED, STOPPED = UnitState.FAILED, UnitState.STOPPED


@pytest.fixture
def cache() -> UnitCache:
    return UnitCache(2, first_state=PENDING)


def states(cache: UnitCache, now: float) -> dict[str, UnitState]:
    return {unit.unit_id: unit.state for unit in cache.units(now)}


def test_units_that_were_started_are_there_before_the_service_shows_them(cache: UnitCache) -> None:
    cache.started(["a"], 0.0)
    assert states(cache, 1.0) == {"a": PENDING}
    hidden = UnitCache(2, first_state=None)
    hidden.started(["a"], 0.0)
    assert hidden.units(1.0) == []
    assert hidden.alive == ["a"]
    hidden.seen("a", SeenUnit(RUNNING, 1.0), 1.0)
    assert states(hidden, 1.0) == {"a": RUNNING}


def test_a_search_is_due_with_every_poll_of_the_first_minute_and_once_a_minute_after_it(cache: UnitCache) -> None:
    for now in (100.0, 101.0, 159.0):
        assert cache.is_search_due(now)
        cache.searched(now)
    assert not cache.is_search_due(161.0)
    assert cache.is_search_due(219.0)


def test_a_unit_that_is_listed_late_is_adopted_with_its_age(cache: UnitCache) -> None:
    cache.seen("late", SeenUnit(RUNNING, 50.0), 100.0)
    [unit] = cache.units(101.0)
    assert (unit.unit_id, unit.age_seconds, unit.slots) == ("late", 51.0, 2)


def test_a_unit_that_ended_before_it_was_known_is_not_shown(cache: UnitCache) -> None:
    cache.seen("old", SeenUnit(FAILED, 50.0, "killed"), 100.0)
    assert cache.units(100.0) == []
    assert cache.knows("old")


def test_an_ended_unit_is_shown_for_a_while_with_its_reason(cache: UnitCache) -> None:
    cache.started(["a"], 0.0)
    cache.seen("a", SeenUnit(FAILED, 9.0, "killed"), 10.0)
    [unit] = cache.units(300.0)
    assert (unit.state, unit.reason, unit.age_seconds) == (FAILED, "killed", 10.0)
    assert cache.units(311.0) == []
    assert cache.alive == []
    assert cache.to_stop(["a"]) == []


def test_a_stop_outranks_what_the_service_shows_after_it(cache: UnitCache) -> None:
    cache.started(["a", "b"], 0.0)
    cache.stopping("a")
    cache.seen("a", SeenUnit(RUNNING, 5.0), 5.0)
    assert states(cache, 5.0) == {"a": STOPPING, "b": PENDING}
    assert cache.to_stop(["a", "b", "unknown"]) == ["b", "unknown"]


def test_a_unit_that_is_not_found_for_a_minute_does_not_exist(cache: UnitCache) -> None:
    cache.started(["a", "b"], 0.0)
    assert cache.not_found(["a", "b", "unknown"], 10.0) == []
    cache.seen("b", SeenUnit(RUNNING, 40.0), 40.0)
    assert cache.not_found(["a", "b"], 71.0) == ["a"]
    assert cache.alive == ["b"]


def test_a_unit_is_new_as_long_as_the_service_may_not_know_it(cache: UnitCache) -> None:
    cache.started(["a"], 0.0)
    assert cache.is_new("a", 59.0)
    assert not cache.is_new("a", 61.0)
    assert not cache.is_new("unknown", 0.0)
