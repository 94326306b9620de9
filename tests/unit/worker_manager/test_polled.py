"""Records of units at a service with delayed lists."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from scaler.protocol.messages import UnitState
from scaler.worker_manager import polled
from scaler.worker_manager.backend import BackendError, Capacity
from scaler.worker_manager.polled import PolledBackend, SeenUnit, Stopped

PENDING, RUNNING, STOPPING = UnitState.PENDING, UnitState.RUNNING, UnitState.STOPPING
WAITING = UnitState.WAITING
FAILED, STOPPED = UnitState.FAILED, UnitState.STOPPED


class Service(PolledBackend):
    """A backend of a scripted service, on a clock that the test moves."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, first_state: UnitState = PENDING, heartbeat_seconds: float = 0.0
    ) -> None:
        super().__init__(
            service="S",
            noun="units",
            stop_by_hand="",
            capacity=Capacity.of_units(2, None),
            heartbeat_seconds=heartbeat_seconds,
            first_state=first_state,
        )
        self.now = 0.0
        self.shown: dict[str, SeenUnit] = {}
        self.searches: list[bool] = []
        self.stops: list[str] = []
        self.outcome: Stopped = "stopping"
        monkeypatch.setattr(polled, "time", SimpleNamespace(monotonic=lambda: self.now, sleep=self._sleep))

    def _sleep(self, seconds: float) -> None:
        self.now += seconds

    def start_some(self, count: int) -> list[str]:
        return ["a", "b", "c"][:count]

    def started_unanswered(self) -> list[str]:
        return []

    def stop_one(self, unit_id: str) -> Stopped:
        self.stops.append(unit_id)
        return self.outcome

    def list_ids(self, *, search: bool) -> list[str]:
        self.searches.append(search)
        return list(self.shown)

    def describe(self, unit_ids: Sequence[str]) -> dict[str, SeenUnit]:
        return {unit_id: self.shown[unit_id] for unit_id in unit_ids if unit_id in self.shown}

    def disconnect(self) -> None:
        pass

    def at(self, now: float, **shown: SeenUnit) -> dict[str, UnitState]:
        """List units at a time when the service shows these."""
        self.now, self.shown = now, shown
        return {unit.unit_id: unit.state for unit in self.list()}


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    return Service(monkeypatch)


def test_started_units_exist_before_the_service_reports_them(service: Service) -> None:
    service.start(1)
    assert service.at(1.0) == {"a": PENDING}
    assert service.at(2.0, a=SeenUnit(RUNNING, 1.0)) == {"a": RUNNING}


def test_connected_unit_of_an_earlier_manager_is_listed_before_the_next_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(monkeypatch, heartbeat_seconds=10.0)
    assert service.at(0.0) == {}
    service.connected = frozenset({"earlier"})
    assert service.at(1.0) == {"earlier": RUNNING}
    assert len(service.searches) == 1


def test_unit_listed_late_is_adopted_with_its_age(service: Service) -> None:
    service.at(100.0, late=SeenUnit(RUNNING, 50.0))
    service.now = 101.0
    [unit] = service.list()
    assert (unit.unit_id, unit.age_seconds, unit.slots) == ("late", 51.0, 2)


def test_ended_unit_is_shown_for_a_while_with_its_reason(service: Service) -> None:
    service.start(1)
    service.at(10.0, a=SeenUnit(FAILED, 9.0, "killed"))
    service.now = 300.0
    [unit] = service.list()
    assert (unit.state, unit.reason, unit.age_seconds) == (FAILED, "killed", 10.0)
    assert service.at(311.0, a=SeenUnit(RUNNING, 311.0)) == {}, "a failed unit stays failed"
    service.stop(["a"])
    assert service.stops == []


def test_stop_outranks_later_answers_of_the_service(service: Service) -> None:
    service.start(2)
    service.stop(["a"])
    assert service.at(5.0, a=SeenUnit(RUNNING, 5.0)) == {"a": STOPPING, "b": PENDING}
    service.stops.clear()
    service.stop(["a", "b", "unknown"])
    assert sorted(service.stops) == ["b", "unknown"]


def test_unit_not_found_for_a_minute_has_ended(service: Service) -> None:
    service.start(2)
    assert service.at(10.0) == {"a": PENDING, "b": PENDING}, "one listing proves nothing"
    service.at(40.0, b=SeenUnit(RUNNING, 40.0))
    assert service.at(70.0) == {"a": PENDING, "b": RUNNING}
    assert service.at(71.0) == {"a": FAILED, "b": RUNNING}


def test_stop_fails_while_the_service_may_not_know_the_unit(service: Service) -> None:
    service.outcome = "not found"
    service.start(1)
    with pytest.raises(BackendError, match="S does not list a newly started unit yet"):
        service.stop(["a"])
    service.now = 61.0
    service.stop(["a"])
    assert service.at(61.0) == {}


def test_unit_with_a_time_limit_reports_its_remaining_time(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Service(monkeypatch)
    backend.shown["a"] = SeenUnit(UnitState.RUNNING, 5.0, remaining_seconds=60.0)
    backend.shown["b"] = SeenUnit(UnitState.WAITING, 5.0, "Resources")
    assert {unit.unit_id: unit.remaining_seconds for unit in backend.list()} == {"a": 60.0, "b": 0.0}
    backend.shown["a"] = SeenUnit(UnitState.RUNNING, 64.0, remaining_seconds=1.0)
    backend.now = 59.0
    assert [unit.remaining_seconds for unit in backend.list() if unit.unit_id == "a"] == [1.0]
    backend.shown.clear()
    backend.now = 70.0
    [left] = [unit.remaining_seconds for unit in backend.list() if unit.unit_id == "a"]
    assert 0 < left < 0.01, "0 would mean that it has no limit"


# -- reports of connected workers


def test_unit_with_a_connected_worker_exists_whatever_the_service_reports(service: Service) -> None:
    service.start(2)
    service.at(1.0, a=SeenUnit(RUNNING, 1.0), b=SeenUnit(RUNNING, 1.0))
    service.connected = frozenset({"a", "b"})
    both = {"a": RUNNING, "b": RUNNING}
    assert service.at(2.0) == both, "left out"
    assert service.at(300.0) == both, "left out for minutes"
    assert service.at(301.0, a=SeenUnit(FAILED, 1.0, "killed"), b=SeenUnit(WAITING, 1.0, "queued")) == both, "stale"
    service.stop(["a"])
    assert service.stops == ["a"], "the unit can be stopped"


# -- starts that are refused


class Limited(Service):
    """A service that accepts this many units in total."""

    room = 2

    def start_some(self, count: int) -> list[str]:
        self.asked.append(count)
        if count > self.room:
            error = BackendError("job submit limit")
            error.fewer_may_start = self.is_size
            raise error
        self.room -= count
        return [f"{count}-{self.room}-{index}" for index in range(count)]

    asked: list[int]
    is_size = True


@pytest.mark.parametrize(
    ("room", "asked", "started"), [(2, [6, 3, 1, 1, 1], 2), (0, [6, 3, 1], 0), (5, [6, 3, 3, 1, 1, 1], 5), (6, [6], 6)]
)
def test_refused_start_is_retried_with_half_of_the_units(
    room: int, asked: list[int], started: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Limited(monkeypatch)
    service.room, service.asked = room, []
    if room == 6:
        assert len(service.start(6)) == 6
    else:
        with pytest.raises(BackendError, match="job submit limit") as raised:
            service.start(6)
        assert len(raised.value.started) == started
    assert service.asked == asked
