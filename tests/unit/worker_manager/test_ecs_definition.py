"""The contents of a worker's ECS task, and the meaning of its description for the unit."""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Any

import pytest

from scaler._version import __version__
from scaler.config.worker import WorkerConfig
from scaler.errors import UsageError
from scaler.protocol.messages import UnitState
from scaler.worker_manager.aws_raw_ecs import AwsRawEcsConfig
from scaler.worker_manager.aws_raw_ecs.backend import (
    overrides,
    reason_of,
    registered,
    run_request,
    source_of,
    state_of,
    unit_id_of,
    wanted_definition,
)
from scaler.worker_manager.polled import STOP_REASON

DEFINITION = {"taskDefinitionArn": "arn:definition", "containerDefinitions": [{"name": "worker"}]}


def config(**settings: Any) -> AwsRawEcsConfig:
    return AwsRawEcsConfig(
        **{
            "scheduler_address": "tcp://127.0.0.1:8516",
            "worker_manager_id": "burst",
            "ecs_subnets": ("subnet-1", "subnet-2"),
            "ecs_task_image": "registry.example/worker:1",
            **settings,
        }
    )


# -- the image


def test_missing_image_and_bucket_are_reported_before_anything_starts() -> None:
    with pytest.raises(UsageError) as refused:
        source_of(config(ecs_task_image=None))
    text = str(refused.value)
    assert text.startswith("s3_bucket and ecs_task_image are missing: set s3_bucket to a bucket")
    python, cloudpickle = f"{sys.version_info.major}.{sys.version_info.minor}", version("cloudpickle")
    assert f"--build-arg PYTHON_VERSION={python} --build-arg REQUIREMENTS=cloudpickle=={cloudpickle} " in text
    assert f"docker push REGISTRY/scaler-worker:{__version__}" in text
    with pytest.raises(UsageError, match="ecs_task_image are missing"):
        wanted_definition(config(ecs_task_image=None), None, {})
    source_of(config())


# -- the task definition

EXTRAS = {"executionRoleArn": "arn:e", "taskRoleArn": "arn:t", "logConfiguration": {"logDriver": "awslogs"}}


def test_definition_targets_fargate_with_the_requested_size() -> None:
    wanted = wanted_definition(config(ecs_task_cpu=2, ecs_task_memory=8), None, EXTRAS)
    assert {name: wanted[name] for name in ("cpu", "memory", "networkMode", "requiresCompatibilities")} == {
        "cpu": "2048",
        "memory": "8192",
        "networkMode": "awsvpc",
        "requiresCompatibilities": ["FARGATE"],
    }
    [container] = wanted["containerDefinitions"]
    assert (container["name"], container["image"], container["stopTimeout"]) == (
        "worker",
        "registry.example/worker:1",
        120,
    )
    assert container["command"] == ["python", "-P", "-m", "scaler.worker"], "the container installs nothing"
    assert container["linuxParameters"] == {"initProcessEnabled": True}
    assert (wanted["executionRoleArn"], wanted["taskRoleArn"]) == ("arn:e", "arn:t")
    assert container["logConfiguration"] == {"logDriver": "awslogs"}


def described(wanted: dict[str, Any]) -> dict[str, Any]:
    """Return a definition as ECS shows it, with fields that ECS adds."""
    [container] = wanted["containerDefinitions"]
    shown = {**container, "cpu": 0, "portMappings": [], "environment": [], "mountPoints": [], "volumesFrom": []}
    more = {"revision": 3, "status": "ACTIVE", "compatibilities": ["EC2", "FARGATE"], "registeredBy": "arn:me"}
    return {**wanted, "containerDefinitions": [shown], "volumes": [], "placementConstraints": [], **more}


def test_up_to_date_definition_is_kept() -> None:
    current = described(wanted_definition(config(), None, EXTRAS))
    assert wanted_definition(config(), current, {}) == registered(current)
    assert wanted_definition(config(), current, EXTRAS) == registered(current)


@pytest.mark.parametrize(
    "settings",
    [
        {"ecs_task_cpu": 8, "ecs_task_memory": 32},
        {"ecs_task_memory": 16},
        {"ecs_task_image": "registry.example/worker:2"},
    ],
)
def test_definition_changes_with_its_settings(settings: dict[str, Any]) -> None:
    current = described(wanted_definition(config(), None, EXTRAS))
    assert wanted_definition(config(**settings), current, {}) != registered(current)


def test_foreign_fields_of_a_definition_are_kept() -> None:
    current = described(wanted_definition(config(), None, EXTRAS))
    current["ephemeralStorage"] = {"sizeInGiB": 100}
    current["containerDefinitions"][0]["environment"] = [{"name": "MODE", "value": "night"}]
    current["containerDefinitions"][0]["name"] = "theirs"
    wanted = wanted_definition(config(ecs_task_memory=16), current, {})
    assert wanted["ephemeralStorage"] == {"sizeInGiB": 100}
    assert wanted["executionRoleArn"] == "arn:e"
    assert wanted["containerDefinitions"][0]["environment"] == [{"name": "MODE", "value": "night"}]
    request = run_request(config(), {**DEFINITION, **wanted})
    assert request["overrides"]["containerOverrides"][0]["name"] == "theirs"


# -- additions by a start


def test_worker_is_configured_by_one_document() -> None:
    settings = config(
        worker_scheduler_address="tcp://10.0.0.1:8516",
        ecs_task_cpu=8,
        ecs_task_memory=32,
        per_worker_capabilities={"linux": None, "gpu": 1.0},
        logging_paths=("/home/me/manager.log",),
        logging_config_file="/home/me/logging.toml",
    )
    [variable] = overrides("worker", settings)["containerOverrides"][0]["environment"]
    assert variable["name"] == "SCALER_WORKER_CONFIG"
    told = WorkerConfig.from_json(variable["value"])
    assert (told.scheduler_address, told.slots, told.unit_id, told.unit_id_from) == (
        "tcp://10.0.0.1:8516",
        8,
        "",
        "ecs",
    )
    assert told.per_worker_capabilities == {"linux": None, "gpu": 1.0}
    assert told.stop_grace_seconds == 110.0, "less than the two minutes that ECS gives"
    assert (told.logging_paths, told.logging_config_file) == (("/dev/stdout",), None), "files of another machine"


def test_request_names_network_provider_and_owner() -> None:
    request = run_request(
        config(
            ecs_cluster="theirs",
            ecs_security_groups=("sg-1",),
            ecs_assign_public_ip=True,
            ecs_capacity_provider="FARGATE_SPOT",
            worker_manager_id="spot fleet*",
        ),
        DEFINITION,
    )
    assert (request["cluster"], request["taskDefinition"]) == ("theirs", "arn:definition")
    assert request["networkConfiguration"] == {
        "awsvpcConfiguration": {
            "subnets": ["subnet-1", "subnet-2"],
            "securityGroups": ["sg-1"],
            "assignPublicIp": "ENABLED",
        }
    }
    assert request["capacityProviderStrategy"] == [{"capacityProvider": "FARGATE_SPOT", "weight": 1}]
    assert request["tags"] == [
        {"key": "scaler:manager", "value": "spot fleet_"},
        {"key": "scaler:cluster", "value": "tcp://127.0.0.1:8516"},
    ]
    bare = run_request(config(), DEFINITION)
    assert bare["networkConfiguration"]["awsvpcConfiguration"]["assignPublicIp"] == "DISABLED"
    assert "securityGroups" not in bare["networkConfiguration"]["awsvpcConfiguration"], "an empty list is refused"


# -- descriptions


def task(last: str = "RUNNING", desired: str = "RUNNING", **more: Any) -> dict[str, Any]:
    return {"taskArn": "arn:aws:ecs:us-east-1:1:task/c/abc", "lastStatus": last, "desiredStatus": desired, **more}


def stopped(code: str, why: str, exit_code: int | None = None, **container: Any) -> dict[str, Any]:
    details = container if exit_code is None else {"exitCode": exit_code, **container}
    return task("STOPPED", "STOPPED", stopCode=code, stoppedReason=why, containers=[{"name": "worker", **details}])


@pytest.mark.parametrize(
    ("last", "desired", "state"),
    [
        ("PROVISIONING", "RUNNING", UnitState.PENDING),
        ("RUNNING", "RUNNING", UnitState.RUNNING),
        ("RUNNING", "STOPPED", UnitState.STOPPING),
        ("DEPROVISIONING", "STOPPED", UnitState.STOPPING),
        ("SOMETHING_NEW", "RUNNING", UnitState.PENDING),
    ],
)
def test_task_states_map_to_unit_states(last: str, desired: str, state: UnitState) -> None:
    assert state_of(task(last, desired)) is state
    assert unit_id_of(task()["taskArn"]) == "abc"


@pytest.mark.parametrize(
    ("shown", "state", "reason"),
    [
        (stopped("UserInitiated", STOP_REASON, 0), UnitState.STOPPED, "UserInitiated: Stopped by scaler; exit code 0"),
        (
            stopped("UserInitiated", "Task stopped by user", 143),
            UnitState.FAILED,
            "UserInitiated: Task stopped by user; exit code 143 (SIGTERM)",
        ),
        (
            stopped("EssentialContainerExited", "Essential container in task exited", 0),
            UnitState.STOPPED,
            "EssentialContainerExited: Essential container in task exited; exit code 0",
        ),
        (
            stopped("EssentialContainerExited", "Essential container in task exited", 137, reason="OutOfMemoryError"),
            UnitState.FAILED,
            "EssentialContainerExited: Essential container in task exited; exit code 137 (SIGKILL); OutOfMemoryError",
        ),
        (
            stopped(
                "TaskFailedToStart",
                "CannotPullContainerError: pull image manifest: not found",
                reason="CannotPullContainerError: pull image manifest: not found",
            ),
            UnitState.FAILED,
            "TaskFailedToStart: CannotPullContainerError: pull image manifest: not found",
        ),
        (
            stopped("SpotInterruption", "Your Spot Task was interrupted.", 0),
            UnitState.FAILED,
            "SpotInterruption: Your Spot Task was interrupted; exit code 0",
        ),
        (task("STOPPED", "STOPPED"), UnitState.FAILED, ""),
    ],
)
def test_task_end_names_the_responsible_party(shown: dict[str, Any], state: UnitState, reason: str) -> None:
    assert (state_of(shown), reason_of(shown)) == (state, reason)
