"""`scaler_worker_manager aws_hpc setup|show|teardown`: bucket, compute environment, queue, definition, and roles."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import cache, partial
from typing import Any, ClassVar, NamedTuple

from scaler.config.commands import Verb
from scaler.errors import UsageError
from scaler.worker_manager.aws import package as packages
from scaler.worker_manager.aws import resources as aws
from scaler.worker_manager.aws.calls import AwsError, Fields, with_region
from scaler.worker_manager.aws.package import platform_of
from scaler.worker_manager.aws.setup import MANAGED, Account, Change, Resource, is_ours, run
from scaler.worker_manager.aws_hpc import AwsHpcConfig
from scaler.worker_manager.aws_hpc.backend import ALIVE
from scaler.worker_manager.aws_hpc.requests import JOB_MODULE, OWNER_TAG, manager_keys, owner_of

JOBS_PURPOSE = "the jobs, to read calls and write results"
HOSTS_PURPOSE = "the instances that jobs run on"
HOSTS_POLICY = "service-role/AmazonEC2ContainerServiceforEC2Role"
EXPIRY_DAYS = 15  # expiry of leftover objects; longer than the maximum runtime of a job
RULE_ID = "scaler-expiry"


def provision(config: AwsHpcConfig, verb: Verb, dry_run: bool, say: Callable[[str], None]) -> int:
    base = config.job_definition
    if ":" in base:
        raise UsageError(f"job_definition = {base!r} names a revision: {verb} needs the name without a revision")
    config = with_region(config)
    with closing(Account(config, verb, say, dry_run=dry_run)) as account:
        network = cache(lambda: network_of(account, config))
        if verb == "setup":
            network()  # report problems before creating anything
        logs = aws.LogGroup(account, f"/scaler/{base}")
        execution = aws.execution_role(account, base, config.batch_image, logs)
        statements = partial(job_statements, config, account)
        jobs = aws.IamRole(account, base, "job", aws.TASKS_SERVICE, JOBS_PURPOSE, statements)
        host_role = aws.IamRole(account, base, "hosts", aws.HOSTS_SERVICE, HOSTS_PURPOSE, policies=[HOSTS_POLICY])
        profile = aws.InstanceProfile(account, host_role.name)

        def resources() -> Fields:
            return compute_resources(config, network(), "" if config.is_fargate else profile.arn())

        def definition_fields() -> Fields:
            made = job_definition(config, execution.arn(), jobs.arn(), logs.configuration(), network())
            made["tags"] = MANAGED | {OWNER_TAG: owner_of(config)}
            return made

        queue = QueueResource(account, config.job_queue)
        environment = EnvironmentResource(account, queue, resources)
        bucket, definition = Bucket(account, config), JobDefinitionResource(account, base, definition_fields)
        installs = config.batch_image is None and verb != "teardown"
        installed = packages.package_of(config, config.event_loop) if installs else None
        package = packages.PackageResource(account, config.s3_bucket, base, installed)
        if verb == "setup":
            definition.check_owner(owner_of(config))
        hosts = [] if config.is_fargate else [host_role, profile]
        wanted = [bucket, package, logs, execution, jobs, *hosts, environment, queue, definition]
        if verb == "teardown":
            if not queue.teardown():
                return 1  # jobs in the queue use the other resources
            hosts = [profile, host_role]  # an earlier setup may have used instances
        to_remove = [environment, definition, *hosts, execution, jobs, logs, package, bucket]
        return run(account, wanted, to_remove)


class Network(NamedTuple):
    """Network settings of the jobs. is_public: the subnets assign public addresses, which jobs need to pull images."""

    subnets: Sequence[str]
    groups: Sequence[str]
    is_public: bool


def network_of(account: Account, config: AwsHpcConfig) -> Network:
    ec2 = account.client("ec2")
    default = {"Filters": [{"Name": "default-for-az", "Values": ["true"]}]}
    which = {"SubnetIds": list(config.batch_subnets)} if config.batch_subnets else default
    found = list(ec2.items("DescribeSubnets", "Subnets", **which))
    if not found:
        raise UsageError(f"there is no default VPC in {config.aws_region}: set batch_subnets")
    groups = list(config.batch_security_groups)
    if not groups:
        filters = [
            {"Name": "vpc-id", "Values": sorted({subnet["VpcId"] for subnet in found})},
            {"Name": "group-name", "Values": ["default"]},
        ]
        groups = [group["GroupId"] for group in ec2.items("DescribeSecurityGroups", "SecurityGroups", Filters=filters)]
    is_public = all(subnet.get("MapPublicIpOnLaunch") for subnet in found)
    return Network(sorted(subnet["SubnetId"] for subnet in found), groups, is_public)


def job_statements(config: AwsHpcConfig, account: Account) -> list[Fields]:
    """Return the permissions of jobs. Users add permissions for their tasks."""
    bucket = "" if config.batch_image else config.s3_bucket
    objects = f"arn:{account.partition}:s3:::{config.s3_bucket}/{manager_keys(config)}"
    return [
        {"Effect": "Allow", "Action": "s3:GetObject", "Resource": f"{objects}*/calls/*"},
        {"Effect": "Allow", "Action": "s3:PutObject", "Resource": f"{objects}*/results/*"},
        *packages.package_statements(bucket, config.job_definition, account.partition),
        *aws.backend_statements(config, account.partition),
    ]


def compute_resources(config: AwsHpcConfig, network: Network, profile_arn: str) -> Fields:
    """Return the resources for CreateComputeEnvironment. profile_arn: the instances' profile, if any."""
    resources: Fields = {
        "type": config.batch_capacity,
        "maxvCpus": config.max_concurrent_jobs * config.batch_cpu,
        "subnets": list(network.subnets),
        "securityGroupIds": list(network.groups),
    }
    if not config.is_fargate:
        is_spot = config.batch_capacity == "SPOT"
        resources |= {
            # Without jobs, there are no instances and no costs.
            "minvCpus": 0,
            "instanceTypes": list(config.batch_instance_types),
            "instanceRole": profile_arn,
            "allocationStrategy": "SPOT_PRICE_CAPACITY_OPTIMIZED" if is_spot else "BEST_FIT_PROGRESSIVE",
        }
    return resources


def job_definition(config: AwsHpcConfig, execution_arn: str, job_arn: str, logging: Fields, network: Network) -> Fields:
    command = ["python", "-P", "-m", JOB_MODULE]
    if config.batch_image is None:
        package, bucket = packages.package_of(config, config.event_loop), config.s3_bucket
        command = packages.install_command(package, config.aws_region, bucket, config.job_definition, JOB_MODULE)
    container: Fields = {
        "image": packages.BASE_IMAGE if config.batch_image is None else config.batch_image,
        "command": command,
        "executionRoleArn": execution_arn,
        "jobRoleArn": job_arn,
        "resourceRequirements": [
            {"type": "VCPU", "value": str(config.batch_cpu)},
            {"type": "MEMORY", "value": str(config.batch_memory * 1024)},
            *([{"type": "GPU", "value": str(config.batch_gpus)}] if config.batch_gpus else []),
        ],
        "logConfiguration": logging,
        # An init process reaps orphaned processes of tasks.
        "linuxParameters": {"initProcessEnabled": True},
    }
    if config.is_fargate:
        container["networkConfiguration"] = {"assignPublicIp": "ENABLED" if network.is_public else "DISABLED"}
        if config.batch_cpu_architecture != "X86_64":
            container["runtimePlatform"] = platform_of(config.batch_cpu_architecture)
    elif config.batch_image is None:
        # Jobs on one instance share an installation. They can write to its folder, so each definition has its own.
        folder = f"{packages.CACHE}/{config.job_definition}"
        container["volumes"] = [{"name": "packages", "host": {"sourcePath": folder}}]
        container["mountPoints"] = [{"sourceVolume": "packages", "containerPath": packages.CACHE}]
    return {
        "type": "container",
        "platformCapabilities": ["FARGATE" if config.is_fargate else "EC2"],
        "containerProperties": container,
        "propagateTags": True,
    }


class Bucket(aws.BucketResource):
    """The bucket for calls and results. Its objects expire."""

    changes_foreign = True

    def __init__(self, account: Account, config: AwsHpcConfig) -> None:
        super().__init__(account, config.s3_bucket)
        self._below = f"{config.s3_prefix}/"

    def create(self) -> None:
        super().create()
        self._configure()

    def changes(self, found: Fields) -> Sequence[Change]:
        prefixes = [(rule.get("Filter") or {}).get("Prefix") for rule in self._rules()]
        if any(prefix is not None and self._below.startswith(prefix) for prefix in prefixes):
            return []
        if is_ours(found):
            return [(f"expiry of the {self.what}: {EXPIRY_DAYS} days below {self._below}", self._configure)]
        self.account.line(
            "note",
            f"no rule of the {self.what} removes old objects below {self._below}: add one, because a killed manager "
            "leaves objects there",
        )
        return []

    def in_use(self, _: Fields) -> str:
        foreign = self.foreign_key((self._below, f"{packages.PREFIX}/"))
        return foreign and f"it contains {foreign}, which is not below {self._below}"

    def delete(self, found: Fields) -> None:
        s3 = self.account.client("s3")
        aws.delete_objects(s3, self.name, list(aws.object_keys(s3, self.name)))
        super().delete(found)

    def _rules(self) -> list[Fields]:
        absent = "NoSuchLifecycleConfiguration"
        found = self.find("GetBucketLifecycleConfiguration", absent, Bucket=self.name) or {}
        return list(found.get("Rules", []))

    def _configure(self) -> None:
        rule = {
            "ID": RULE_ID,
            "Status": "Enabled",
            "Filter": {"Prefix": self._below},
            "Expiration": {"Days": EXPIRY_DAYS},
            "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1},
        }
        rules = {"Rules": [*(other for other in self._rules() if other.get("ID") != RULE_ID), rule]}
        self.call("PutBucketLifecycleConfiguration", Bucket=self.name, LifecycleConfiguration=rules)


class JobDefinitionResource(Resource):
    """A definition. Its newest revision is in use; teardown removes all revisions."""

    service, kind = "batch", "job definition"

    def __init__(self, account: Account, name: str, fields: Callable[[], Fields]) -> None:
        super().__init__(account, name)
        self._fields = fields

    def describe(self) -> Fields | None:
        return next(reversed(self.describe_all()), None)

    def check_owner(self, owner: str) -> None:
        """Raise UsageError if another manager owns the definition, because jobs of both could read all calls."""
        found = (self.describe() or {}).get("tags", {}).get(OWNER_TAG, owner)
        if found != owner:
            raise UsageError(f"the {self.what} belongs to the worker manager {found!r}: choose another job_definition")

    def describe_all(self) -> list[Fields]:
        name = {"jobDefinitionName": self.name}
        found = self.items("DescribeJobDefinitions", "jobDefinitions", **name, status="ACTIVE")
        return sorted(found, key=lambda revision: int(revision["revision"]))

    def create(self) -> None:
        self.call("RegisterJobDefinition", jobDefinitionName=self.name, **self._fields())

    def changes(self, found: Fields) -> Sequence[Change]:
        return [] if aws.covers(found, self._fields()) else [(f"{self.what}: another revision", self.create)]

    def suffix(self, found: Fields) -> str:
        return f":{found['revision']}"

    def delete(self, found: Fields) -> None:
        self.call("DeregisterJobDefinition", jobDefinition=found["jobDefinitionArn"])


CHANGEABLE = ("maxvCpus", "subnets", "securityGroupIds")
VALID_SECONDS = 300.0  # time limit of a change, which takes seconds on Fargate, and minutes if instances must end first


class _Changing(Resource):
    """A resource that changes slowly: `describe` waits for pending changes, even those from an interrupted run."""

    service = "batch"
    member: ClassVar[str]  # name of the field in requests; the plural adds an s

    def ask(self, verb: str, *, plural: str = "", **parameters: Any) -> Fields:
        return self.call(f"{verb}{self.member[0].upper()}{self.member[1:]}{plural}", **parameters)

    def describe(self) -> Fields | None:
        several, deadline = f"{self.member}s", time.monotonic() + VALID_SECONDS
        while True:
            found = next(iter(self.ask("Describe", plural="s", **{several: [self.name]})[several]), None)
            if found is None or found.get("status") == "DELETED":
                return None
            if self.account.dry_run or found["status"] in ("VALID", "INVALID"):
                return dict(found)
            if time.monotonic() > deadline:
                raise AwsError(f"the {self.what} is still changing: it is {found['status']}", "refused")
            self.account.pause()

    def ensure(self) -> None:
        super().ensure()
        found = None if self.account.dry_run else self.describe()
        if found is not None and is_ours(found) and found["status"] != "VALID":
            reason = found.get("statusReason") or "no reason given"
            raise AwsError(f"the {self.what} is not VALID: it is {found['status']} ({reason})", "refused")

    def made(self, **parameters: Any) -> None:
        parameters |= {f"{self.member}Name": self.name, "state": "ENABLED", "tags": MANAGED}
        self.account.when_roles_are_known(lambda: self.ask("Create", **parameters))

    def changes(self, found: Fields) -> Sequence[Change]:
        # An interrupted teardown leaves a disabled resource.
        return [] if found["state"] == "ENABLED" else [self.change("enabled")]

    def change(self, text: str, **changes: Any) -> Change:
        update = partial(self.ask, "Update", **{self.member: self.name}, state="ENABLED", **changes)
        return f"{self.what}: {text}", update

    def delete(self, found: Fields) -> None:
        name = {self.member: self.name}
        if found["state"] != "DISABLED":
            self.ask("Update", **name, state="DISABLED")
            self.describe()
        self.ask("Delete", **name)
        self.describe()

    def detail(self, found: Fields) -> str:
        resources = found.get("computeResources")
        reason = "" if found["status"] == "VALID" else f": {found.get('statusReason')}"
        size = f", {resources['type']}, up to {resources['maxvCpus']} vCPUs" if resources else ""
        return f": {found['state']}, {found['status']}{reason}{size}"


class QueueResource(_Changing):
    kind, member = "job queue", "jobQueue"

    def create(self) -> None:
        self.made(priority=1, computeEnvironmentOrder=[{"order": 1, "computeEnvironment": self.name}])

    def in_use(self, _: Fields) -> str:
        # A job may change state between the calls. Each call lists at most 1000.
        pages = [self.call("ListJobs", jobQueue=self.name, jobStatus=status) for status in ALIVE]
        jobs = len({job["jobId"] for page in pages for job in page["jobSummaryList"]})
        return f"it has jobs ({jobs}): stop their worker manager first" if jobs else ""


class EnvironmentResource(_Changing):
    """The queue's compute environment. Unchanged if Scaler did not create the queue."""

    kind, member = "compute environment", "computeEnvironment"

    def __init__(self, account: Account, queue: QueueResource, resources: Callable[[], Fields]) -> None:
        super().__init__(account, queue.name)
        self._queue, self._resources = queue, resources

    def ensure(self) -> None:
        queue = self._queue.describe()
        if queue is not None and not is_ours(queue):
            return
        found, wanted = self.describe(), self._resources()["type"]
        current = (found or {}).get("computeResources", {}).get("type")
        if found is not None and is_ours(found) and current != wanted:
            self.account.line("kept", self.what, f"it is {current}: to get {wanted}, run teardown first")
        else:
            super().ensure()

    def create(self) -> None:
        # Without a service role, Batch uses its service-linked role, and creates it if it does not exist.
        self.made(type="MANAGED", computeResources=self._resources())

    def changes(self, found: Fields) -> Sequence[Change]:
        current = found.get("computeResources") or {}
        # Compare only our values: the service adds its own.
        changed = {
            name: wish
            for name, wish in self._resources().items()
            if name in CHANGEABLE and _unordered(current.get(name)) != _unordered(wish)
        }
        if not changed:
            return super().changes(found)
        text = ", ".join(f"{name} = {value}" for name, value in changed.items())
        return [self.change(text, computeResources=changed)]


def _unordered(value: object) -> object:
    return sorted(value) if isinstance(value, list) else value
