"""What a worker's ECS task is made of, and what its description says about the unit."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from scaler.config.worker import WorkerConfig
from scaler.errors import UsageError
from scaler.protocol.messages import UnitState
from scaler.worker_manager.aws import containers
from scaler.worker_manager.aws.containers import MAX_OVERRIDES_CHARACTERS
from scaler.worker_manager.aws_raw_ecs import AwsRawEcsConfig
from scaler.worker_manager.aws_raw_ecs.backend import age_seconds, reason_of, state_of, unit_id_of
from scaler.worker_manager.aws_raw_ecs.definition import (
    overrides,
    registered,
    run_request,
    start_command,
    started_by,
    wanted_definition,
)
from scaler.worker_manager.polled import STOP_REASON


@pytest.fixture(autouse=True)
def versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containers, "__version__", "1.2")
    monkeypatch.setattr(containers, "version", lambda _: "3.1")


DEFINITION = {"taskDefinitionArn": "arn:definition", "containerDefinitions": [{"name": "worker"}]}


def config(**settings: Any) -> AwsRawEcsConfig:
    return AwsRawEcsConfig(
        **{
            "scheduler_address": "tcp://127.0.0.1:8516",
            "worker_manager_id": "burst",
            "ecs_subnets": ("subnet-1", "subnet-2"),
            "ecs_python_version": "3.12",
            **settings,
        }
    )


# -- the start command


def installs(requirements: str, **settings: Any) -> str:
    command = start_command(config(ecs_python_requirements=requirements, **settings))
    assert command[:2] == ["sh", "-c"]
    text, _, rest = command[2].partition(" && ")
    assert rest == "exec python -m scaler.worker"
    flags = "pip install --no-cache-dir --disable-pip-version-check --quiet "
    assert text.startswith(flags)
    return text.removeprefix(flags)


def test_the_default_image_gets_the_managers_versions_first() -> None:
    assert installs("") == "scaler==1.2 cloudpickle==3.1"
    assert installs("numpy pandas>=2") == "scaler==1.2 cloudpickle==3.1 numpy 'pandas>=2'"


def test_the_default_image_gets_what_the_event_loop_needs() -> None:
    assert installs("", event_loop="uvloop") == "'scaler[uvloop]==1.2' cloudpickle==3.1"


@pytest.mark.parametrize(
    "requirement",
    [
        "Scaler",
        "scaler[all]>=1",
        "'scaler @ git+https://host.example/them/scaler.git@v1'",
        "git+https://host.example/them/scaler.git@v1",
        "https://host.example/scaler-1.2-py3-none-any.whl",
        "./wheels/scaler-1.2-py3-none-any.whl",
        "scaler-1.2.tar.gz",
    ],
)
def test_what_the_requirements_name_is_not_pinned(requirement: str) -> None:
    assert "scaler==1.2" not in installs(requirement)
    assert installs(requirement).startswith("cloudpickle==3.1 ")


def test_requirements_reach_pip_as_they_are_and_never_the_shell() -> None:
    assert installs("'x; python_version<\"3.13\"' $(reboot)").endswith("'x; python_version<\"3.13\"' '$(reboot)'")
    with pytest.raises(UsageError, match=r"ecs_python_requirements = .*No closing quotation; requirements are"):
        start_command(config(ecs_python_requirements="'open"))


def test_an_image_of_its_own_needs_nothing_installed_but_what_is_asked_for() -> None:
    own = {"ecs_task_image": "registry.example/worker:1"}
    assert start_command(config(**own)) == ["python", "-m", "scaler.worker"]
    assert installs("numpy", **own) == "numpy"


# -- the task definition

EXTRAS = {"executionRoleArn": "arn:e", "taskRoleArn": "arn:t", "logConfiguration": {"logDriver": "awslogs"}}


def test_a_definition_is_for_fargate_and_has_the_size_that_is_asked_for() -> None:
    wanted = wanted_definition(config(ecs_task_cpu=2, ecs_task_memory=8), None, EXTRAS)
    assert {name: wanted[name] for name in ("cpu", "memory", "networkMode", "requiresCompatibilities")} == {
        "cpu": "2048",
        "memory": "8192",
        "networkMode": "awsvpc",
        "requiresCompatibilities": ["FARGATE"],
    }
    [container] = wanted["containerDefinitions"]
    assert (container["name"], container["image"], container["stopTimeout"]) == ("worker", "python:3.12-slim", 120)
    assert container["linuxParameters"] == {"initProcessEnabled": True}
    assert (wanted["executionRoleArn"], wanted["taskRoleArn"]) == ("arn:e", "arn:t")
    assert container["logConfiguration"] == {"logDriver": "awslogs"}


def described(wanted: dict[str, Any]) -> dict[str, Any]:
    """Return a definition as ECS shows it, with what it adds by itself."""
    [container] = wanted["containerDefinitions"]
    shown = {**container, "cpu": 0, "portMappings": [], "environment": [], "mountPoints": [], "volumesFrom": []}
    more = {"revision": 3, "status": "ACTIVE", "compatibilities": ["EC2", "FARGATE"], "registeredBy": "arn:me"}
    return {**wanted, "containerDefinitions": [shown], "volumes": [], "placementConstraints": [], **more}


def test_a_definition_that_is_as_it_should_be_stays() -> None:
    current = described(wanted_definition(config(), None, EXTRAS))
    assert wanted_definition(config(), current, {}) == registered(current)
    assert wanted_definition(config(), current, EXTRAS) == registered(current)


@pytest.mark.parametrize(
    "settings",
    [
        {"ecs_task_cpu": 8, "ecs_task_memory": 32},
        {"ecs_task_memory": 16},
        {"ecs_task_image": "registry.example/worker:1"},
        {"ecs_python_version": "3.13"},
        {"ecs_python_requirements": "numpy"},
    ],
)
def test_a_definition_differs_when_a_setting_or_a_version_does(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    current = described(wanted_definition(config(), None, EXTRAS))
    assert wanted_definition(config(**settings), current, {}) != registered(current)
    monkeypatch.setattr(containers, "__version__", "1.3")
    assert wanted_definition(config(), current, {}) != registered(current)


def test_what_others_have_put_into_a_definition_stays() -> None:
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


def test_of_several_containers_the_one_called_worker_is_the_workers() -> None:
    current = described(wanted_definition(config(), None, {}))
    current["containerDefinitions"].insert(0, {"name": "sidecar", "image": "other"})
    wanted = wanted_definition(config(ecs_task_image="mine"), current, {})
    assert [container["image"] for container in wanted["containerDefinitions"]] == ["other", "mine"]
    current["containerDefinitions"][1]["name"] = "main"
    with pytest.raises(UsageError, match="'scaler-task-definition' has the containers sidecar, main: call the one"):
        wanted_definition(config(), current, {})


# -- what a start adds


def test_a_worker_is_told_everything_by_one_document() -> None:
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


def test_a_managers_process_has_the_same_settings() -> None:
    assert AwsRawEcsConfig.from_json(config().to_json()) == config()


def test_what_ecs_would_refuse_as_too_long_is_refused_before() -> None:
    def preload(size: int) -> AwsRawEcsConfig:
        return config(preload="x" * size)

    most = 1 + MAX_OVERRIDES_CHARACTERS - len(json.dumps(overrides("worker", preload(1))))
    assert len(json.dumps(overrides("worker", preload(most)))) == MAX_OVERRIDES_CHARACTERS
    with pytest.raises(UsageError, match="takes 8193 characters, and ECS allows 8192: shorten per_worker_capabilities"):
        overrides("worker", preload(most + 1))


def test_a_request_names_the_network_the_provider_and_whose_it_is() -> None:
    request = run_request(
        config(
            ecs_security_groups=("sg-1",),
            ecs_assign_public_ip=True,
            ecs_capacity_provider="FARGATE_SPOT",
            worker_manager_id="spot fleet*",
        ),
        DEFINITION,
    )
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


def test_tasks_are_marked_by_manager_and_scheduler() -> None:
    marks = {
        started_by(config(worker_manager_id=name, worker_scheduler_address=address))
        for name in ("a", "b")
        for address in ("tcp://10.0.0.1:1", "tcp://10.0.0.2:1")
    }
    assert len(marks) == 4
    assert all(mark.startswith("scaler/") and len(mark) <= 36 for mark in marks)
    assert started_by(config()) == started_by(config(ecs_task_cpu=8, ecs_task_memory=32)), "a restart may change sizes"


# -- what a description says


def task(last: str = "RUNNING", desired: str = "RUNNING", **more: Any) -> dict[str, Any]:
    return {"taskArn": "arn:aws:ecs:us-east-1:1:task/c/abc", "lastStatus": last, "desiredStatus": desired, **more}


def stopped(code: str, why: str, exit_code: int | None = None, **container: Any) -> dict[str, Any]:
    details = container if exit_code is None else {"exitCode": exit_code, **container}
    return task("STOPPED", "STOPPED", stopCode=code, stoppedReason=why, containers=[{"name": "worker", **details}])


@pytest.mark.parametrize(
    ("last", "desired", "state"),
    [
        ("PROVISIONING", "RUNNING", UnitState.PENDING),
        ("PENDING", "RUNNING", UnitState.PENDING),
        ("ACTIVATING", "RUNNING", UnitState.PENDING),
        ("RUNNING", "RUNNING", UnitState.RUNNING),
        ("RUNNING", "STOPPED", UnitState.STOPPING),
        ("PENDING", "STOPPED", UnitState.STOPPING),
        ("DEACTIVATING", "STOPPED", UnitState.STOPPING),
        ("STOPPING", "STOPPED", UnitState.STOPPING),
        ("DEPROVISIONING", "STOPPED", UnitState.STOPPING),
        ("SOMETHING_NEW", "RUNNING", UnitState.PENDING),
    ],
)
def test_states_of_a_task_are_states_of_a_unit(last: str, desired: str, state: UnitState) -> None:
    assert state_of(task(last, desired)) is state
    assert unit_id_of(task()["taskArn"]) == "abc"


@pytest.mark.parametrize(
    ("shown", "state", "reason"),
    [
        (
            stopped("UserInitiated", STOP_REASON, 0),
            UnitState.STOPPED,
            "UserInitiated: Stopped by scaler; exit code 0",
        ),
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
            stopped(
                "EssentialContainerExited",
                "Essential container in task exited",
                137,
                reason="OutOfMemoryError",
            ),
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
def test_the_end_of_a_task_says_whose_doing_it_was(shown: dict[str, Any], state: UnitState, reason: str) -> None:
    assert (state_of(shown), reason_of(shown)) == (state, reason)


def test_a_tasks_age_ends_with_it_and_is_never_negative() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    born = now - timedelta(seconds=90)
    assert age_seconds(task(createdAt=born), now) == 90
    assert age_seconds(task(createdAt=born, stoppedAt=born + timedelta(seconds=5)), now) == 5
    assert age_seconds(task(createdAt=now + timedelta(seconds=9)), now) == 0, "clocks differ"
    assert age_seconds(task(), now) == 0
