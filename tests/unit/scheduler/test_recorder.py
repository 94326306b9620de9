"""The black box: recordings can be replayed, and reproduce the same fault."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scaler import recorder
from scaler.config.servers import SchedulerConfig, scheduler_model
from scaler.net.connection import Resumed
from scaler.policy.load import load_policy
from scaler.protocol.messages import AcknowledgeResults, Outcome, Suspended, UnitState, UnitStatus
from scaler.protocol.messages import ManagerStatus as Status
from scaler.recorder import Recorder
from scaler.scheduler.core.commands import Command, Input, MonitoringChanged
from scaler.scheduler.core.core import SchedulerCore
from scaler.scheduler.core.rooms import Rooms
from scaler.scheduler.core.tasks import Tasks
from scaler.scheduler.rooms import make_scaling
from scaler.scheduler.server import recorded_bytes
from scaler.testing.replay import read, replay
from scaler.testing.simulation.stepping import built_in
from tests.unit.scheduler.driver import Cluster

SETTINGS: dict[str, Any] = {"max_number_of_tasks_waiting": 1000, "worker_timeout_seconds": 30.0}
CONFIG = scheduler_model(())(bind_address="tcp://127.0.0.1:0", **SETTINGS)


class Recorded(Cluster):
    """A cluster whose inputs are recorded like in the shell."""

    def __init__(self) -> None:
        super().__init__(load_policy(CONFIG.policy_engine_type, CONFIG.policy_content), **SETTINGS)
        self.recorder = Recorder(CONFIG, recorded_bytes)
        self.steps: list[list[Command]] = []

    def step_once(self, *inputs: Input) -> list[Command]:
        self.recorder.latest.append((self.now, inputs))
        commands = super().step_once(*inputs)
        self.steps.append(list(commands))
        return commands


def eventful() -> Recorded:
    """A scenario with every kind of input."""
    cluster = Recorded()
    client, manager = cluster.client(), cluster.manager("m")
    cluster.say(manager, Status(1.0, [UnitStatus("unit-a", UnitState.PENDING, 1, 0.5)]))
    worker = cluster.worker("a", {"gpu": 1.0}, manager_id="m")
    first, *rest = cluster.submit(client, 4)
    dependent = cluster.submit(client, references=[(first, rest[0])], needs=(("gpu", 1.0),), priority=1)
    cluster.nested("nested", worker)
    cluster.say(worker, Suspended([first], [1], [True]))
    cluster.say(worker, Suspended([first], [1], [False]))
    cluster.finish(worker, first)
    cluster.say(client, AcknowledgeResults(1))
    cluster.break_connection(worker)
    cluster.wait(1.0, alive=[client])
    cluster.step(Resumed(cluster.peer(worker)))
    cluster.cancel(client, rest[2])
    while cluster.on(worker):
        cluster.finish(worker, cluster.on(worker)[0])
    cluster.wait(1.0, alive=[client, worker, manager])
    cluster.step(MonitoringChanged(True))
    assert cluster.outcome(client, dependent[0]) is Outcome.SUCCESS
    cluster.leave(worker, "goodbye")
    return cluster


def test_replay_produces_the_same_commands(tmp_path: Path) -> None:
    cluster = eventful()
    path = tmp_path / "box"
    cluster.recorder.write(path)
    with path.open() as file:
        head, recorded = read(file)
        assert SchedulerConfig.from_json(head["config"]) == CONFIG
        assert head["complete"]
        steps = list(recorded)
    rooms = Rooms(built_in("resources", "data_plane", "durability", "sharing"))
    core = SchedulerCore(SchedulerConfig.from_json(head["config"]), steps[0][0], make_scaling(), rooms)
    assert [core.step(inputs, now) for now, inputs in steps] == cluster.steps


def test_replay_reproduces_a_fault_and_names_its_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = eventful()
    path = tmp_path / "box"
    cluster.recorder.write(path)
    monkeypatch.setattr(Tasks, "_drop_references", lambda *_: None)
    with pytest.raises(AssertionError, match="counts") as caught:
        replay(path)
    assert caught.value.__notes__[0].startswith("in step ")
    assert "Done(ids=" in caught.value.__notes__[0]


@pytest.mark.parametrize(("limit", "value"), [("MAX_RECORDED_STEPS", 10), ("MAX_RECORDED_BYTES", 21_000)])
def test_recording_is_bounded_and_reports_a_missing_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(recorder, limit, value)
    cluster = Recorded()
    client = cluster.client()
    for _ in range(50):
        cluster.submit(client, 3)
    path = tmp_path / "box"
    cluster.recorder.write(path)
    with path.open() as file:
        head, steps = read(file)
        assert not head["complete"]
        assert len(list(steps)) == 10
    assert replay(path) == 10


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "scaler.testing.replay", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)


def test_replay_command_reads_a_recording(tmp_path: Path) -> None:
    cluster = eventful()
    path = tmp_path / "box"
    cluster.recorder.write(path)
    done = run(str(path))
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"replayed {len(cluster.steps)} steps; every invariant held\n"


def test_replay_command_explains_errors_in_a_recording(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("[]\n")
    done = run(str(other))
    assert done.returncode == 2
    assert "not a black box header" in done.stderr
    assert "Traceback" not in done.stderr
