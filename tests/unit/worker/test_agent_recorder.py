"""The agent's black box: recordings can be replayed, and reproduce the same fault."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scaler.ids import content_id
from scaler.net.connection import Received, Welcomed
from scaler.protocol.messages import Outcome, Recall, Relay, Run, RunGroup, Spec, Welcome
from scaler.recorder import Recorder
from scaler.testing import worker_invariants
from scaler.testing.replay import read, replay
from scaler.worker.agent.base import ExecutorBase
from scaler.worker.agent.calls import CallCompleted, CallsAccepted, CallsRefused, ServiceCalls
from scaler.worker.agent.core import AgentCore
from scaler.worker.agent.events import (
    AgentInput,
    Command,
    ProcessorReported,
    ResultsReceived,
    StopRequested,
    TasksReclaimed,
    TimeElapsed,
)
from scaler.worker.agent.events import ProcessorEvent as Event
from scaler.worker.agent.pool import ProcessorPool
from scaler.worker.agent.shell import make_recorder
from scaler.worker.executor import CallFailed, CallFinished, CallStarted, ExecutorDegraded
from scaler.worker.frames import Results, Snapshot
from tests.unit.worker.worker_fakes import CoreRig, worker_config

TASKS = [bytes([number]) * 16 for number in range(4)]
WELCOME = Welcomed(Welcome(False, 1, 60.0, 2.0, "tcp://storage:1"))
RUN = Received(
    b"schedulr",
    Run([(content_id(b"code"), b"code")], [RunGroup(Spec(content_id(b"code")), TASKS, [1] * 4, [b"x"] * 4)]),
)


class Recorded(CoreRig):
    """A rig whose steps are recorded like in the shell."""

    def __init__(self, executor: Any) -> None:
        self.executor = executor
        self.steps: list[list[Command]] = []
        super().__init__(worker_config(slots=2))
        self.recorder: Recorder = make_recorder(worker_config(slots=2), executor)
        step = self.core.step

        def recorded(inputs: Any, now: float) -> list[Command]:
            self.recorder.add(inputs, now)
            commands = step(inputs, now)
            self.steps.append(list(commands))
            return commands

        self.core.step = recorded  # type: ignore[method-assign]

    def perform(self, command: Command) -> AgentInput | None:
        return super().perform(command) if self.executor is ProcessorPool else None


def with_processors() -> Recorded:
    rig = Recorded(ProcessorPool)
    rig.step(WELCOME)
    rig.step(ProcessorReported(1, Event.READY), ProcessorReported(2, Event.READY))
    rig.step(RUN)
    for number in (1, 2):
        rig.hands[number].begin(rig.now)
    rig.hands[1].finish()
    rig.step(ResultsReceived(1, rig.hands[1].flush()))
    rig.step(Received(b"schedulr", Recall(TASKS[1:3], [1, 1], True)))
    rig.step(rig.hands[2].reclaim(2), ProcessorReported(2, Event.EXITED, "killed by signal 9 (SIGKILL)"))
    rig.step(ProcessorReported(3, Event.FAILED, "no such module"))
    rig.tick(0.5)
    rig.step(StopRequested("SIGTERM"))
    return rig


def with_calls() -> Recorded:
    rig = Recorded(ServiceCalls)
    rig.step(WELCOME)
    rig.step(RUN)
    rig.step(CallsAccepted(), CallStarted(TASKS[0], 1), ExecutorDegraded("no capacity"))
    rig.step(CallFinished(TASKS[0], 1, memoryview(b"result")))
    rig.step(CallCompleted(1, (TASKS[0], 1), Outcome.SUCCESS, b"value"))
    rig.step(CallFailed(TASKS[1], 1, Outcome.NOT_STARTED, "host lost"), CallsRefused([(TASKS[2], 1)], "busy"))
    rig.now += 1.0
    rig.step(TimeElapsed({}))
    return rig


@pytest.mark.parametrize("story", [with_processors, with_calls])
def test_replay_produces_the_same_commands(story: Callable[[], Recorded], tmp_path: Path) -> None:
    rig = story()
    path = tmp_path / "box"
    rig.recorder.write(path)
    with path.open() as file:
        head, recorded = read(file)
        assert head["complete"]
        steps = list(recorded)
    core = AgentCore(worker_config(slots=2), rig.executor, steps[0][0])
    assert [core.step(inputs, now) for now, inputs in steps] == rig.steps
    assert replay(path) == len(rig.steps)


def test_replay_reproduces_a_fault_and_names_its_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "box"
    with_processors().recorder.write(path)
    monkeypatch.setattr(worker_invariants, "check", _never_sound)
    with pytest.raises(AssertionError, match="unsound") as caught:
        replay(path)
    assert caught.value.__notes__[0].startswith("in step 0 of the record")


def _never_sound(_executor: ExecutorBase) -> None:
    raise AssertionError("unsound")


def test_recording_keeps_few_large_inputs_of_any_kind(tmp_path: Path) -> None:
    large = b"x" * 100_000
    with_inputs = RunGroup(Spec(content_id(b"code")), TASKS[:1], [1], [b"x"], [(large,)])
    left = Results(0, [], memoryview(large))
    for item in (
        Received(b"schedulr", Run([(content_id(large), large)], [])),
        Received(b"schedulr", Run([], [with_inputs])),
        Received(b"schedulr", Relay(b"nested..", large)),
        TasksReclaimed(1, [], [(left, True)], Snapshot(0, 0.0, 0)),
    ):
        recorder = make_recorder(worker_config(slots=2), ProcessorPool)
        for _ in range(100):
            recorder.add([item], 1.0)
        recorder.write(tmp_path / "box")
        with (tmp_path / "box").open() as file:
            _, steps = read(file)
            assert 1 < len(list(steps)) <= 11
        (tmp_path / "box").unlink()
