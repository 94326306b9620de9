"""`scaler_worker_manager aws_hpc setup|show|teardown` against moto, which has all required services."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from moto.batch.models import BatchBackend

from scaler.errors import UsageError
from scaler.testing.aws import AwsEmulator
from scaler.worker_manager.aws.calls import AwsClient, AwsError
from scaler.worker_manager.aws.setup import Account, Resource, run
from scaler.worker_manager.aws_hpc import AwsHpcConfig, setup
from scaler.worker_manager.aws_hpc.backend import BatchService
from scaler.worker_manager.aws_hpc.setup import EnvironmentResource, Network, QueueResource, compute_resources
from tests.engines.moto_rig import Cloud, moto_server, words

CREATED = ["created"] * 7
IMAGE = "registry.example/worker:1"
LOG_GROUP = "/scaler/scaler-job"
EXECUTION, JOB, HOSTS = (f"scaler-job-us-east-1-{purpose}" for purpose in ("execution", "job", "hosts"))
ROLE = "arn:aws:iam::123456789012:role/aws-service-role/batch.amazonaws.com/AWSServiceRoleForBatch"
WHAT = ["bucket", "log group", "role", "role", "compute environment", "job queue", "job definition"]


class HpcCloud(Cloud):
    """An empty account, and the command in it."""

    def __init__(self, endpoint_url: str) -> None:
        flags = {"--job-queue": "scaler-queue", "--job-definition": "scaler-job", "--s3-bucket": "our-calls"}
        flags["--batch-image"] = IMAGE
        super().__init__(endpoint_url, "aws_hpc", setup.provision, flags)

    def definition(self) -> dict[str, Any]:
        found = self.call("batch", "DescribeJobDefinitions", jobDefinitionName="scaler-job", status="ACTIVE")
        definition: dict[str, Any] = max(found["jobDefinitions"], key=lambda each: int(each["revision"]))
        return definition

    def resources(self) -> dict[str, Any]:
        [found] = self.call("batch", "DescribeComputeEnvironments")["computeEnvironments"]
        resources: dict[str, Any] = found["computeResources"]
        return resources

    def policy(self, role: str) -> list[dict[str, Any]]:
        document = self.call("iam", "GetRolePolicy", RoleName=role, PolicyName="scaler")["PolicyDocument"]
        statements: list[dict[str, Any]] = document["Statement"]
        return statements

    def open_account(self) -> None:
        trust = json.dumps({"Version": "2012-10-17", "Statement": []})
        path = "/aws-service-role/batch.amazonaws.com/"
        self.call("iam", "CreateRole", RoleName="AWSServiceRoleForBatch", Path=path, AssumeRolePolicyDocument=trust)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with moto_server() as url:
        yield url


@pytest.fixture
def cloud(server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[HpcCloud]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setattr("scaler.worker_manager.aws.setup.PAUSE_SECONDS", 0.01)
    create = BatchBackend.create_compute_environment

    def create_with_role(self: BatchBackend, *, service_role: str, **fields: Any) -> object:
        return create(self, service_role=service_role or ROLE, **fields)

    # moto requires the role that AWS takes by default.
    monkeypatch.setattr(BatchBackend, "create_compute_environment", create_with_role)
    made = HpcCloud(server)
    made.open_account()
    yield made
    made.close()
    made.reset()


def test_setup_creates_all_resources_once(cloud: HpcCloud) -> None:
    lines = cloud.do("setup")
    assert words(lines) == CREATED
    assert all(what.startswith(kind) for (_, what), kind in zip(lines, WHAT, strict=True))
    assert words(cloud.do("setup")) == ["exists"] * 7
    shown = cloud.do("show")
    assert words(shown) == ["exists"] * 7
    assert [what for _, what in shown if "FARGATE" in what] == [
        "compute environment scaler-queue: ENABLED, VALID, FARGATE, up to 100 vCPUs"
    ]
    assert cloud.definition()["revision"] == 1


def test_created_resources_are_consistent(cloud: HpcCloud) -> None:
    cloud.do("setup", "--batch-cpu", "2", "--batch-memory", "8", "--max-concurrent-jobs", "30")
    made = cloud.definition()
    container = made["containerProperties"]
    assert made["platformCapabilities"] == ["FARGATE"]
    roles = {name: cloud.call("iam", "GetRole", RoleName=name)["Role"]["Arn"] for name in (EXECUTION, JOB)}
    assert (container["executionRoleArn"], container["jobRoleArn"]) == (roles[EXECUTION], roles[JOB])
    assert {each["type"]: each["value"] for each in container["resourceRequirements"]} == {
        "VCPU": "2",
        "MEMORY": "8192",
    }
    assert container["logConfiguration"]["options"]["awslogs-group"] == LOG_GROUP
    assert container["networkConfiguration"] == {"assignPublicIp": "ENABLED"}, "the default subnets are public"
    resources = cloud.resources()
    assert (resources["type"], resources["maxvCpus"]) == ("FARGATE", 60)
    assert len(resources["subnets"]) > 1
    assert len(resources["securityGroupIds"]) == 1
    [queue] = cloud.call("batch", "DescribeJobQueues")["jobQueues"]
    [order] = queue["computeEnvironmentOrder"]
    assert order["computeEnvironment"].rpartition("/")[2] == "scaler-queue"


def test_manager_finds_resources_created_by_setup(cloud: HpcCloud) -> None:
    cloud.do("setup")
    service = BatchService(cloud.config())
    service.check_queue()
    definition = service.definition()
    service.close()
    assert definition == cloud.definition()["jobDefinitionArn"]


def test_jobs_without_an_image_install_the_running_version_from_the_bucket(cloud: HpcCloud) -> None:
    bare: AwsHpcConfig = replace(cloud.config(), batch_image=None)
    lines: list[str] = []
    assert setup.provision(bare, "setup", False, lines.append) == 0
    container = cloud.definition()["containerProperties"]
    assert container["image"].startswith("public.ecr.aws/docker/library/python:3.")
    assert (container["command"][:2], container["command"][-1]) == (["sh", "-c"], "scaler.worker_manager.aws_hpc.job")
    keys = [each["Key"] for each in cloud.call("s3", "ListObjectsV2", Bucket="our-calls")["Contents"]]
    assert [key.rpartition("/")[2][:14] for key in keys] == ["requirements.t", "scaler_compute"]
    resources = [each["Resource"] for each in cloud.policy(JOB)]
    assert "arn:aws:s3:::our-calls/scaler-packages/scaler-job/*" in resources
    on_hosts = setup.job_definition(replace(bare, batch_capacity="EC2"), "", "", {}, setup.Network((), (), False))
    [volume] = on_hosts["containerProperties"]["volumes"]
    assert volume["host"] == {"sourcePath": "/var/cache/scaler/scaler-job"}, "other definitions write elsewhere"
    service = BatchService(bare)
    service.definition()
    service.close()
    service = BatchService(replace(bare, worker_requirements=("numpy",)))
    with pytest.raises(AwsError, match="does not install this version of scaler with the current requirements"):
        service.definition()
    service.close()
    assert set(words(cloud.do("teardown"))) == {"removed"}
    assert words(cloud.do("show")).count("would create") == 7


def test_objects_of_the_bucket_expire(cloud: HpcCloud) -> None:
    cloud.do("setup")
    [rule] = cloud.call("s3", "GetBucketLifecycleConfiguration", Bucket="our-calls")["Rules"]
    assert (rule["Filter"], rule["Status"]) == ({"Prefix": "scaler-tasks/"}, "Enabled")
    assert rule["Expiration"]["Days"] == 15


@pytest.mark.parametrize("interrupted_at", ["PutBucketLifecycleConfiguration", "PutRetentionPolicy"])
def test_next_setup_completes_an_interrupted_one(
    cloud: HpcCloud, interrupted_at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        call = AwsClient.call

        def interrupted(self: AwsClient, operation: str, **parameters: Any) -> dict[str, Any]:
            if operation == interrupted_at:
                raise KeyboardInterrupt
            return call(self, operation, **parameters)

        patch.setattr(AwsClient, "call", interrupted)
        with pytest.raises(KeyboardInterrupt):
            cloud.do("setup")
    assert words(cloud.do("setup")).count("changed") == 1
    assert cloud.call("s3", "GetBucketLifecycleConfiguration", Bucket="our-calls")["Rules"]
    [group] = cloud.call("logs", "DescribeLogGroups")["logGroups"]
    assert group["retentionInDays"] == 14
    assert set(words(cloud.do("setup"))) == {"exists"}


def test_roles_have_exactly_the_required_permissions(cloud: HpcCloud) -> None:
    cloud.do("setup")
    assert cloud.policy(JOB) == [
        {
            "Effect": "Allow",
            "Action": "s3:GetObject",
            "Resource": "arn:aws:s3:::our-calls/scaler-tasks/aws_hpc/*/calls/*",
        },
        {
            "Effect": "Allow",
            "Action": "s3:PutObject",
            "Resource": "arn:aws:s3:::our-calls/scaler-tasks/aws_hpc/*/results/*",
        },
    ]
    cloud.do("setup", "--object-storage-backend", "s3://bucket/prefix")
    [*_, backend] = cloud.policy(JOB)
    assert backend["Resource"] == "arn:aws:s3:::bucket/prefix/run-*"
    [logs] = cloud.policy(EXECUTION)
    assert logs["Action"] == ["logs:CreateLogStream", "logs:PutLogEvents"]
    trust = cloud.call("iam", "GetRole", RoleName=JOB)["Role"]["AssumeRolePolicyDocument"]
    assert json.dumps(trust).count("ecs-tasks.amazonaws.com") == 1


def test_each_manager_has_a_job_definition_with_an_exclusive_role(cloud: HpcCloud) -> None:
    cloud.do("setup")
    with pytest.raises(UsageError, match="job definition scaler-job belongs to the worker manager 'aws_hpc': choose"):
        cloud.do("setup", "--worker-manager-id", "another")
    assert set(words(cloud.do("setup"))) == {"exists"}
    cloud.do("setup", "--worker-manager-id", "another", "--job-definition", "another-job")
    [read, write] = cloud.policy("another-job-us-east-1-job")
    assert read["Resource"] == "arn:aws:s3:::our-calls/scaler-tasks/another/*/calls/*"
    assert write["Resource"] == "arn:aws:s3:::our-calls/scaler-tasks/another/*/results/*"


def test_other_settings_change_existing_resources(cloud: HpcCloud) -> None:
    cloud.do("setup")
    lines = cloud.do("setup", "--max-concurrent-jobs", "7", "--batch-memory", "4")
    assert ("changed", "compute environment scaler-queue: maxvCpus = 7") in lines
    assert ("changed", "job definition scaler-job: another revision") in lines
    sizes = {each["type"]: each["value"] for each in cloud.definition()["containerProperties"]["resourceRequirements"]}
    assert sizes["MEMORY"] == "4096"
    [kept] = [what for word, what in cloud.do("setup", "--batch-capacity", "FARGATE_SPOT") if word == "kept"]
    assert "it is FARGATE: to get FARGATE_SPOT, run teardown first" in kept


def test_instances_have_a_role_and_cost_nothing_without_work(cloud: HpcCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOTO_IAM_LOAD_MANAGED_POLICIES", "true")
    cloud.reset()
    cloud.open_account()
    lines = cloud.do("setup", "--batch-capacity", "SPOT")
    assert words(lines) == ["created"] * 9
    resources = cloud.resources()
    assert (resources["type"], resources["minvCpus"]) == ("SPOT", 0)
    profile = cloud.call("iam", "GetInstanceProfile", InstanceProfileName=HOSTS)["InstanceProfile"]
    assert resources["instanceRole"] == profile["Arn"]
    assert [role["RoleName"] for role in profile["Roles"]] == [HOSTS]
    assert cloud.definition()["platformCapabilities"] == ["EC2"]
    trust = cloud.call("iam", "GetRole", RoleName=HOSTS)["Role"]["AssumeRolePolicyDocument"]
    [statement] = trust["Statement"]
    service = {"Service": "ec2.amazonaws.com"}
    assert statement == {"Effect": "Allow", "Principal": service, "Action": "sts:AssumeRole"}, "names no account"
    assert words(cloud.do("setup", "--batch-capacity", "SPOT")) == ["exists"] * 9
    assert set(words(cloud.do("teardown"))) == {"removed"}
    assert cloud.call("iam", "ListInstanceProfiles")["InstanceProfiles"] == []


def test_teardown_removes_everything_and_is_repeatable(cloud: HpcCloud) -> None:
    cloud.do("setup")
    cloud.call("s3", "PutObject", Bucket="our-calls", Key="scaler-tasks/burst/1/calls/1", Body=b"x")
    lines = cloud.do("teardown")
    assert words(lines) == ["removed"] * 7
    assert [what.partition(" scaler")[0] for _, what in lines[:2]] == ["job queue", "compute environment"]
    assert words(cloud.do("show")).count("would create") == 7
    assert cloud.do("teardown") == []


def test_foreign_resources_are_kept(cloud: HpcCloud) -> None:
    cloud.call("s3", "CreateBucket", Bucket="our-calls")
    trust = json.dumps({"Version": "2012-10-17", "Statement": []})
    cloud.call("iam", "CreateRole", RoleName=JOB, AssumeRolePolicyDocument=trust)
    lines = cloud.do("setup")
    assert ("exists", "bucket our-calls (made by others)") in lines
    assert any(word == "note" and "removes old objects below scaler-tasks/" in what for word, what in lines)
    kept = [what for word, what in cloud.do("teardown") if word == "kept"]
    assert [what.partition(" (")[0] for what in kept] == [f"role {JOB}", "bucket our-calls"]
    cloud.call("s3", "HeadBucket", Bucket="our-calls")


# the service takes time for actions that moto performs at once


@pytest.fixture
def aws(aws: AwsEmulator, monkeypatch: pytest.MonkeyPatch) -> AwsEmulator:
    monkeypatch.setattr("scaler.worker_manager.aws.setup.PAUSE_SECONDS", 0.01)
    return aws


class Environment:
    """A compute environment and its queue."""

    def __init__(self, aws: AwsEmulator, lines: list[str]) -> None:
        self.config = HpcCloud(aws.endpoint_url).config()
        self.account = Account(self.config, "setup", lines.append, dry_run=False)

    def ensure(self, resources: dict[str, Any]) -> None:
        run(self.account, self._pair(resources), [])

    def remove(self) -> bool:
        environment, queue = self._pair({})
        return queue.teardown() and environment.teardown()

    def _pair(self, resources: dict[str, Any]) -> tuple[Resource, Resource]:
        queue = QueueResource(self.account, "scaler-queue")
        return EnvironmentResource(self.account, queue, lambda: resources), queue


def environment_of(aws: AwsEmulator, lines: list[str]) -> tuple[Environment, dict[str, Any], AwsClient]:
    made = Environment(aws, lines)
    network = Network(("subnet-1",), ("sg-1",), is_public=True)
    return made, compute_resources(made.config, network, ""), AwsClient(made.config, "batch")


def test_setup_waits_until_everything_is_valid_and_teardown_until_gone(aws: AwsEmulator) -> None:
    aws.batch.times.changing = 0.2
    environment, resources, batch = environment_of(aws, [])
    environment.ensure(resources)
    [queue] = aws.batch.call("DescribeJobQueues", {})["jobQueues"]
    [made] = aws.batch.call("DescribeComputeEnvironments", {})["computeEnvironments"]
    assert (queue["status"], made["status"]) == ("VALID", "VALID")
    environment.ensure({**resources, "maxvCpus": 3})
    [made] = aws.batch.call("DescribeComputeEnvironments", {})["computeEnvironments"]
    assert (made["status"], made["computeResources"]["maxvCpus"]) == ("VALID", 3)
    assert environment.remove()
    assert aws.batch.call("DescribeJobQueues", {})["jobQueues"] == []
    assert aws.batch.call("DescribeComputeEnvironments", {})["computeEnvironments"] == []
    environment.account.close()
    batch.close()
