"""The emulated ECS as boto3 sees it, with real processes, faults by script, and moto beside it for the shapes."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from moto import mock_aws

from scaler.testing.aws import AwsEmulator, Slow
from scaler.testing.aws.containers import OUTPUT_BYTES
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


def test_tasks_run_their_commands_and_say_how_they_ended(aws: AwsEmulator, ecs: Any) -> None:
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


def test_a_task_that_ignores_sigterm_is_killed_after_its_stop_timeout(aws: AwsEmulator, ecs: Any) -> None:
    deaf = "import signal; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); signal.pause()"
    [arn] = run_arns(ecs, 1, ["python", "-c", deaf])
    await_output(aws, arn, "deaf")
    began = time.monotonic()
    ecs.stop_task(cluster="c", task=arn)
    await_end(aws, arn)
    assert time.monotonic() - began >= 2
    assert exit_of(described(ecs, arn)) == ("UserInitiated", 137)


def test_workers_that_share_their_document_do_not_end_each_other(aws: AwsEmulator, ecs: Any) -> None:
    program = (
        "import subprocess, sys\n"
        "from scaler.config.worker import UNIT_ID_VARIABLES, WORKER_CONFIG_VARIABLE\n"
        "from scaler.processes import end_others_born_with\n"
        "child = subprocess.Popen(['sleep', '60'], start_new_session=True)\n"
        "end_others_born_with(WORKER_CONFIG_VARIABLE, UNIT_ID_VARIABLES['ecs'])\n"
        "print('child', child.wait(), flush=True)"
    )
    environment = [{"name": "SCALER_WORKER_CONFIG", "value": "{}"}]
    overrides = {"containerOverrides": [{"name": "main", "environment": environment}]}
    [bystander] = run_arns(ecs, 1, overrides=overrides)
    await_output(aws, bystander, "ready")
    overrides["containerOverrides"][0]["command"] = ["python", "-c", program]
    [ender] = run_arns(ecs, 1, overrides=overrides)
    await_end(aws, ender)
    assert aws.ecs.output(ender) == "child -9\n"
    assert aws.ecs.running() == [bystander]


def test_a_slow_call_holds_up_no_other(aws: AwsEmulator, ecs: Any) -> None:
    aws.faults.add("DescribeClusters", Slow(0.5))
    answers: list[Any] = []
    slow = threading.Thread(target=lambda: answers.append(ecs.describe_clusters(clusters=["c"])))
    began = time.monotonic()
    slow.start()
    until(lambda: aws.faults.calls()["DescribeClusters"])
    ecs.list_tasks(cluster="c")
    assert time.monotonic() - began < 0.5
    slow.join()
    assert answers[0]["clusters"][0]["status"] == "ACTIVE"
    assert time.monotonic() - began >= 0.5


def test_a_slow_call_does_not_hold_up_the_emulators_end(caplog: pytest.LogCaptureFixture) -> None:
    errors: list[ClientError] = []

    def call() -> None:
        with pytest.raises(ClientError) as caught:
            client.list_tasks()
        errors.append(caught.value)

    with AwsEmulator() as aws:
        client = client_of("ecs", endpoint_url=aws.endpoint_url)
        aws.faults.add("ListTasks", Slow(60))
        caller = threading.Thread(target=call)
        caller.start()
        until(lambda: aws.faults.calls()["ListTasks"])
    caller.join(DEADLINE_SECONDS)
    client.close()
    assert "closed" in str(errors[0])
    assert caplog.text == ""


def test_only_the_end_of_a_long_output_is_kept(aws: AwsEmulator) -> None:
    container = aws.containers.start(["python", "-c", "print('x' * 10**6); print('the end')"], {}, "chatty")
    assert container.wait(DEADLINE_SECONDS) == 0
    assert len(container.output()) == OUTPUT_BYTES
    assert container.output().endswith("xxx\nthe end\n")


def test_nothing_is_left_when_the_emulator_ends(tmp_path: Path) -> None:
    escape = "import subprocess; p = subprocess.Popen(['sleep', '60'], start_new_session=True); print(p.pid)"
    with AwsEmulator() as aws:
        container = aws.containers.start(["sh", "-c", f'python -c "{escape}"; sleep 60'], {}, "escaping")
        until(lambda: "\n" in container.output())
        escaped = os.pidfd_open(int(container.output()))
    assert container.poll() == 137
    await_death(escaped)


def test_nothing_is_left_when_the_emulator_is_killed() -> None:
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
    """Wait for the end of a process that is not ours."""
    try:
        assert select.select([pidfd], [], [], DEADLINE_SECONDS)[0] == [pidfd]
    finally:
        os.close(pidfd)


def test_the_emulator_runs_alone_until_it_is_interrupted() -> None:
    command = [sys.executable, "-m", "scaler.testing.aws"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        client = client_of("ecs", endpoint_url=process.stdout.readline().strip())
        assert client.describe_clusters()["clusters"] == []
        client.close()
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_SECONDS) == 0


MOTO_IS_WRONG = {
    # a task that has not stopped has no reason, and its container no exit code
    ".RunTask.tasks[0].stoppedReason",
    ".RunTask.tasks[0].containers[0].exitCode",
    ".DescribeTasks.tasks[0].stoppedReason",
    ".DescribeTasks.tasks[0].containers[0].exitCode",
    ".StopTask.task.containers[0].exitCode",
    # tags are shown by the operations that take `include`, and by those that set them
    ".PutClusterCapacityProviders.cluster.tags[0]",
    ".DeleteCluster.cluster.tags[0]",
    ".StopTask.task.tags[0]",
}


def walk(ecs: Any, subnet: str) -> dict[str, Any]:
    """Call every operation once, well, and return the answers."""
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


def test_answers_have_the_shape_of_motos() -> None:
    with AwsEmulator() as aws:  # not in the environment, where the clients of moto would find it
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
