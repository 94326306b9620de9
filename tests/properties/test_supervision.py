"""The invariants of supervision hold for any behavior of the processes, whenever a stop is requested."""

from __future__ import annotations

import itertools

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from scaler.cluster.supervision import (
    MAX_RESTARTS,
    RESTART_SECONDS,
    STOP_SECONDS,
    CloseListening,
    ComponentProcess,
    KillProcess,
    ReportLine,
    StartProcess,
    Supervision,
    TerminateProcess,
)

START_SECONDS = 30.0
COMPONENTS = [
    ComponentProcess("storage", ("storage",), tier=0),
    ComponentProcess("scheduler", ("scheduler",), tier=1),
    ComponentProcess("workers", ("workers",), tier=2, grace_seconds=5.0),
    ComponentProcess("page", ("page",), tier=2, optional=True),
    ComponentProcess("cloud", ("workers",), tier=2, independent=True),
]
NAMES = [component.name for component in COMPONENTS]


class Processes(RuleBasedStateMachine):
    """Plays the shell and the processes, which may do anything except survive a kill."""

    def __init__(self) -> None:
        super().__init__()
        self.supervision = Supervision(COMPONENTS, start_seconds=START_SECONDS)
        self.now = 0.0
        self.pids = itertools.count(1)
        self.alive: dict[str, int] = {}
        self.killed: set[str] = set()
        self.starts: dict[str, list[float]] = {name: [] for name in NAMES}
        self.is_given_up = False
        self.stop_began_at: float | None = None
        self.step()

    def step(self) -> None:
        while True:
            was_stopping = self.stop_began_at is not None
            has_started = False
            for command in self.supervision.step(self.now):
                match command:
                    case StartProcess(component):
                        assert component.name not in self.alive, "the component has no second process"
                        assert not was_stopping, "a stop starts nothing"
                        assert not (component.optional and self.is_given_up), "the component's socket is closed"
                        self.starts[component.name].append(self.now)
                        self.alive[component.name] = next(self.pids)
                        self.supervision.started(component.name, self.alive[component.name], self.now)
                        has_started = True
                    case TerminateProcess(name):
                        assert name in self.alive
                        assert self.stop_began_at is not None
                    case KillProcess(name):
                        assert name in self.alive
                        self.killed.add(name)
                    case CloseListening(component):
                        assert component.optional
                        self.is_given_up = True
                    case ReportLine(text):
                        is_last = text.endswith("stopping the rest") or self.supervision.failure
                        self.stop_began_at = self.now if is_last and self.stop_began_at is None else self.stop_began_at
            if not has_started:
                return

    @initialize(is_ready=st.booleans())
    def begins(self, is_ready: bool) -> None:
        for name in NAMES if is_ready else ():
            self.become_ready(name)

    def become_ready(self, name: str) -> None:
        self.supervision.became_ready(name, {})
        self.step()

    def end(self, name: str, returncode: int | None) -> None:
        del self.alive[name]
        self.killed.discard(name)
        self.supervision.ended(name, returncode, "an end", self.now)
        self.step()

    def pick(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.alive)))

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def becomes_ready(self, data: st.DataObject) -> None:
        self.become_ready(self.pick(data))

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), returncode=st.sampled_from([0, 1, 2, -9, -15, None]))
    def ends(self, data: st.DataObject, returncode: int | None) -> None:
        self.end(self.pick(data), returncode)

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), count=st.integers(1, MAX_RESTARTS + 1))
    def fails_again_and_again(self, data: st.DataObject, count: int) -> None:
        name = self.pick(data)
        for _ in range(count):
            if name in self.alive:
                self.end(name, -9)
            self.pass_time(3.0)

    @rule(seconds=st.sampled_from([0.1, 0.5, 2.0, 7.0, 30.0, 61.0]))
    def time_passes(self, seconds: float) -> None:
        self.pass_time(seconds)

    def pass_time(self, seconds: float) -> None:
        until = self.now + seconds
        while (due := self.supervision.next_deadline()) is not None and due <= until:
            assert due >= self.now
            self.now = due
            self.step()
        self.now = until

    @rule(hurry=st.booleans())
    def is_asked_to_stop(self, hurry: bool) -> None:
        self.stop_began_at = self.now if self.stop_began_at is None else self.stop_began_at
        self.supervision.shut_down(self.now, hurry=hurry)
        self.step()
        assert not hurry or self.killed == set(self.alive)

    @invariant()
    def every_process_is_killed_in_time(self) -> None:
        longest = max(component.grace_seconds for component in COMPONENTS)
        if self.stop_began_at is not None and self.now >= self.stop_began_at + STOP_SECONDS + longest:
            assert self.killed == set(self.alive)

    @invariant()
    def a_stop_without_processes_is_finished(self) -> None:
        assert self.supervision.finished == (self.stop_began_at is not None and not self.alive)

    @invariant()
    def no_component_is_started_too_often(self) -> None:
        for times in self.starts.values():
            assert len([at for at in times if at > self.now - RESTART_SECONDS]) <= MAX_RESTARTS + 1

    @invariant()
    def without_a_stop_everything_that_is_needed_runs_or_will(self) -> None:
        if self.stop_began_at is None and self.supervision.ready:
            missing = {component.name for component in COMPONENTS if not component.optional} - set(self.alive)
            assert not missing or self.supervision.next_deadline() is not None


Processes.TestCase.settings = settings(stateful_step_count=40)
TestProcesses = Processes.TestCase
