"""What is started next, and what happens when a component ends: the pure rules."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from scaler.cluster.supervision import (
    KILL_AFTER_SECONDS,
    STOP_SECONDS,
    TIER_SECONDS,
    Command,
    ComponentProcess,
    ComponentReady,
    Input,
    KillProcess,
    ProcessEnded,
    ProcessStarted,
    ReportLine,
    ShutdownRequested,
    StartProcess,
    Supervision,
    TerminateProcess,
)

STORAGE = ComponentProcess("storage", ("storage",), tier=0)
SCHEDULER = ComponentProcess("scheduler", ("scheduler",), tier=1)
WORKERS = ComponentProcess("workers", ("workers",), tier=2)
MORE_WORKERS = ComponentProcess("more workers", ("workers",), tier=2)
ALL = (STORAGE, SCHEDULER, WORKERS, MORE_WORKERS)
PAGE = ComponentProcess("page", ("page",), tier=2, optional=True)
PIDS = {"storage": 1001, "scheduler": 1002, "workers": 1003, "more workers": 1004, "page": 1005}


class World:
    """Plays the processes: every start works, a readiness and an end come when the test says so."""

    def __init__(self, components: Sequence[ComponentProcess] = ALL, *, together: bool = False) -> None:
        self.supervision = Supervision(components, together=together, start_seconds=30.0)
        self.now = 100.0
        self.log: list[Command] = []
        self.step()

    def step(self, *inputs: Input) -> list[Command]:
        commands = self.supervision.step(inputs, self.now)
        self.log += commands
        started = [
            ProcessStarted(c.component.name, PIDS[c.component.name]) for c in commands if isinstance(c, StartProcess)
        ]
        return commands + (self.step(*started) if started else [])

    def ready(self, *names: str) -> list[Command]:
        return self.step(*(ComponentReady(name, {"address": f"ipc://{name}"}) for name in names))

    def ends(self, name: str, returncode: int = 0) -> list[Command]:
        return self.step(ProcessEnded(name, returncode, f"exit code {returncode}", ("it said this",)))

    def wait(self, seconds: float) -> list[Command]:
        self.now += seconds
        return self.step()

    def all_ready(self) -> World:
        for component in ALL:
            self.ready(component.name)
        assert self.supervision.ready
        return self

    @property
    def started(self) -> list[str]:
        return [command.component.name for command in self.log if isinstance(command, StartProcess)]


def orders(commands: Sequence[Command]) -> list[Command]:
    return [command for command in commands if not isinstance(command, ReportLine)]


def test_a_tier_is_started_when_all_below_it_are_ready() -> None:
    world = World()
    assert world.started == ["storage"]
    world.ready("storage")
    assert world.started == ["storage", "scheduler"]
    world.ready("scheduler")
    assert world.started == ["storage", "scheduler", "workers", "more workers"]
    assert not world.supervision.ready
    world.ready("workers", "more workers")
    assert world.supervision.ready


def test_all_tiers_are_started_at_once_when_they_need_no_order() -> None:
    assert World(together=True).started == ["storage", "scheduler", "workers", "more workers"]


@pytest.mark.parametrize("together", [True, False])
def test_an_optional_component_is_started_last_and_waited_for_by_no_other(together: bool) -> None:
    world = World((PAGE, SCHEDULER, WORKERS), together=together)
    assert "page" not in world.started
    world.ready("scheduler")
    lines = world.ready("workers")
    assert world.started[-1] == "page"
    assert world.supervision.ready
    assert lines[1] == ReportLine("all components are ready; Ctrl-C stops them")
    world.wait(1000)
    (line,) = world.ready("page")
    assert line == ReportLine("page is ready: address ipc://page (pid 1005)")
    assert orders(world.step(ShutdownRequested())) == [TerminateProcess("workers"), TerminateProcess("page")]


@pytest.mark.parametrize("is_ready", [True, False])
@pytest.mark.parametrize("returncode", [0, 1, 2])
def test_an_optional_component_that_ends_is_reported_and_ends_no_other(is_ready: bool, returncode: int) -> None:
    world = World((SCHEDULER, PAGE))
    world.ready("scheduler")
    if is_ready:
        world.ready("page")
    (line,) = world.ends("page", returncode)
    text = f"page has ended, the rest goes on: exit code {returncode}\n    it said this"
    assert line == ReportLine(text, is_failure=True)
    assert world.supervision.ready
    assert world.supervision.failure is None
    world.step(ShutdownRequested())
    world.ends("scheduler")
    assert (world.supervision.finished, world.supervision.exit_code) == (True, 0)


def test_each_readiness_is_one_line_with_address_and_pid() -> None:
    (line, *_) = World().ready("storage")
    assert line == ReportLine("storage is ready: address ipc://storage (pid 1001)")


def test_a_stop_goes_down_tier_by_tier() -> None:
    world = World().all_ready()
    assert orders(world.step(ShutdownRequested())) == [TerminateProcess("more workers"), TerminateProcess("workers")]
    assert orders(world.ends("workers")) == []
    assert orders(world.ends("more workers")) == [TerminateProcess("scheduler")]
    assert orders(world.ends("scheduler")) == [TerminateProcess("storage")]
    assert not world.supervision.finished
    world.ends("storage")
    assert world.supervision.finished
    assert world.supervision.failure is None


def test_asking_twice_to_stop_changes_nothing() -> None:
    world = World().all_ready()
    world.step(ShutdownRequested())
    assert orders(world.step(ShutdownRequested())) == []


def test_a_tier_that_lingers_does_not_hold_up_the_others_and_is_killed_within_the_limit() -> None:
    world = World().all_ready()
    world.step(ShutdownRequested())
    world.ends("workers")
    assert world.supervision.next_deadline() == world.now + TIER_SECONDS
    assert orders(world.wait(TIER_SECONDS)) == [TerminateProcess("scheduler"), TerminateProcess("storage")]
    world.ends("scheduler")
    world.ends("storage")
    assert orders(world.wait(KILL_AFTER_SECONDS - TIER_SECONDS)) == [KillProcess("more workers")]
    assert KILL_AFTER_SECONDS < STOP_SECONDS
    world.ends("more workers", -9)
    assert world.supervision.finished
    assert world.supervision.failure == "more workers (pid 1004) did not end in time and is killed"


def test_one_that_has_to_ask_a_service_gets_its_grace_period_and_what_it_needs_stays_meanwhile() -> None:
    manager = ComponentProcess("workers", ("workers",), tier=2, grace_seconds=20.0)
    world = World((SCHEDULER, manager))
    world.ready("scheduler")
    world.ready("workers")
    world.step(ShutdownRequested())
    assert orders(world.wait(KILL_AFTER_SECONDS)) == []
    assert world.supervision.next_deadline() == world.now + 20.0 + TIER_SECONDS - KILL_AFTER_SECONDS
    assert orders(world.ends("workers")) == [TerminateProcess("scheduler")]
    assert orders(world.wait(20.0)) == [KillProcess("scheduler")]


def test_a_hurried_stop_kills_everything_at_once_and_is_no_failure() -> None:
    world = World().all_ready()
    world.step(ShutdownRequested())
    killed = orders(world.step(ShutdownRequested(hurry=True)))
    assert killed == [KillProcess(name) for name in ("more workers", "workers", "scheduler", "storage")]
    for component in ALL:
        world.ends(component.name, -9)
    assert world.supervision.finished
    assert world.supervision.failure is None


def test_a_stop_during_the_start_starts_nothing_more_and_stops_what_there_is() -> None:
    world = World()
    world.ready("storage")
    assert orders(world.step(ShutdownRequested())) == [TerminateProcess("scheduler")]
    assert orders(world.ends("scheduler", -15)) == [TerminateProcess("storage")], (
        "SIGTERM before it could take it: no failure"
    )
    world.ends("storage")
    assert world.started == ["storage", "scheduler"]
    assert world.supervision.finished
    assert world.supervision.failure is None


def test_a_stop_between_the_order_to_start_and_the_start_stops_the_newborn() -> None:
    supervision = Supervision([STORAGE])
    assert supervision.step([], 0.0) == [StartProcess(STORAGE)]
    supervision.step([ShutdownRequested()], 0.0)
    assert not supervision.finished
    assert supervision.step([ProcessStarted("storage", 7)], 0.0) == [TerminateProcess("storage")]


def test_a_component_that_ends_unexpectedly_is_named_with_its_last_words_and_the_others_are_stopped() -> None:
    world = World().all_ready()
    commands = world.ends("scheduler", 3)
    text = "scheduler (pid 1002) ended unexpectedly: exit code 3"
    assert ReportLine(text, is_failure=True) in commands, "the lines were passed on when they came"
    assert orders(commands) == [TerminateProcess("more workers"), TerminateProcess("workers")]
    failure = f"{text}; its last lines:\n    it said this"
    assert world.supervision.failure == failure
    world.ends("workers", 1)
    world.ends("more workers", 1)
    world.ends("storage")
    assert world.supervision.finished
    assert world.supervision.failure == failure, "the first failure is the cause"


def test_a_component_that_ends_before_it_is_ready_is_a_failure_whatever_its_exit_code() -> None:
    world = World()
    world.ends("storage", 0)
    assert world.supervision.finished
    assert world.supervision.failure is not None
    assert "ended before it was ready" in world.supervision.failure


def test_an_orderly_end_stops_the_rest_and_is_no_failure() -> None:
    world = World().all_ready()
    assert orders(world.ends("scheduler", 0)) == [TerminateProcess("more workers"), TerminateProcess("workers")]
    for name in ("workers", "more workers", "storage"):
        world.ends(name)
    assert world.supervision.finished
    assert world.supervision.failure is None


def test_a_component_that_fails_while_it_is_stopped_is_a_failure() -> None:
    world = World().all_ready()
    world.step(ShutdownRequested())
    world.ends("workers", 1)
    assert world.supervision.failure is not None
    assert "workers (pid 1003) failed while it was stopped: exit code 1" in world.supervision.failure


def test_a_component_that_is_not_ready_in_time_is_named() -> None:
    world = World()
    assert world.supervision.next_deadline() == world.now + 30.0
    assert orders(world.wait(30.0)) == [TerminateProcess("storage")]
    assert world.supervision.failure == "storage (pid 1001) was not ready after 30 s"


def test_a_component_that_the_system_cannot_start_is_named() -> None:
    supervision = Supervision([STORAGE])
    supervision.step([], 0.0)
    supervision.step([ProcessEnded("storage", None, "No such file or directory")], 0.0)
    assert supervision.finished
    assert supervision.failure == "storage could not be started: No such file or directory"


def test_a_readiness_that_comes_too_late_changes_nothing() -> None:
    world = World()
    world.step(ShutdownRequested())
    assert world.ready("storage") == []
    world.ends("storage")
    assert world.supervision.finished


def test_names_must_differ() -> None:
    with pytest.raises(ValueError, match="same name"):
        Supervision([STORAGE, STORAGE])
