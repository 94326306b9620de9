"""For any events, the reconciler converges, respects its limits, and causes no storms."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from scaler.protocol.messages import UnitState
from scaler.testing.backends import MemoryBackend
from scaler.worker_manager.backend import BackendError, Capacity
from scaler.worker_manager.reconcile import DRAIN_DEADLINE_SECONDS, Decision, UnitsWanted
from tests.unit.worker_manager.reconciler_driver import ReconcilerDriver

LONG_SECONDS = 1000.0
"""Longer than any backoff delay with its jitter."""


class World:
    """A reconciler with an in-memory backend and a clock."""

    def __init__(self, max_units: int | None) -> None:
        self.max_units = max_units
        self.backend = MemoryBackend(Capacity.of_units(1, max_units))
        self.reconciler = ReconcilerDriver(max_units)
        self.drained: frozenset[str] = frozenset()
        self.wanted = 0
        self.started: list[int] = []
        self.stopped: list[str] = []
        self.stopped_at_work: list[str] = []

    @property
    def target(self) -> int:
        return self.wanted if self.max_units is None else min(self.wanted, self.max_units)

    def look(self, jitter: float = 0.5) -> Decision:
        now = self.backend.now
        units = self.backend.list()
        actions = self.reconciler.step(UnitsWanted(self.wanted, self.drained), units, now, chance=jitter)
        at_work = {unit.unit_id for unit in units if unit.state is UnitState.RUNNING} - self.drained
        self.stopped_at_work += at_work & set(actions.stop)
        if actions.stop:
            self.backend.stop(actions.stop)
            self.stopped += actions.stop
        if actions.start:
            try:
                self.backend.start(actions.start)
            except BackendError as error:
                self.reconciler.failed(str(error), now, chance=jitter)
            else:
                self.reconciler.started(now)
                self.started.append(actions.start)
        return actions


class ReconcilerMachine(RuleBasedStateMachine):
    @initialize(max_units=st.one_of(st.none(), st.integers(1, 12)))
    def begin(self, max_units: int | None) -> None:
        self.world = World(max_units)

    @rule(units=st.integers(0, 20))
    def want(self, units: int) -> None:
        self.world.wanted = units

    @rule(seconds=st.floats(0, 15), jitter=st.floats(0, 0.99))
    def pass_time_and_look(self, seconds: float, jitter: float) -> None:
        self.world.backend.now += seconds
        self.world.look(jitter)

    @precondition(lambda self: self.world.backend.alive())
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        self.world.backend.lose(data.draw(st.sampled_from(self.world.backend.alive())), "killed by signal 9 (SIGKILL)")

    @precondition(lambda self: self.world.backend.alive())
    @rule(data=st.data())
    def drain(self, data: st.DataObject) -> None:
        self.world.drained |= {data.draw(st.sampled_from(self.world.backend.alive()))}

    @rule(text=st.sampled_from(["throttled", "no quota"]))
    def let_a_start_fail(self, text: str) -> None:
        self.world.backend.start_errors.append(text)

    @rule(hold=st.booleans())
    def hold_units_pending(self, hold: bool) -> None:
        self.world.backend.hold = hold

    @invariant()
    def no_more_than_the_limit(self) -> None:
        if self.world.max_units is not None:
            assert self.world.backend.most_alive <= self.world.max_units

    @invariant()
    def nothing_at_work_stops_before_the_drain_deadline(self) -> None:
        assert self.world.backend.now < DRAIN_DEADLINE_SECONDS
        assert self.world.stopped_at_work == []

    def teardown(self) -> None:
        world = self.world
        world.backend.start_errors.clear()
        world.backend.hold = False
        for _ in range(40):
            world.backend.now += LONG_SECONDS
            world.look()
        assert len(world.backend.alive()) == world.target
        assert not world.drained & set(world.backend.alive())
        quiet = (len(world.started), len(world.stopped))
        for _ in range(5):
            world.backend.now += LONG_SECONDS
            assert not world.look().reason
        assert (len(world.started), len(world.stopped)) == quiet


TestReconciler = ReconcilerMachine.TestCase
TestReconciler.settings = settings(stateful_step_count=30)


@given(wanted=st.lists(st.integers(0, 20), min_size=2, max_size=40))
def test_target_that_flips_on_every_heartbeat_stops_no_unit_early(wanted: list[int]) -> None:
    world = World(None)
    for units in wanted:
        world.wanted = units
        world.backend.now += 2.0
        world.look()
        world.look()
    assert world.stopped == []
    assert len(world.backend.alive()) == max(wanted)


@given(beats=st.integers(20, 200))
def test_units_dying_at_startup_are_restarted_with_backoff(beats: int) -> None:
    world = World(None)
    world.wanted = 50
    for _ in range(beats):
        world.backend.now += 2.0
        world.look()
        for unit_id in world.backend.alive():
            world.backend.lose(unit_id, "exit code 1")
    assert world.started[:2] == [50, 50]
    assert set(world.started[2:]) <= {1}
    assert len(world.started) <= 10 + beats * 2 / 100
