"""The emulated ECS through boto3, with real processes, scripted faults, and moto to compare shapes."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from moto import mock_aws

from scaler.testing.aws import AwsEmulator
from tests.engines.aws_shapes import client_of, missing_keys
from tests.waiting import until

DEADLINE_SECONDS = 10.0
SLEEPER = ["python", "-c", "import signal; print('ready', flush=True); signal.pause()"]
NETWORK = {"awsvpcConfiguration": {"subnets": ["subnet-1"]}}


@pytest.fixture
def ecs(aws: AwsEmulator) -> Iterator[Any]:
    client = client_of("ecs", endpoint_url=aws.endpoint_url)
    client.create_cluster(clusterName="c", capacityProviders=["FARGATE", "FARGATE_SPOT"])
    register(client)
    yield client
    client.close()


def register(client: Any) -> Any:
    container = {"name": "main", "image": "python", "command": SLEEPER, "stopTimeout": 2, "memory": 2048}
    return client.register_task_definition(
        family="f", requiresCompatibilities=["FARGATE"], networkMode="awsvpc", cpu="1024", memory="2048",
        containerDefinitions=[container],
    )  # fmt: skip


def run(ecs: Any, count: int = 1, command: list[str] | None = None, **more: Any) -> Any:
    """Run tasks and return the answer."""
    if command is not None:
        more["overrides"] = {"containerOverrides": [{"name": "main", "command": command}]}
    if "capacityProviderStrategy" not in more:
        more["launchType"] = "FARGATE"
    return ecs.run_task(cluster="c", taskDefinition="f", count=count, networkConfiguration=NETWORK, **more)


def run_arns(ecs: Any, count: int = 1, command: list[str] | None = None, **more: Any) -> list[str]:
    return [task["taskArn"] for task in run(ecs, count, command, **more)["tasks"]]


def await_output(aws: AwsEmulator, arn: str, text: str) -> str:
    aws.ecs.wait_until(lambda: arn not in aws.ecs.alive() or arn in aws.ecs.running(), DEADLINE_SECONDS)
    until(lambda: text in aws.ecs.output(arn))
    return aws.ecs.output(arn)


def await_end(aws: AwsEmulator, *arns: str) -> None:
    aws.ecs.wait_until(lambda: not set(arns) & set(aws.ecs.alive()), DEADLINE_SECONDS)


def described(ecs: Any, arn: str) -> Any:
    [task] = ecs.describe_tasks(cluster="c", tasks=[arn])["tasks"]
    return task


def exit_of(task: Any) -> tuple[str, int]:
    return task["stopCode"], task["containers"][0]["exitCode"]


def test_tasks_run_their_commands_and_report_how_they_ended(aws: AwsEmulator, ecs: Any) -> None:
    stopped, killed = run_arns(ecs, 2)
    [failed] = run_arns(ecs, 1, ["sh", "-c", "python -c 'import scaler; raise SystemExit(3)'"])
    [missing] = run_arns(ecs, 1, ["no-such-program"])
    for arn in (stopped, killed):
        await_output(aws, arn, "ready")
    ecs.stop_task(cluster="c", task=stopped, reason="scaled down")
    aws.ecs.kill_container(killed, reason="OutOfMemoryError")
    await_end(aws, stopped, killed, failed, missing)
    assert exit_of(described(ecs, stopped)) == ("UserInitiated", 143)
    assert exit_of(described(ecs, killed)) == ("EssentialContainerExited", 137)
    assert described(ecs, killed)["containers"][0]["reason"] == "OutOfMemoryError"
    assert exit_of(described(ecs, failed)) == ("EssentialContainerExited", 3)
    assert described(ecs, missing)["stopCode"] == "TaskFailedToStart"
    assert "CannotStartContainerError" in described(ecs, missing)["stoppedReason"]
    assert aws.containers.running() == []


def test_killed_emulator_leaves_nothing_behind() -> None:
    program = (
        "import signal\n"
        "from scaler.testing.aws import AwsEmulator\n"
        "aws = AwsEmulator()\n"
        "print(aws.containers.start(['sleep', '60'], {}, 'orphan').pid, flush=True)\n"
        "signal.pause()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as emulator:
        assert emulator.stdout is not None
        orphan = os.pidfd_open(int(emulator.stdout.readline()))
        emulator.kill()
    await_death(orphan)


def await_death(pidfd: int) -> None:
    """Wait for the exit of a process that is not our child."""
    try:
        assert select.select([pidfd], [], [], DEADLINE_SECONDS)[0] == [pidfd]
    finally:
        os.close(pidfd)


MOTO_IS_WRONG = {
    # a running task has no stop reason, and its container no exit code
    ".RunTask.tasks[0].stoppedReason",
    ".RunTask.tasks[0].containers[0].exitCode",
    ".DescribeTasks.tasks[0].stoppedReason",
    ".DescribeTasks.tasks[0].containers[0].exitCode",
    ".StopTask.task.containers[0].exitCode",
    # operations with `include`, and operations that set tags, show tags
    ".PutClusterCapacityProviders.cluster.tags[0]",
    ".DeleteCluster.cluster.tags[0]",
    ".StopTask.task.tags[0]",
}


def walk(ecs: Any, subnet: str) -> dict[str, Any]:
    """Call every operation once with success, and return the answers."""
    answers = {"CreateCluster": ecs.create_cluster(clusterName="walk", tags=[{"key": "a", "value": "b"}])}
    cluster = answers["CreateCluster"]["cluster"]["clusterArn"]
    answers["DescribeClusters"] = ecs.describe_clusters(clusters=["walk", "none"], include=["TAGS", "SETTINGS"])
    answers["PutClusterCapacityProviders"] = ecs.put_cluster_capacity_providers(
        cluster="walk", capacityProviders=["FARGATE"], defaultCapacityProviderStrategy=[]
    )
    answers["RegisterTaskDefinition"] = register(ecs)
    answers["DescribeTaskDefinition"] = ecs.describe_task_definition(taskDefinition="f", include=["TAGS"])
    answers["ListTaskDefinitions"] = ecs.list_task_definitions(familyPrefix="f")
    answers["RunTask"] = ecs.run_task(
        cluster="walk", taskDefinition="f", launchType="FARGATE", startedBy="me", tags=[{"key": "a", "value": "b"}],
        networkConfiguration={"awsvpcConfiguration": {"subnets": [subnet], "securityGroups": []}},
        overrides={"containerOverrides": [{"name": "main", "command": ["sleep", "60"]}]},
    )  # fmt: skip
    task = answers["RunTask"]["tasks"][0]["taskArn"]
    answers["ListTasks"] = ecs.list_tasks(cluster="walk", startedBy="me")
    answers["DescribeTasks"] = ecs.describe_tasks(cluster="walk", tasks=[task], include=["TAGS"])
    answers["StopTask"] = ecs.stop_task(cluster="walk", task=task, reason="enough")
    answers["TagResource"] = ecs.tag_resource(resourceArn=cluster, tags=[{"key": "c", "value": "d"}])
    answers["ListTagsForResource"] = ecs.list_tags_for_resource(resourceArn=cluster)
    answers["DeregisterTaskDefinition"] = ecs.deregister_task_definition(taskDefinition="f:1")
    return answers


def test_answers_have_the_same_shape_as_moto_answers() -> None:
    with AwsEmulator() as aws:  # not in the environment, where moto's clients would find it
        ours_client = client_of("ecs", endpoint_url=aws.endpoint_url)
        ours = walk(ours_client, "subnet-1")
        await_end(aws, ours["RunTask"]["tasks"][0]["taskArn"])
        ours["DeleteCluster"] = ours_client.delete_cluster(cluster="walk")
        ours_client.close()
    with mock_aws():
        ec2 = client_of("ec2")
        theirs_client = client_of("ecs")
        theirs = walk(theirs_client, ec2.describe_subnets()["Subnets"][0]["SubnetId"])
        theirs["DeleteCluster"] = theirs_client.delete_cluster(cluster="walk")
    assert set(missing_keys(theirs, ours, "")) == MOTO_IS_WRONG
