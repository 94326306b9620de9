"""`scaler_worker_manager aws_raw_ecs setup|show|teardown` against moto, which has all required services."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import Any

import pytest

from scaler._version import __version__
from scaler.errors import UsageError
from scaler.worker_manager.aws_raw_ecs.backend import ensure_definition
from scaler.worker_manager.aws_raw_ecs.setup import provision
from tests.engines.moto_rig import Cloud, moto_server, words

EXECUTION = "scaler-task-definition-us-east-1-execution"
TASK = "scaler-task-definition-us-east-1-task"
LOG_GROUP = "/scaler/scaler-task-definition"
BARE = {"--ecs-subnets": "subnet-1", "--s3-bucket": "our-packages", "--aws-region": "us-east-1"}
WHAT = ["cluster", "log group", "role", "role", "task definition"]


class EcsCloud(Cloud):
    """An empty account, and the command in it."""

    def __init__(self, endpoint_url: str, flags: Mapping[str, str]) -> None:
        super().__init__(endpoint_url, "aws_raw_ecs", provision, flags)

    def definition(self) -> dict[str, Any]:
        found = self.call("ecs", "DescribeTaskDefinition", taskDefinition="scaler-task-definition")
        definition: dict[str, Any] = found["taskDefinition"]
        return definition


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with moto_server() as url:
        yield url


@pytest.fixture
def cloud(server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[EcsCloud]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    made = EcsCloud(server, {"--ecs-subnets": "subnet-1", "--ecs-task-image": "registry.example/worker:1"})
    yield made
    made.close()
    made.reset()


def test_setup_creates_all_resources_once(cloud: EcsCloud) -> None:
    lines = cloud.do("setup")
    assert words(lines) == ["created"] * 5
    assert all(what.startswith(kind) for (_, what), kind in zip(lines, WHAT, strict=True))
    assert words(cloud.do("setup")) == ["exists"] * 5
    assert words(cloud.do("show")) == ["exists"] * 5
    assert cloud.definition()["revision"] == 1


def test_created_resources_are_consistent(cloud: EcsCloud) -> None:
    cloud.do("setup", "--ecs-task-cpu", "2", "--ecs-task-memory", "8")
    found = cloud.definition()
    assert (found["cpu"], found["memory"]) == ("2048", "8192")
    roles = {name: cloud.call("iam", "GetRole", RoleName=name)["Role"] for name in (EXECUTION, TASK)}
    assert (found["executionRoleArn"], found["taskRoleArn"]) == (roles[EXECUTION]["Arn"], roles[TASK]["Arn"])
    options = found["containerDefinitions"][0]["logConfiguration"]["options"]
    assert (options["awslogs-group"], options["awslogs-region"]) == (LOG_GROUP, "us-east-1")
    [cluster] = cloud.call("ecs", "DescribeClusters", clusters=["scaler-cluster"])["clusters"]
    assert cluster["capacityProviders"] == ["FARGATE", "FARGATE_SPOT"]
    [group] = cloud.call("logs", "DescribeLogGroups", logGroupNamePrefix=LOG_GROUP)["logGroups"]
    assert group["retentionInDays"] == 14


def test_manager_uses_the_definition_that_setup_created(cloud: EcsCloud) -> None:
    cloud.do("setup")
    definition = ensure_definition(cloud.config(), cloud.client("ecs"))
    assert definition["revision"] == 1
    assert "executionRoleArn" in definition


def test_roles_have_exactly_the_required_permissions(cloud: EcsCloud) -> None:
    cloud.do("setup", "--ecs-task-image", "123456789012.dkr.ecr.eu-west-1.amazonaws.com/scaler/worker:1")
    policy = cloud.call("iam", "GetRolePolicy", RoleName=EXECUTION, PolicyName="scaler")["PolicyDocument"]
    account = cloud.call("sts", "GetCallerIdentity")["Account"]
    assert [(item["Action"], item["Resource"]) for item in policy["Statement"]] == [
        (["logs:CreateLogStream", "logs:PutLogEvents"], f"arn:aws:logs:us-east-1:{account}:log-group:{LOG_GROUP}:*"),
        ("ecr:GetAuthorizationToken", "*"),
        (
            ["ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"],
            "arn:aws:ecr:eu-west-1:123456789012:repository/scaler/worker",
        ),
    ]
    assert cloud.call("iam", "ListRolePolicies", RoleName=TASK)["PolicyNames"] == []
    for name in (EXECUTION, TASK):
        trust = cloud.call("iam", "GetRole", RoleName=name)["Role"]["AssumeRolePolicyDocument"]
        [statement] = (json.loads(trust) if isinstance(trust, str) else trust)["Statement"]
        assert statement["Principal"] == {"Service": "ecs-tasks.amazonaws.com"}
        assert statement["Condition"] == {"StringEquals": {"aws:SourceAccount": account}}


@pytest.mark.parametrize(
    ("url", "folders"), [("s3://bucket/my/prefix/", "bucket/my/prefix/run-*"), ("s3://bucket", "bucket/run-*")]
)
def test_tasks_may_access_only_folders_of_runs_in_the_backend(cloud: EcsCloud, url: str, folders: str) -> None:
    cloud.do("setup")
    lines = cloud.do("setup", "--object-storage-backend", url)
    assert [what for word, what in lines if word == "changed" and "object storage's backend" in what]
    [statement] = cloud.call("iam", "GetRolePolicy", RoleName=TASK, PolicyName="scaler")["PolicyDocument"]["Statement"]
    assert statement["Resource"] == f"arn:aws:s3:::{folders}"
    assert statement["Action"] == ["s3:GetObject", "s3:PutObject", "s3:AbortMultipartUpload"]
    cloud.do("setup")
    assert cloud.call("iam", "ListRolePolicies", RoleName=TASK)["PolicyNames"] == []


def test_running_version_is_uploaded_for_tasks_without_an_image(cloud: EcsCloud) -> None:
    bare = EcsCloud(cloud.endpoint_url, BARE)
    planned = [what for word, what in bare.do("setup", "--dry-run") if word == "would create"]
    assert [what.split()[0] for what in planned] == ["cluster", "bucket", "package", "log", "role", "role", "task"]
    assert words(bare.do("setup")) == ["created"] * 7
    assert words(bare.do("setup")) == ["exists"] * 7
    [container] = bare.definition()["containerDefinitions"]
    assert container["image"].startswith("public.ecr.aws/docker/library/python:3.")
    assert (container["command"][:2], container["command"][-1]) == (["sh", "-c"], "scaler.worker")
    keys = [each["Key"] for each in bare.call("s3", "ListObjectsV2", Bucket="our-packages")["Contents"]]
    assert [key.rpartition("/")[2] for key in keys] == [
        "requirements.txt",
        f"scaler_compute-{__version__}-py3-none-any.whl",
    ]
    assert all(key.startswith("scaler-packages/scaler-task-definition/") for key in keys)
    lock = bare.client("s3").read(Bucket="our-packages", Key=keys[0]).decode().splitlines()
    assert f"cloudpickle=={version('cloudpickle')}" in lock
    assert not [line for line in lock if line.startswith(("starlette", "pydantic", "scaler"))]
    [statement] = bare.call("iam", "GetRolePolicy", RoleName=TASK, PolicyName="scaler")["PolicyDocument"]["Statement"]
    assert statement["Action"] == "s3:GetObject"
    assert statement["Resource"] == "arn:aws:s3:::our-packages/scaler-packages/scaler-task-definition/*"
    assert ensure_definition(bare.config(), bare.client("ecs"))["revision"] == 1, "the manager takes it"
    with pytest.raises(UsageError, match=r"does not install this version of scaler .* run `.* setup`"):
        ensure_definition(bare.config("--worker-requirements", "numpy"), bare.client("ecs"))
    lines = bare.do("setup", "--worker-requirements", "numpy")
    assert ("changed", "task definition scaler-task-definition: another revision") in lines
    assert lines[-2][0] == "exists"
    assert set(words(bare.do("teardown", "--dry-run"))) == {"would remove"}
    assert set(words(bare.do("teardown"))) == {"removed"}
    assert set(words(bare.do("show"))) == {"would create"}


def test_setup_changes_and_reports_only_differences(cloud: EcsCloud) -> None:
    cloud.do("setup")
    flags = ("--ecs-task-memory", "16", "--ecs-task-image", "123456789012.dkr.ecr.us-east-1.amazonaws.com/worker:1")
    planned = [line for line in cloud.do("setup", "--dry-run", *flags) if line[0] == "would change"]
    assert planned[-1] == ("would change", "task definition scaler-task-definition: another revision")
    assert cloud.definition()["memory"] == "30720", "a dry run does nothing"
    assert [line[0] for line in cloud.do("setup", *flags)].count("changed") == 2
    assert cloud.definition()["memory"] == "16384"
    assert words(cloud.do("setup", *flags)) == ["exists"] * 5


def test_foreign_resources_are_used_but_never_changed_or_removed(cloud: EcsCloud) -> None:
    cloud.call("ecs", "CreateCluster", clusterName="scaler-cluster", capacityProviders=["FARGATE_SPOT"])
    cloud.call("iam", "CreateRole", RoleName=TASK, AssumeRolePolicyDocument="{}")
    cloud.call("logs", "CreateLogGroup", logGroupName=LOG_GROUP)
    lines = cloud.do("setup")
    assert words(lines) == ["exists", "changed", "exists", "created", "exists", "created"]
    assert lines[1][1] == "capacity providers of the cluster scaler-cluster: FARGATE attached"
    [cluster] = cloud.call("ecs", "DescribeClusters", clusters=["scaler-cluster"])["clusters"]
    assert cluster["capacityProviders"] == ["FARGATE_SPOT", "FARGATE"]
    assert words(cloud.do("teardown")) == ["kept", "removed", "removed", "kept", "kept"]


def run(*arguments: str) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "scaler.cli", "worker_manager", "aws_raw_ecs", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return done.returncode, done.stdout, done.stderr


def test_command_prints_each_step_and_fails_in_one_line(cloud: EcsCloud) -> None:
    place = ("--ecs-subnets", "subnet-1", "--ecs-task-image", "registry.example/worker:1", "--aws-endpoint-url")
    code, out, err = run("setup", "--dry-run", *place, cloud.endpoint_url)
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == "would create  cluster scaler-cluster"
    code, out, err = run("show", *place, "http://127.0.0.1:1")
    assert (code, out) == (1, "")
    assert err == (
        "scaler_worker_manager: ECS DescribeClusters: no answer at http://127.0.0.1:1 (EndpointConnectionError): "
        "check the network, aws_region and aws_endpoint_url\n"
    )
