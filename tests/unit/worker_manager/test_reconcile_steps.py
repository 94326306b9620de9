"""Single decisions of the reconciler."""

from __future__ import annotations

import pytest

from scaler.protocol.messages import UnitState
from scaler.worker_manager.backend import Unit
from scaler.worker_manager.reconcile import DRAIN_DEADLINE_SECONDS, STARTING_SECONDS, STOP_AGAIN_SECONDS, UnitsWanted
from tests.unit.worker_manager.reconciler_driver import ReconcilerDriver


def unit(name: str, state: UnitState = UnitState.RUNNING, age: float = 100.0, reason: str = "") -> Unit:
    return Unit(name, state, 1, age, reason)


@pytest.mark.parametrize("state", [UnitState.PENDING, UnitState.RUNNING])
def test_units_are_kept_until_the_scheduler_names_them(state: UnitState) -> None:
    reconciler = ReconcilerDriver()
    units = [unit("a", state), unit("b", state)]
    assert reconciler.step(UnitsWanted(1), units, 0.0).stop == ()
    assert reconciler.step(UnitsWanted(1, frozenset({"a"})), units, 1.0).stop == ("a",)


def test_unit_that_does_not_stop_is_asked_again_and_keeps_its_capacity() -> None:
    reconciler = ReconcilerDriver(max_units=1)
    units, drain = [unit("a")], UnitsWanted(1, frozenset({"a"}))
    assert reconciler.step(drain, units, 50.0).stop == ("a",)
    waiting = reconciler.step(drain, units, 50.0 + STOP_AGAIN_SECONDS - 1)
    assert (waiting.stop, waiting.start) == ((), 0)
    assert reconciler.step(drain, units, 50.0 + STOP_AGAIN_SECONDS).stop == ("a",)


def test_surplus_that_does_not_drain_is_stopped_at_the_deadline() -> None:
    reconciler = ReconcilerDriver()
    units = [unit("old", age=5000.0), unit("young", age=4000.0), unit("coming", UnitState.PENDING, 4500.0)]
    actions = reconciler.step(UnitsWanted(1), units, 50.0)
    assert actions.stop == ()
    assert actions.again == DRAIN_DEADLINE_SECONDS
    assert reconciler.step(UnitsWanted(1), units, 50.0 + DRAIN_DEADLINE_SECONDS - 1).stop == ()
    assert reconciler.step(UnitsWanted(1), units, 50.0 + DRAIN_DEADLINE_SECONDS).stop == ("coming", "young")


def test_backlog_units_do_not_count_as_surplus() -> None:
    reconciler = ReconcilerDriver(backlog=1)
    units = [unit("first", UnitState.WAITING, 90.0), unit("second", UnitState.WAITING, 80.0), unit("a"), unit("b")]
    assert reconciler.step(UnitsWanted(3), units, 0.0).start == 0
    assert reconciler.step(UnitsWanted(3), units, DRAIN_DEADLINE_SECONDS).stop == ()
    reconciler.step(UnitsWanted(1), units, DRAIN_DEADLINE_SECONDS)
    assert reconciler.step(UnitsWanted(1), units, 2 * DRAIN_DEADLINE_SECONDS).stop == ("second", "a")


def test_lost_proven_unit_is_replaced_at_once_without_a_degraded_reason() -> None:
    reconciler = ReconcilerDriver()
    for second in range(0, 100, 10):
        name = f"unit-{second}"
        reconciler.step(UnitsWanted(1), [unit(name)], second)
        reconciler.step(UnitsWanted(1), [unit(name)], second + 6)
        lost = unit(name, UnitState.FAILED, reason="killed by signal 9 (SIGKILL)")
        actions = reconciler.step(UnitsWanted(1), [lost], second + 7)
        assert (actions.start, actions.reason) == (1, "")


def test_containers_that_never_reach_the_scheduler_count_as_failures() -> None:
    reconciler = ReconcilerDriver()
    now = 0.0
    for attempt in range(5):
        now += 400.0
        reconciler.step(UnitsWanted(4), [], now, connected=[])
        reconciler.step(UnitsWanted(4), [unit(f"unit-{attempt}", age=1.0)], now + 1.0, connected=[])
        lost = unit(f"unit-{attempt}", UnitState.FAILED, age=300.0, reason="no contact with the scheduler")
        actions = reconciler.step(UnitsWanted(4), [lost], now + 300.0, connected=[])
    assert actions.start == 0
    assert "no contact with the scheduler" in actions.reason


def test_units_that_ended_before_the_manager_started_are_not_failures() -> None:
    reconciler = ReconcilerDriver()
    ended = [unit(f"unit-{number}", UnitState.FAILED, 0.0, "exit code 1") for number in range(20)]
    actions = reconciler.step(UnitsWanted(4), ended, 0.0)
    assert (actions.start, actions.reason) == (4, "")
    assert reconciler.step(UnitsWanted(4), [*ended, unit("new", UnitState.FAILED)], 1.0).start == 4


def test_repeated_failures_pause_starts_and_are_reported() -> None:
    reconciler = ReconcilerDriver()
    now = 0.0
    for attempt in range(5):
        now += 100.0
        assert reconciler.step(UnitsWanted(4), [], now).start > 0
        failed = unit(f"unit-{attempt}", UnitState.FAILED, 0.5, "exit code 1")
        actions = reconciler.step(UnitsWanted(4), [failed], now)
    assert actions.start == 0
    assert actions.reason == "exit code 1; failed 5 times in a row, paused, next attempt in 30 s"
    assert actions.again == 30.0


def test_failing_units_are_tried_one_at_a_time_until_one_is_proven() -> None:
    reconciler = ReconcilerDriver()
    reconciler.step(UnitsWanted(4), [], 0.0)
    for now in (0.0, 10.0):
        reconciler.step(UnitsWanted(4), [unit(f"unit-{now}", UnitState.FAILED, 0.5, "exit code 1")], now)
    assert reconciler.step(UnitsWanted(4), [], 20.0).start == 1
    reconciler.started(20.0)
    assert reconciler.step(UnitsWanted(4), [unit("a", UnitState.PENDING, 0.5)], 20.5).start == 0
    assert reconciler.step(UnitsWanted(4), [unit("a", age=1.0)], 21.0).start == 0
    assert reconciler.step(UnitsWanted(4), [unit("a", age=6.0)], 26.0).start == 3


def test_unit_older_than_the_failures_cancels_only_one() -> None:
    reconciler = ReconcilerDriver()
    reconciler.step(UnitsWanted(4), [unit("old")], 0.0)
    for now in (1.0, 2.0, 3.0):
        failed = unit(f"unit-{now}", UnitState.FAILED, 0.0, "exit code 1")
        reconciler.step(UnitsWanted(4), [unit("old", age=100.0 + now), failed], now)
    assert reconciler.step(UnitsWanted(4), [unit("old", age=120.0)], 20.0).start == 1


@pytest.mark.parametrize(("state", "start"), [(UnitState.FAILED, 1), (UnitState.STOPPED, 4)])
def test_early_exit_of_a_connected_worker_is_a_failure_unless_it_is_orderly(state: UnitState, start: int) -> None:
    reconciler = ReconcilerDriver()
    for now in (0.0, 10.0):
        reconciler.step(UnitsWanted(4), [unit(f"unit-{now}", age=0.0)], now)
        reconciler.step(UnitsWanted(4), [unit(f"unit-{now}", state, 1.0)], now + 1.0)
    assert reconciler.step(UnitsWanted(4), [], 20.0).start == start


def test_failed_start_is_retried_later_and_no_longer_counts_after_a_success() -> None:
    reconciler = ReconcilerDriver()
    reconciler.failed("throttled", 0.0)
    assert reconciler.step(UnitsWanted(4), [], 0.0).start == 4
    reconciler.failed("throttled", 0.0)
    actions = reconciler.step(UnitsWanted(4), [], 0.0)
    assert (actions.start, actions.again) == (0, 0.5)
    reconciler.started(0.5)
    reconciler.failed("throttled", 0.6)
    assert reconciler.step(UnitsWanted(4), [unit("a", UnitState.PENDING, 0.0)], 0.6).start == 3


def test_refused_start_is_retried_with_one_unit_and_when_a_unit_ends() -> None:
    reconciler = ReconcilerDriver()
    units = [unit("a"), unit("b")]
    now = 10.0
    assert reconciler.step(UnitsWanted(6), units, now).start == 4
    for _ in range(2):
        reconciler.failed("job submit limit", now)
    waiting = reconciler.step(UnitsWanted(6), units, now)
    assert (waiting.start, "job submit limit" in waiting.reason) == (0, True)
    ended = [unit("a", UnitState.STOPPED), unit("b")]
    assert reconciler.step(UnitsWanted(6), ended, now).start == 1
    reconciler.failed("job submit limit", now)
    assert reconciler.step(UnitsWanted(6), ended, now).start == 0, "the unit has already ended once"
    reconciler.started(now)
    assert reconciler.step(UnitsWanted(6), [*ended, unit("c")], now).start == 4


def test_units_are_unchanged_without_a_target() -> None:
    actions = ReconcilerDriver().step(UnitsWanted(None), [unit("a"), unit("b", UnitState.PENDING, 0.0)], 0.0)
    assert (actions.start, actions.stop) == (0, ())


def test_stopped_units_are_not_failures() -> None:
    reconciler = ReconcilerDriver()
    for second in range(5):
        name = f"unit-{second}"
        goal = UnitsWanted(0, frozenset({name}))
        assert reconciler.step(goal, [unit(name, UnitState.PENDING, 0.0)], second).stop == (name,)
        reconciler.step(UnitsWanted(0), [unit(name, UnitState.STOPPED, 0.5, "exit code 0")], second)
    overdue = [unit("x", UnitState.PENDING, 0.0), unit("y", UnitState.PENDING, 0.0)]
    reconciler.step(UnitsWanted(0), overdue, 6.0)
    assert reconciler.step(UnitsWanted(0), overdue, 6.0 + DRAIN_DEADLINE_SECONDS).stop == ("x", "y")
    ended = [unit("x", UnitState.FAILED, 0.0), unit("y", UnitState.FAILED, 0.0)]
    assert reconciler.step(UnitsWanted(3), ended, 7.0 + DRAIN_DEADLINE_SECONDS).start == 3


def test_concurrent_starts_never_exceed_the_machines_capacity() -> None:
    reconciler = ReconcilerDriver(max_starting=2)
    assert reconciler.step(UnitsWanted(4), [], 0.0).start == 2
    reconciler.started(0.0)
    new = [unit("a", UnitState.PENDING, 0.0), unit("b", UnitState.PENDING, 0.0)]
    waiting = reconciler.step(UnitsWanted(4), new, 0.1)
    assert (waiting.start, waiting.again) == (0, STARTING_SECONDS)
    units = [unit("a"), unit("b", UnitState.PENDING, 0.5)]
    assert reconciler.step(UnitsWanted(4), units, 0.5).start == 1
