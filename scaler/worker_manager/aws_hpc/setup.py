"""`scaler_worker_manager aws_hpc setup|show|teardown`: bucket, compute environment, queue, job definition and roles."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from scaler.errors import UsageError
from scaler.worker_manager.aws.calls import AwsError
from scaler.worker_manager.aws.containers import default_image, pip_install, requirements_of, versions
from scaler.worker_manager.aws.setup import (
    MANAGED_TAG,
    PAUSE_SECONDS,
    TASKS_SERVICE,
    Account,
    Change,
    Fields,
    LogGroup,
    Resource,
    Role,
    default_subnets,
    execution_statements,
    log_configuration,
    none_if_absent,
    role_name,
    run,
)
from scaler.worker_manager.aws_hpc.environment import ComputeEnvironment, JobQueue
from scaler.worker_manager.aws_hpc.job_spec import JOB_MODULE
from scaler.worker_manager.aws_hpc.objects import DELETED_AT_ONCE
from scaler.worker_manager.aws_hpc.service import MODULE
from scaler.worker_manager.aws_hpc.settings import AwsHpcConfig

if TYPE_CHECKING:
    from scaler.config.commands import Verb

BATCH_SERVICE = "batch.amazonaws.com"
SERVICE_ROLE = "AWSServiceRoleForBatch"
HOSTS_SERVICE = "ec2.amazonaws.com"
HOSTS_POLICY = "service-role/AmazonEC2ContainerServiceforEC2Role"
EXPIRY_DAYS = 15
"""Objects that are left expire after this time: longer than a job may run."""
RULE_ID = "scaler-expiry"
OLDEST_REGION = "us-east-1"
"""S3 refuses this one as a location constraint."""
ENCRYPTION: Fields = {"Rules": [{"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}]}
NO_PUBLIC_ACCESS = {
    "BlockPublicAcls": True,
    "IgnorePublicAcls": True,
    "BlockPublicPolicy": True,
    "RestrictPublicBuckets": True,
}


def provision(
    config: AwsHpcConfig,
    verb: Verb,
    dry_run: bool,
    say: Callable[[str], None],
    *,
    pause_seconds: float = PAUSE_SECONDS,
) -> int:
    """Create, list or remove what the manager needs; return the exit code. Raises AwsError, UsageError."""
    if ":" in config.job_definition:
        raise UsageError(
            f"job_definition = {config.job_definition!r} names a revision: {verb} is for a definition by its name alone"
        )
    account = Account(config, say, dry_run=dry_run, pause_seconds=pause_seconds)
    try:
        wanted = _Wanted(account, config)
        if verb == "setup":
            wanted.network  # noqa: B018 (what is wrong with it is reported before anything is created)
        bucket = Bucket(account, config)
        hosts = [] if is_fargate(config) else [wanted.host_role, wanted.profile]
        created = [
            bucket,
            wanted.log_group,
            wanted.execution,
            wanted.jobs,
            *hosts,
            wanted.service_role,
            wanted.environment,
            wanted.queue,
            wanted.definition,
        ]
        if verb == "teardown" and not wanted.queue.teardown():
            return 1  # the jobs in the queue use all the rest
        removed = [
            wanted.environment,
            wanted.definition,
            wanted.profile,
            wanted.host_role,
            wanted.execution,
            wanted.jobs,
        ]
        wanted.host_role.is_optional = verb == "teardown"
        return run(verb, created, [*removed, wanted.log_group, bucket])
    finally:
        account.close()


@dataclass(frozen=True, slots=True)
class Network:
    """Where jobs run. is_public: the subnets give public addresses, which a job there needs to pull its image."""

    subnets: tuple[str, ...]
    groups: tuple[str, ...]
    is_public: bool


class _Wanted:
    """The wanted resources that use each other."""

    def __init__(self, account: Account, config: AwsHpcConfig) -> None:
        self._account = account
        self._config = config
        self.log_group = LogGroup(account, f"/scaler/{config.job_definition}")
        self.execution = self._role(
            "execution",
            TASKS_SERVICE,
            "ECS, to pull the image and to write logs",
            lambda: execution_statements(image_of(config), self.log_group.arn(config.aws_region), account.partition),
        )
        self.jobs = self._role(
            "job",
            TASKS_SERVICE,
            "the jobs, to read calls and write results",
            lambda: job_statements(config, account.partition),
        )
        self.host_role = self._role(
            "hosts", HOSTS_SERVICE, "the instances that jobs run on", managed_policies=(HOSTS_POLICY,)
        )
        self.profile = InstanceProfile(account, self.host_role.name)
        self.service_role = ServiceRole(account)
        self.queue = JobQueue(account, config.job_queue)
        self.environment = ComputeEnvironment(
            account,
            config.job_queue,
            self.queue,
            lambda: compute_resources(config, self.network, "" if is_fargate(config) else self.profile.arn()),
            self.service_role.arn,
        )
        self.definition = JobDefinition(
            account,
            config.job_definition,
            lambda: job_definition(
                config,
                versions(),
                {"execution": self.execution.arn(), "job": self.jobs.arn()},
                self.log_group.name,
                self.network,
            ),
        )

    @cached_property
    def network(self) -> Network:
        """Where jobs run: in the configured subnets, or in the default VPC. Raises UsageError, AwsError."""
        config, ec2 = self._config, self._account.client("ec2")
        if config.batch_subnets:
            found = ec2.call("DescribeSubnets", SubnetIds=list(config.batch_subnets))["Subnets"]
        else:
            found = default_subnets(ec2)
        if not found:
            raise UsageError(f"there is no default VPC in {config.aws_region}: give batch_subnets")
        groups = tuple(config.batch_security_groups)
        if not groups:
            filters = [
                {"Name": "vpc-id", "Values": sorted({subnet["VpcId"] for subnet in found})},
                {"Name": "group-name", "Values": ["default"]},
            ]
            answer = ec2.call("DescribeSecurityGroups", Filters=filters)
            groups = tuple(group["GroupId"] for group in answer["SecurityGroups"])
        subnets = tuple(sorted(subnet["SubnetId"] for subnet in found))
        return Network(subnets, groups, all(subnet.get("MapPublicIpOnLaunch") for subnet in found))

    def _role(
        self,
        purpose: str,
        service: str,
        text: str,
        statements: Callable[[], Sequence[Fields]] = tuple,
        managed_policies: Sequence[str] = (),
    ) -> Role:
        name = role_name(self._config.job_definition, self._config.aws_region, purpose)
        return Role(self._account, name, service, text, statements, managed_policies)


# -- what the requests of setup contain


def is_fargate(config: AwsHpcConfig) -> bool:
    """Tell whether jobs run on Fargate."""
    return config.batch_capacity.startswith("FARGATE")


def image_of(config: AwsHpcConfig) -> str:
    """Return the image of the job definition."""
    return config.batch_image or default_image()


def job_statements(config: AwsHpcConfig, partition: str) -> list[Fields]:
    """Return what the jobs of mode offload may do. Workers need nothing; users add what their tasks need."""
    bucket = f"arn:{partition}:s3:::{config.s3_bucket}/{config.s3_prefix}"
    return [
        {"Effect": "Allow", "Action": "s3:GetObject", "Resource": f"{bucket}/*/calls/*"},
        {"Effect": "Allow", "Action": "s3:PutObject", "Resource": f"{bucket}/*/results/*"},
        # A job reads a call that is among its parameters. Batch cannot restrict this to single jobs.
        {"Effect": "Allow", "Action": "batch:DescribeJobs", "Resource": "*"},
    ]


def compute_resources(config: AwsHpcConfig, network: Network, profile_arn: str) -> Fields:
    """Return what CreateComputeEnvironment takes. profile_arn: of the instances, if there are any."""
    resources: Fields = {
        "type": config.batch_capacity,
        "maxvCpus": config.max_concurrent_jobs * config.batch_cpu,
        "subnets": list(network.subnets),
        "securityGroupIds": list(network.groups),
    }
    if not is_fargate(config):
        is_spot = config.batch_capacity == "SPOT"
        resources |= {
            # Without jobs there are no instances to pay for.
            "minvCpus": 0,
            "instanceTypes": ["optimal"],
            "instanceRole": profile_arn,
            "allocationStrategy": "SPOT_PRICE_CAPACITY_OPTIMIZED" if is_spot else "BEST_FIT_PROGRESSIVE",
        }
    return resources


def command_of(config: AwsHpcConfig, pinned: Mapping[str, str]) -> list[str]:
    """Return the command of the job definition; a parameter names the module. Raises UsageError."""
    requirements = requirements_of(
        "batch_python_requirements", config.batch_python_requirements, pinned if config.batch_image is None else {}
    )
    if not requirements:
        return ["python", "-m", f"Ref::{MODULE}"]
    return ["sh", "-c", f'{pip_install(requirements)} && exec python -m "$0"', f"Ref::{MODULE}"]


def job_definition(
    config: AwsHpcConfig, pinned: Mapping[str, str], roles: Mapping[str, str], log_group: str, network: Network
) -> Fields:
    """Return what RegisterJobDefinition takes, without name and tags.

    pinned: what the default image installs, by name. roles: ARNs of `execution` and `job`. network: for Fargate.
    """
    container: Fields = {
        "image": image_of(config),
        "command": command_of(config, pinned),
        "executionRoleArn": roles["execution"],
        "jobRoleArn": roles["job"],
        "resourceRequirements": [
            {"type": "VCPU", "value": str(config.batch_cpu)},
            {"type": "MEMORY", "value": str(config.batch_memory * 1024)},
        ],
        "logConfiguration": log_configuration(log_group, config.aws_region),
        # An init process reaps what tasks leave behind, and ends at SIGTERM also while pip installs.
        "linuxParameters": {"initProcessEnabled": True},
    }
    if is_fargate(config):
        container["networkConfiguration"] = {"assignPublicIp": "ENABLED" if network.is_public else "DISABLED"}
    return {
        "type": "container",
        "platformCapabilities": ["FARGATE" if is_fargate(config) else "EC2"],
        "parameters": {MODULE: JOB_MODULE},
        "containerProperties": container,
        "propagateTags": True,
    }


# -- the resources


class Bucket(Resource):
    """The bucket that calls and results pass through: encrypted, not public, with objects that expire."""

    shows_changes_apart = True

    def __init__(self, account: Account, config: AwsHpcConfig) -> None:
        what = f"bucket {config.s3_bucket}"
        super().__init__(account, what, creation=f"{what}, whose objects expire after {EXPIRY_DAYS} days")
        self._name = config.s3_bucket
        self._prefix = config.s3_prefix
        self._region = config.aws_region
        self._s3 = account.client("s3")

    def describe(self) -> Fields | None:
        try:
            self._s3.call("HeadBucket", Bucket=self._name)
        except AwsError as error:
            if error.code == "403":
                raise UsageError(
                    f"the bucket {self._name!r} belongs to another account, or you may not look at it: names of "
                    "buckets are unique in the whole world; choose another s3_bucket"
                ) from error
            if error.code not in ("404", "NoSuchBucket", "NotFound"):
                raise
            return None
        return self._get("GetBucketTagging", "NoSuchTagSet")

    def tags(self, found: Fields) -> Iterable[Mapping[str, str]]:
        tags: Iterable[Mapping[str, str]] = found.get("TagSet", [])
        return tags

    def changes(self, found: Fields) -> Sequence[Change]:
        if self.is_ours(found) and not self._expires():
            return [(f"expiry of the {self.what}: {EXPIRY_DAYS} days below {self._prefix}/", self._configure)]
        return ()

    def exists(self, found: Fields) -> None:
        super().exists(found)
        if not self.is_ours(found) and not self._expires():
            self.account.line(
                "note",
                f"no rule of the bucket {self._name} removes old objects below {self._prefix}/: give it one, "
                "for what a manager that was killed has left",
            )

    def create(self) -> None:
        where = {} if self._region == OLDEST_REGION else {"LocationConstraint": self._region}
        self._s3.call("CreateBucket", Bucket=self._name, **({"CreateBucketConfiguration": where} if where else {}))
        # The tag comes first: what fails after it is corrected by the next setup, or removed by teardown.
        tags = {"TagSet": [{"Key": MANAGED_TAG, "Value": "true"}]}
        self._s3.call("PutBucketTagging", Bucket=self._name, Tagging=tags)
        self._configure()

    def in_use(self, _: Fields) -> str:
        foreign = next((key for key in self._keys() if not key.startswith(f"{self._prefix}/")), None)
        return "" if foreign is None else f"{foreign} is in it, and not below {self._prefix}/"

    def removal(self, _: Fields) -> str:
        return f"{self.what} with its objects"

    def delete(self, _: Fields) -> None:
        keys = self._keys()
        for at in range(0, len(keys), DELETED_AT_ONCE):
            batch = [{"Key": key} for key in keys[at : at + DELETED_AT_ONCE]]
            self._s3.call("DeleteObjects", Bucket=self._name, Delete={"Objects": batch, "Quiet": True})
        self._s3.call("DeleteBucket", Bucket=self._name)

    def _configure(self) -> None:
        """Configure the bucket; the rules, which setup looks for, come last."""
        name = self._name
        self._s3.call("PutPublicAccessBlock", Bucket=name, PublicAccessBlockConfiguration=NO_PUBLIC_ACCESS)
        self._s3.call("PutBucketEncryption", Bucket=name, ServerSideEncryptionConfiguration=ENCRYPTION)
        rule = {
            "ID": RULE_ID,
            "Status": "Enabled",
            "Filter": {"Prefix": f"{self._prefix}/"},
            "Expiration": {"Days": EXPIRY_DAYS},
            "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1},
        }
        rules = [*(other for other in self._rules() if other.get("ID") != RULE_ID), rule]
        self._s3.call("PutBucketLifecycleConfiguration", Bucket=name, LifecycleConfiguration={"Rules": rules})

    def _expires(self) -> bool:
        return any(rule.get("Status") == "Enabled" and self._covers(rule) for rule in self._rules())

    def _covers(self, rule: Fields) -> bool:
        prefix = (rule.get("Filter") or {}).get("Prefix", rule.get("Prefix"))
        return "Expiration" in rule and prefix is not None and f"{self._prefix}/".startswith(prefix)

    def _rules(self) -> list[Fields]:
        rules: list[Fields] = self._get("GetBucketLifecycleConfiguration", "NoSuchLifecycleConfiguration").get(
            "Rules", []
        )
        return rules

    def _get(self, operation: str, absent: str) -> Fields:
        return none_if_absent(lambda: self._s3.call(operation, Bucket=self._name), absent) or {}

    def _keys(self) -> list[str]:
        pages = self._s3.pages("ListObjectsV2", Bucket=self._name)
        return [str(entry["Key"]) for page in pages for entry in page.get("Contents", [])]


class InstanceProfile(Resource):
    """The instance profile of EC2 instances that jobs run on; it has the name of their role."""

    is_optional = True

    def __init__(self, account: Account, name: str) -> None:
        super().__init__(account, f"instance profile {name}")
        self._name = name
        self._iam = account.client("iam")

    def arn(self) -> str:
        """Return its ARN, also before it exists."""
        found = self.describe()
        if found is not None:
            return str(found["Arn"])
        return f"arn:{self.account.partition}:iam::{self.account.number}:instance-profile/{self._name}"

    def describe(self) -> Fields | None:
        names = {"InstanceProfileName": self._name}
        return none_if_absent(lambda: self._iam.call("GetInstanceProfile", **names)["InstanceProfile"])

    def tags(self, found: Fields) -> Iterable[Mapping[str, str]]:
        tags: Iterable[Mapping[str, str]] = found.get("Tags", [])
        return tags

    def changes(self, found: Fields) -> Sequence[Change]:
        return () if found["Roles"] else [(f"{self.what}: its role", self._add_role)]

    def create(self) -> None:
        tags = [{"Key": MANAGED_TAG, "Value": "true"}]
        self._iam.call("CreateInstanceProfile", InstanceProfileName=self._name, Tags=tags)
        self._add_role()

    def delete(self, found: Fields) -> None:
        for role in found["Roles"]:
            self._iam.call("RemoveRoleFromInstanceProfile", InstanceProfileName=self._name, RoleName=role["RoleName"])
        self._iam.call("DeleteInstanceProfile", InstanceProfileName=self._name)

    def _add_role(self) -> None:
        self._iam.call("AddRoleToInstanceProfile", InstanceProfileName=self._name, RoleName=self._name)


class ServiceRole(Resource):
    """The role that Batch itself acts in, which an account has once. It is never removed."""

    is_optional = True
    foreign_note = ""

    def __init__(self, account: Account) -> None:
        super().__init__(account, f"role {SERVICE_ROLE} for AWS Batch itself, one for the whole account")
        self._iam = account.client("iam")
        self._created_arn = ""

    def arn(self) -> str:
        """Return its ARN, also before it exists."""
        if self._created_arn:
            return self._created_arn
        if (found := self.describe()) is not None:
            return str(found["Arn"])
        path = f"aws-service-role/{BATCH_SERVICE}/{SERVICE_ROLE}"
        return f"arn:{self.account.partition}:iam::{self.account.number}:role/{path}"

    def describe(self) -> Fields | None:
        return none_if_absent(lambda: self._iam.call("GetRole", RoleName=SERVICE_ROLE)["Role"])

    def create(self) -> None:
        answer = self._iam.call("CreateServiceLinkedRole", AWSServiceName=BATCH_SERVICE)
        self._created_arn = str(answer["Role"]["Arn"])

    def delete(self, _: Fields) -> None:
        raise AssertionError("other users of the account need it")


class JobDefinition(Resource):
    """The job definition: the newest revision counts, and teardown removes all."""

    def __init__(self, account: Account, name: str, wanted: Callable[[], Fields]) -> None:
        super().__init__(account, f"job definition {name}")
        self._name = name
        self._wanted = wanted
        self._batch = account.client("batch")

    def describe(self) -> Fields | None:
        return max(self.describe_all(), key=lambda revision: int(revision["revision"]), default=None)

    def describe_all(self) -> list[Fields]:
        pages = self._batch.pages("DescribeJobDefinitions", jobDefinitionName=self._name, status="ACTIVE")
        found = [revision for page in pages for revision in page["jobDefinitions"]]
        return sorted(found, key=lambda revision: int(revision["revision"]))

    def suffix(self, found: Fields) -> str:
        return f":{found['revision']}"

    def detail(self, found: Fields) -> str:
        return f":{found['revision']} with {found['containerProperties']['image']}"

    def changes(self, found: Fields) -> Sequence[Change]:
        changed = changed_parts(found, self._wanted())
        return [(f"{self.what}: {', '.join(changed)}", self.create)] if changed else ()

    def create(self) -> None:
        tags = {MANAGED_TAG: "true"}
        self._batch.call("RegisterJobDefinition", jobDefinitionName=self._name, tags=tags, **self._wanted())

    def delete(self, found: Fields) -> None:
        self._batch.call("DeregisterJobDefinition", jobDefinition=found["jobDefinitionArn"])


def changed_parts(current: Mapping[str, Any], wanted: Fields) -> Sequence[str]:
    """Return the parts of a described definition that are not as wanted."""
    changed = []
    for name, value in wanted.items():
        found = current.get(name)
        if name == "containerProperties":
            container = found or {}
            changed += [part for part, wish in value.items() if not _covers(container.get(part), wish)]
        elif not _covers(found, value):
            changed.append(name)
    return sorted(changed)


def _covers(found: object, wanted: object) -> bool:
    """Tell whether a described value has all that is wanted; the service adds defaults of its own."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(_covers(found.get(key), value) for key, value in wanted.items())
    return found == wanted
