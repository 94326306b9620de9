"""The next component to start, and the effects of a component's exit: the pure rules."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from scaler.cluster.supervision import (
    KILL_AFTER_SECONDS,
    MAX_RESTARTS,
    RESTART_SECONDS,
    STOP_SECONDS,
    TIER_SECONDS,
    CloseListening,
    Command,
    ComponentProcess,
    KillProcess,
    ReportLine,
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
CLOUD = ComponentProcess("cloud", ("workers",), tier=2, independent=True)
PIDS = {"cloud": 1006, "storage": 1001, "scheduler": 1002, "workers": 1003, "more workers": 1004, "page": 1005}


class World:
    """Plays the processes: every start works, and the test decides when they are ready or exit."""

    def __init__(self, components: Sequence[ComponentProcess] = ALL, *, together: bool = False) -> None:
        self.supervision = Supervision(components, together=together, start_seconds=30.0)
        self.now = 100.0
        self.log: list[Command] = []
        self.step()

    def step(self) -> list[Command]:
        commands = self.supervision.step(self.now)
        self.log += commands
        started = [command.component.name for command in commands if isinstance(command, StartProcess)]
        for name in started:
            self.supervision.started(name, PIDS[name], self.now)
        return commands + (self.step() if started else [])

    def ready(self, *names: str) -> list[Command]:
        for name in names:
            self.supervision.became_ready(name, {"address": f"ipc://{name}"})
        return self.step()

    def ends(self, name: str, returncode: int = 0) -> list[Command]:
        self.supervision.ended(name, returncode, f"exit code {returncode}", self.now, ("it said this",))
        return self.step()

    def stop(self, *, hurry: bool = False) -> list[Command]:
        self.supervision.shut_down(self.now, hurry=hurry)
        return self.step()

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


def test_tier_starts_once_all_lower_tiers_are_ready() -> None:
    world = World()
    assert world.started == ["storage"]
    world.ready("storage")
    assert world.started == ["storage", "scheduler"]
    world.ready("scheduler")
    assert world.started == ["storage", "scheduler", "workers", "more workers"]
    assert not world.supervision.ready
    world.ready("workers", "more workers")
    assert world.supervision.ready


@pytest.mark.parametrize("together", [True, False])
def test_optional_component_starts_last_and_delays_no_other(together: bool) -> None:
    world = World((PAGE, SCHEDULER, WORKERS), together=together)
    assert "page" not in world.started
    world.ready("scheduler")
    lines = world.ready("workers")
    assert world.started[-1] == "page"
    assert world.supervision.ready
    assert lines[1] == ReportLine("all components are ready; press Ctrl-C to stop")
    world.wait(1000)
    (line,) = world.ready("page")
    assert line == ReportLine("page is ready: address ipc://page (pid 1005)")
    assert orders(world.stop()) == [TerminateProcess("workers"), TerminateProcess("page")]


@pytest.mark.parametrize(("is_ready", "returncode"), [(True, 0), (False, 0), (False, 1), (False, 2)])
def test_failing_optional_component_ends_no_other(is_ready: bool, returncode: int) -> None:
    world = World((SCHEDULER, PAGE))
    world.ready("scheduler")
    if is_ready:
        world.ready("page")
    close, line = world.ends("page", returncode)
    text = f"page has ended; the other components continue: exit code {returncode}\n    it said this"
    assert line == ReportLine(text, is_failure=True)
    assert close == CloseListening(PAGE), "a browser is refused and does not wait"
    assert world.supervision.ready
    assert world.supervision.failure is None
    world.stop()
    world.ends("scheduler")
    assert (world.supervision.finished, world.supervision.exit_code) == (True, 0)


def test_early_failure_of_an_independent_component_is_retried_alone() -> None:
    world = World((SCHEDULER, CLOUD, WORKERS))
    world.ready("scheduler")
    world.ready("workers")
    assert not world.supervision.ready, "the first try of the cloud is under way"
    lines = [line.text for line in world.ends("cloud", 1) if isinstance(line, ReportLine)]
    assert lines == [
        "cloud ended unexpectedly and is being restarted: exit_code=1 pid=1006 restarts=1 delay_seconds=0",
        "all components but cloud are ready; Ctrl-C stops them",
    ]
    assert world.supervision.ready
    for _ in range(3 * MAX_RESTARTS):
        world.wait(RESTART_SECONDS / 4)
        world.ends("cloud", 1)
    world.wait(RESTART_SECONDS)
    assert world.started.count("cloud") == 2 + 3 * MAX_RESTARTS
    world.ready("cloud")
    assert world.supervision.failure is None
    assert set(world.supervision.addresses) == {"scheduler", "workers", "cloud"}


def test_stop_proceeds_tier_by_tier() -> None:
    world = World().all_ready()
    assert orders(world.stop()) == [TerminateProcess("more workers"), TerminateProcess("workers")]
    assert orders(world.ends("workers")) == []
    assert orders(world.ends("more workers")) == [TerminateProcess("scheduler")]
    assert orders(world.ends("scheduler")) == [TerminateProcess("storage")]
    assert not world.supervision.finished
    world.ends("storage")
    assert world.supervision.finished
    assert world.supervision.failure is None


def test_slow_tier_does_not_delay_others_and_is_killed_within_the_limit() -> None:
    world = World().all_ready()
    world.stop()
    world.ends("workers")
    assert world.supervision.next_deadline() == world.now + TIER_SECONDS
    assert orders(world.wait(TIER_SECONDS)) == [TerminateProcess("scheduler"), TerminateProcess("storage")]
    world.ends("scheduler")
    world.ends("storage")
    assert orders(world.wait(KILL_AFTER_SECONDS - TIER_SECONDS)) == [KillProcess("more workers")]
    assert KILL_AFTER_SECONDS < STOP_SECONDS
    world.ends("more workers", -9)
    assert world.supervision.finished
    assert world.supervision.failure == "more workers (pid 1004) did not stop in time and is being killed"


def test_component_stopping_a_service_gets_its_grace_and_its_dependencies() -> None:
    manager = ComponentProcess("workers", ("workers",), tier=2, grace_seconds=20.0)
    world = World((SCHEDULER, manager))
    world.ready("scheduler")
    world.ready("workers")
    world.stop()
    assert orders(world.wait(KILL_AFTER_SECONDS)) == []
    assert world.supervision.next_deadline() == world.now + 20.0 + TIER_SECONDS - KILL_AFTER_SECONDS
    assert orders(world.ends("workers")) == [TerminateProcess("scheduler")]
    assert orders(world.wait(20.0)) == [KillProcess("scheduler")]


def test_hurried_stop_kills_everything_without_counting_as_a_failure() -> None:
    world = World().all_ready()
    world.stop()
    killed = orders(world.stop(hurry=True))
    assert killed == [KillProcess(name) for name in ("more workers", "workers", "scheduler", "storage")]
    for component in ALL:
        world.ends(component.name, -9)
    assert world.supervision.finished
    assert world.supervision.failure is None


def test_stop_during_startup_starts_nothing_and_stops_the_rest() -> None:
    world = World()
    world.ready("storage")
    assert orders(world.stop()) == [TerminateProcess("scheduler")]
    assert orders(world.ends("scheduler", -15)) == [TerminateProcess("storage")], (
        "SIGTERM before it could take it: no failure"
    )
    world.ends("storage")
    assert world.started == ["storage", "scheduler"]
    assert world.supervision.finished
    assert world.supervision.failure is None


@pytest.mark.parametrize(
    ("component", "returncode", "why"),
    [
        *((each, -9, "signal=SIGKILL") for each in (*ALL, PAGE)),
        (STORAGE, 3, "exit_code=3"),
        (STORAGE, -77, "signal=77"),
    ],
)
def test_failed_component_restarts_alone_with_a_one_line_reason(
    component: ComponentProcess, returncode: int, why: str
) -> None:
    world = World((*ALL, PAGE)).all_ready()
    world.ready("page")
    name = component.name
    pid = PIDS[name]
    text = f"{name} ended unexpectedly and is being restarted: {why} pid={pid} restarts=1 delay_seconds=0"
    assert world.ends(name, returncode) == [ReportLine(text, is_failure=True), StartProcess(component)]
    assert world.ready(name) == [ReportLine(f"{name} is ready: address ipc://{name} (pid {pid})")]
    assert world.supervision.restarts == {name: f"1 restart, {why}"}
    assert world.supervision.failure is None


def test_each_failure_within_a_minute_lengthens_the_restart_delay() -> None:
    world = World().all_ready()
    began = world.now
    waits = []
    for _ in range(5):
        world.ends("scheduler", 1)
        due = world.supervision.next_deadline() or world.now
        is_started = world.started[-1] == "scheduler"
        waits.append(0.0 if is_started else due - world.now)
        if not is_started:
            assert orders(world.wait(waits[-1] - 0.01)) == []
            assert orders(world.wait(0.01)) == [StartProcess(SCHEDULER)]
        world.ready("scheduler")
        world.ends("workers", 1)  # counts separately
        world.wait(2.0)
        world.ready("workers")
    assert waits == [0.0, 0.5, 1.0, 2.0, 2.0]
    world.now = began + RESTART_SECONDS + 20
    assert orders(world.ends("scheduler", 1)) == [StartProcess(SCHEDULER)]


def fail_often(world: World, name: str, *, is_ready: bool) -> list[Command]:
    """Let every process of a component fail as soon as it runs; return the commands after the last failure."""
    for _ in range(MAX_RESTARTS):
        world.ends(name, 3)
        world.wait(2.0)
        if is_ready:
            world.ready(name)
    return world.ends(name, 3)


@pytest.mark.parametrize("is_ready", [True, False])
def test_component_that_keeps_failing_is_named_and_stops_the_rest(is_ready: bool) -> None:
    world = World().all_ready()
    commands = fail_often(world, "scheduler", is_ready=is_ready)
    text = (
        "scheduler (pid 1002) ended unexpectedly: exit code 3; "
        f"it was restarted {MAX_RESTARTS} times within {RESTART_SECONDS:g} s"
    )
    assert commands == [
        ReportLine(text, is_failure=True),
        TerminateProcess("more workers"),
        TerminateProcess("workers"),
    ]
    failure = f"{text}; its last lines:\n    it said this"
    assert world.supervision.failure == failure
    world.ends("workers", 1)
    world.ends("more workers", 1)
    world.ends("storage")
    assert (world.supervision.finished, world.supervision.exit_code) == (True, 1)
    assert world.supervision.failure == failure, "the first failure is the cause"


def test_orderly_exit_stops_the_rest_without_a_failure() -> None:
    world = World().all_ready()
    assert orders(world.ends("scheduler", 0)) == [TerminateProcess("more workers"), TerminateProcess("workers")]
    for name in ("workers", "more workers", "storage"):
        world.ends(name)
    assert world.supervision.finished
    assert world.supervision.failure is None


def test_names_a_component_that_is_not_ready_in_time() -> None:
    world = World()
    assert world.supervision.next_deadline() == world.now + 30.0
    assert orders(world.wait(30.0)) == [TerminateProcess("storage")]
    assert world.supervision.failure == "storage (pid 1001) was not ready after 30 s"


def test_names_a_component_that_the_system_cannot_start() -> None:
    supervision = Supervision([STORAGE])
    supervision.step(0.0)
    supervision.ended("storage", None, "No such file or directory", 0.0)
    supervision.step(0.0)
    assert supervision.finished
    assert supervision.failure == "storage could not be started: No such file or directory"
