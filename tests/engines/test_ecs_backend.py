"""The ECS backend against the emulator: its requests, and its reactions to faults."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from scaler.protocol.messages import UnitState
from scaler.testing.aws import AwsEmulator, Error, LoseReply, Partial
from scaler.worker_manager.aws.calls import AwsClient
from scaler.worker_manager.aws.prices import fargate_price
from scaler.worker_manager.aws_raw_ecs import AwsRawEcsConfig
from scaler.worker_manager.aws_raw_ecs import backend as definition
from scaler.worker_manager.aws_raw_ecs.backend import EcsBackend, started_by
from scaler.worker_manager.backend import BackendError, Unit
from tests.waiting import until

DEADLINE_SECONDS = 10.0
BOTH_ATTEMPTS = 2
"""A call is made twice before its failure counts."""
NEVER_SECONDS = 3600.0
ENDED = (UnitState.FAILED, UnitState.STOPPED)


@pytest.fixture
def aws(aws: AwsEmulator, monkeypatch: pytest.MonkeyPatch) -> AwsEmulator:
    monkeypatch.setattr(definition, "WORKER_COMMAND", ("sleep", "60"))
    return aws


class Rig:
    """Backends on one emulator, and a client."""

    def __init__(self, aws: AwsEmulator) -> None:
        self.aws = aws
        self.backends: list[EcsBackend] = []
        self.ecs = AwsClient(self.config(), "ecs")
        self.ecs.call("CreateCluster", clusterName="scaler-cluster", capacityProviders=["FARGATE", "FARGATE_SPOT"])

    def config(self, **settings: Any) -> AwsRawEcsConfig:
        return AwsRawEcsConfig(
            **{
                "scheduler_address": "tcp://127.0.0.1:1",
                "worker_manager_id": "m",
                "aws_endpoint_url": self.aws.endpoint_url,
                "ecs_subnets": ("subnet-1",),
                "ecs_task_image": "emulated",
                "ecs_task_cpu": 2,
                "ecs_task_memory": 8,
                "max_task_concurrency": -1,
                "heartbeat_interval_seconds": 0.01,
                **settings,
            }
        )

    def backend(self, client: AwsClient | None = None, **settings: Any) -> EcsBackend:
        made = EcsBackend(self.config(**settings), client)
        self.backends.append(made)
        return made

    def tasks(self) -> list[dict[str, Any]]:
        arns = self.aws.ecs.alive()
        found = self.ecs.call("DescribeTasks", cluster="scaler-cluster", tasks=arns, include=["TAGS"]) if arns else {}
        return list(found.get("tasks", []))

    def alive(self) -> set[str]:
        return {arn.rpartition("/")[2] for arn in self.aws.ecs.alive()}


@pytest.fixture
def rig(aws: AwsEmulator) -> Iterator[Rig]:
    made = Rig(aws)
    yield made
    for backend in made.backends:
        backend.close()
    made.ecs.close()


def until_listed(backend: EcsBackend, fits: Callable[[dict[str, Unit]], bool]) -> dict[str, Unit]:
    """List units until they match, because ECS does not announce changes."""

    def listed() -> dict[str, Unit] | None:
        units = {unit.unit_id: unit for unit in backend.list()}
        return units if fits(units) else None

    return dict(until(listed, DEADLINE_SECONDS))


def states(units: dict[str, Unit]) -> list[UnitState]:
    return [unit.state for unit in units.values()]


def are(*wanted: UnitState) -> Callable[[dict[str, Unit]], bool]:
    return lambda units: states(units) == list(wanted)


# -- capacity and starts


@pytest.mark.parametrize(("concurrency", "units", "slots"), [(1, 1, 2), (4, 2, 4), (5, 3, 6), (-1, None, -1)])
def test_units_are_the_tasks_needed_for_the_wanted_workers(
    rig: Rig, concurrency: int, units: int | None, slots: int
) -> None:
    capacity = rig.backend(max_task_concurrency=concurrency).capacity
    assert (capacity.unit_slots, capacity.max_units, capacity.max_slots) == (2, units, slots)
    assert (capacity.unit_price, capacity.unit_minimum_seconds) == (fargate_price("us-east-1", 2, 8), 60.0)


def test_tasks_start_in_batches_with_marks_of_their_manager(rig: Rig) -> None:
    rig.aws.ecs.times.provisioning = NEVER_SECONDS
    started = rig.backend(ecs_capacity_provider="FARGATE_SPOT").start(25)
    assert len(set(started)) == 25
    assert rig.alive() == set(started)
    assert rig.aws.faults.calls()["RunTask"] == 3
    for task in rig.tasks():
        assert task["startedBy"] == started_by(rig.config())
        assert {tag["key"]: tag["value"] for tag in task["tags"]} == {
            "scaler:manager": "m",
            "scaler:cluster": "tcp://127.0.0.1:1",
        }
        assert task["capacityProviderName"] == "FARGATE_SPOT"
        [variable] = task["overrides"]["containerOverrides"][0]["environment"]
        assert variable["name"] == "SCALER_WORKER_CONFIG"


def test_task_definition_is_registered_if_missing_or_different(rig: Rig) -> None:
    rig.aws.ecs.times.provisioning = NEVER_SECONDS
    first = rig.backend(ecs_task_definition="theirs")
    first.start(1)
    first.start(1)
    rig.backend(ecs_task_definition="theirs").start(1)
    assert rig.aws.faults.calls()["RegisterTaskDefinition"] == 1
    rig.backend(ecs_task_definition="theirs", ecs_task_memory=16).start(1)
    assert [task["taskDefinitionArn"].rpartition(":")[2] for task in rig.tasks()] == ["1", "1", "1", "2"]
    found = rig.ecs.call("DescribeTaskDefinition", taskDefinition="theirs")["taskDefinition"]
    assert (found["cpu"], found["memory"]) == ("2048", "16384")


def test_missing_cluster_error_says_how_to_create_one(rig: Rig) -> None:
    backend = rig.backend(ecs_cluster="other")
    with pytest.raises(BackendError, match=r"ClusterNotFoundException.*run `scaler_worker_manager aws_raw_ecs setup`"):
        backend.list()
    with pytest.raises(BackendError, match="run `scaler_worker_manager aws_raw_ecs setup` to create the cluster"):
        backend.start(1)
    rig.ecs.call("CreateCluster", clusterName="bare")
    with pytest.raises(BackendError, match="setup` to attach ecs_capacity_provider to the cluster"):
        rig.backend(ecs_cluster="bare").start(1)


# -- starts that fail


def test_partial_start_raises_with_the_reason_for_the_rest(rig: Rig) -> None:
    backend = rig.backend()
    rig.aws.faults.add("RunTask", Partial(4, "Capacity is unavailable at this time"))
    with pytest.raises(BackendError, match="ECS did not start all tasks: Capacity is unavailable at this time") as one:
        backend.start(12)
    assert set(one.value.started) == rig.alive()
    assert len(one.value.started) == 4
    assert len(backend.start(2)) == 2


# -- answers that are lost


def test_lost_answer_starts_nothing_twice(rig: Rig) -> None:
    backend = rig.backend()
    rig.aws.faults.add("RunTask", LoseReply(), times=BOTH_ATTEMPTS)
    with pytest.raises(BackendError, match="no answer at") as caught:
        backend.start(3)
    assert caught.value.started == ()
    lost = rig.alive()
    assert len(lost) == 3, "ECS has done it"
    assert set(backend.start(3)) == lost
    assert rig.alive() == lost
    assert len(backend.start(1)) == 1, "and it is asked for the same no more"
    assert len(rig.alive()) == 4


# -- listing


def test_listing_makes_one_call_per_hundred_tasks_and_heartbeat(rig: Rig) -> None:
    rig.aws.ecs.times.provisioning = NEVER_SECONDS
    rig.aws.ecs.rates.launches_at_once = rig.aws.ecs.rates.run_calls_at_once = 1000
    rig.aws.ecs.rates.launches_per_second = rig.aws.ecs.rates.run_calls_per_second = 1000
    backend = rig.backend(heartbeat_interval_seconds=100.0)
    for _ in range(21):
        rig.ecs.call(
            "RunTask",
            cluster="scaler-cluster",
            taskDefinition=register(rig),
            count=10,
            startedBy=started_by(rig.config()),
            capacityProviderStrategy=[{"capacityProvider": "FARGATE", "weight": 1}],
            networkConfiguration={"awsvpcConfiguration": {"subnets": ["subnet-1"]}},
        )
    for _ in range(5):
        assert len(backend.list()) == 210
    calls = rig.aws.faults.calls()
    assert (calls["ListTasks"], calls["DescribeTasks"]) == (4, 3), "three pages, and the stopped tasks once"


def register(rig: Rig) -> str:
    made = rig.ecs.call(
        "RegisterTaskDefinition",
        family="theirs",
        requiresCompatibilities=["FARGATE"],
        networkMode="awsvpc",
        cpu="1024",
        memory="2048",
        containerDefinitions=[{"name": "worker", "image": "python", "command": ["sleep", "60"]}],
    )
    return str(made["taskDefinition"]["taskDefinitionArn"])


def test_later_manager_finds_only_tasks_of_its_name(rig: Rig) -> None:
    first = rig.backend()
    mine = first.start(3)
    rig.backend(worker_manager_id="other").start(2)
    rig.backend(worker_scheduler_address="tcp://10.0.0.1:1").start(2)
    until_listed(first, are(*[UnitState.RUNNING] * 3))
    first.stop(mine[:1])
    until_listed(first, lambda units: units[mine[0]].state is UnitState.STOPPED)
    later = rig.backend()
    units = until_listed(later, are(*[UnitState.RUNNING] * 2))
    assert set(units) == set(mine[1:]), "a new backend ignores units that ended before"
    later.stop(mine)
    until_listed(later, are(UnitState.STOPPED, UnitState.STOPPED))
    assert len(rig.alive()) == 4


def test_ends_are_shown_with_their_reasons(rig: Rig) -> None:
    backend = rig.backend(ecs_capacity_provider="FARGATE_SPOT")
    rig.aws.ecs.fail_starts(1, "CannotPullContainerError: pull image manifest: not found")
    [never] = backend.start(1)
    until_listed(backend, are(UnitState.FAILED))
    killed, taken, by_hand = backend.start(3)
    until_listed(backend, lambda units: states(units).count(UnitState.RUNNING) == 3)
    rig.aws.ecs.kill_container(killed, reason="OutOfMemoryError: container killed due to memory usage")
    rig.aws.ecs.spot_notice(taken)
    rig.ecs.call("StopTask", cluster="scaler-cluster", task=by_hand, reason="too expensive")
    units = until_listed(backend, lambda units: all(state in ENDED for state in states(units)))
    assert {unit.state for unit in units.values()} == {UnitState.FAILED}
    assert units[never].reason == "TaskFailedToStart: CannotPullContainerError: pull image manifest: not found"
    assert units[killed].reason == (
        "EssentialContainerExited: Essential container in task exited; exit code 137 (SIGKILL); "
        "OutOfMemoryError: container killed due to memory usage"
    )
    assert units[taken].reason == "SpotInterruption: Your Spot Task was interrupted; exit code 143 (SIGTERM)"
    assert units[by_hand].reason == "UserInitiated: too expensive; exit code 143 (SIGTERM)"


# -- stops


def test_unstoppable_tasks_are_named_with_the_command_to_stop_them(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    backend = rig.backend()
    first, second = backend.start(2)
    until_listed(backend, are(UnitState.RUNNING, UnitState.RUNNING))
    rig.aws.faults.add("StopTask", Error("AccessDeniedException", "not you"))
    with pytest.raises(BackendError, match=r"^not allowed to call ECS StopTask \(AccessDeniedException\): not you$"):
        backend.stop([first, second])
    [left] = rig.alive() & {first, second} - {
        unit.unit_id for unit in backend.list() if unit.state is not UnitState.RUNNING
    }
    with caplog.at_level(logging.ERROR):
        backend.close()
    assert f"these tasks may remain: {left}; stop each with `aws ecs stop-task --region us-east-1" in caplog.text


# -- messages at the start


def test_warns_about_workers_that_could_not_reach_the_scheduler(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    made: dict[str, Any] = {"worker_manager_id": "m", "ecs_subnets": ("subnet-1",), "ecs_task_image": "emulated"}
    for address in ("tcp://127.0.0.1:8516", "tcp://localhost:8516", "ipc:///tmp/scheduler"):
        EcsBackend(AwsRawEcsConfig(scheduler_address=address, **made)).close()
        assert f"workers on ECS cannot reach the scheduler at {address}: set worker_scheduler_address" in caplog.text
    caplog.clear()
    EcsBackend(
        AwsRawEcsConfig(
            scheduler_address="tcp://127.0.0.1:8516", worker_scheduler_address="tcp://10.0.0.1:8516", **made
        )
    ).close()
    assert "cannot reach" not in caplog.text
