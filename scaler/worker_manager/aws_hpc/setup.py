"""`scaler_worker_manager aws_hpc setup|show|teardown`: bucket, compute environment, queue, job definition and roles."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from scaler.errors import UsageError
from scaler.worker_manager.aws.calls import AwsError
from scaler.worker_manager.aws.containers import default_image, pip_install, requirements_of, versions
from scaler.worker_manager.aws.setup import (
    MANAGED,
    MANAGED_PAIRS,
    PAUSE_SECONDS,
    TASKS_SERVICE,
    Account,
    Change,
    Fields,
    IamRole,
    Resource,
    default_subnets,
    execution_statements,
    is_ours,
    log_configuration,
    log_group,
    role_name,
    run,
)
from scaler.worker_manager.aws_hpc import AwsHpcConfig
from scaler.worker_manager.aws_hpc.environment import environment_and_queue
from scaler.worker_manager.aws_hpc.requests import JOB_MODULE, MODULE
from scaler.worker_manager.aws_hpc.service import DELETED_AT_ONCE

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
        return _provision(account, config, verb)
    finally:
        account.close()


def _provision(account: Account, config: AwsHpcConfig, verb: Verb) -> int:
    network = cache(lambda: network_of(account, config))
    if verb == "setup":
        network()  # what is wrong with it is reported before anything is created
    group, region = f"/scaler/{config.job_definition}", config.aws_region
    name = partial(role_name, config.job_definition, region)
    execution = IamRole(
        account,
        name("execution"),
        TASKS_SERVICE,
        "ECS, to pull the image and to write logs",
        lambda: execution_statements(
            image_of(config), account.arn("logs", f"log-group:{group}", region), account.partition
        ),
    )
    jobs = IamRole(
        account,
        name("job"),
        TASKS_SERVICE,
        "the jobs, to read calls and write results",
        lambda: job_statements(config, account.partition),
    )
    purpose = "the instances that jobs run on"
    host_role = IamRole(account, name("hosts"), HOSTS_SERVICE, purpose, policies=(HOSTS_POLICY,))
    profile, profile_arn = _instance_profile(account, host_role.name)
    service_role, service_role_arn = _service_role(account)

    def resources() -> Fields:
        return compute_resources(config, network(), "" if is_fargate(config) else profile_arn())

    def definition_fields() -> Fields:
        roles = {"execution": execution.arn(), "job": jobs.arn()}
        return job_definition(config, versions(), roles, group, network())

    environment, queue = environment_and_queue(account, config.job_queue, resources, service_role_arn)
    bucket, logs = _bucket(account, config), log_group(account, group)
    definition, roles = _definition(account, config, definition_fields), [execution.resource, jobs.resource]
    hosts = [] if is_fargate(config) else [host_role.resource, profile]
    if verb == "teardown":
        if not queue.teardown():
            return 1  # the jobs in the queue use all the rest
        hosts = [profile, replace(host_role.resource, is_quiet=True)]  # of an earlier setup for instances
    return run(
        verb,
        [bucket, logs, *roles, *hosts, service_role, environment, queue, definition],
        [environment, definition, *hosts, *roles, logs, bucket],
    )


@dataclass(frozen=True, slots=True)
class Network:
    """Where jobs run. is_public: the subnets give public addresses, which a job there needs to pull its image."""

    subnets: tuple[str, ...]
    groups: tuple[str, ...]
    is_public: bool


def network_of(account: Account, config: AwsHpcConfig) -> Network:
    """Return where jobs run: in the configured subnets, or in the default VPC. Raises UsageError, AwsError."""
    if config.batch_subnets:
        found = account.call("ec2", "DescribeSubnets", SubnetIds=list(config.batch_subnets))["Subnets"]
    else:
        found = default_subnets(account)
    if not found:
        raise UsageError(f"there is no default VPC in {config.aws_region}: give batch_subnets")
    groups = tuple(config.batch_security_groups)
    if not groups:
        filters = [
            {"Name": "vpc-id", "Values": sorted({subnet["VpcId"] for subnet in found})},
            {"Name": "group-name", "Values": ["default"]},
        ]
        answer = account.call("ec2", "DescribeSecurityGroups", Filters=filters)
        groups = tuple(group["GroupId"] for group in answer["SecurityGroups"])
    subnets = tuple(sorted(subnet["SubnetId"] for subnet in found))
    return Network(subnets, groups, all(subnet.get("MapPublicIpOnLaunch") for subnet in found))


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


def _bucket(account: Account, config: AwsHpcConfig) -> Resource:
    """The bucket that calls and results pass through: encrypted, not public, with objects that expire."""
    name, below, what = config.s3_bucket, f"{config.s3_prefix}/", f"bucket {config.s3_bucket}"
    call = partial(account.call, "s3", Bucket=name)

    def describe() -> Fields | None:
        try:
            call("HeadBucket")
        except AwsError as error:
            if error.code == "403":
                raise UsageError(
                    f"the bucket {name!r} belongs to another account, or you may not look at it: names of buckets are "
                    "unique in the whole world; choose another s3_bucket"
                ) from error
            if error.code not in ("404", "NoSuchBucket", "NotFound"):
                raise
            return None
        return account.find("s3", "GetBucketTagging", "NoSuchTagSet", Bucket=name) or {}

    def rules() -> list[Fields]:
        absent = "NoSuchLifecycleConfiguration"
        found = account.find("s3", "GetBucketLifecycleConfiguration", absent, Bucket=name) or {}
        return list(found.get("Rules", []))

    def expires(rule: Fields) -> bool:
        prefix = (rule.get("Filter") or {}).get("Prefix", rule.get("Prefix"))
        covers = "Expiration" in rule and prefix is not None and below.startswith(prefix)
        return covers and rule.get("Status") == "Enabled"

    def configure() -> None:
        """Configure the bucket; the rules, which setup looks for, come last."""
        call("PutPublicAccessBlock", PublicAccessBlockConfiguration=NO_PUBLIC_ACCESS)
        call("PutBucketEncryption", ServerSideEncryptionConfiguration=ENCRYPTION)
        rule = {
            "ID": RULE_ID,
            "Status": "Enabled",
            "Filter": {"Prefix": below},
            "Expiration": {"Days": EXPIRY_DAYS},
            "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1},
        }
        wanted = [*(other for other in rules() if other.get("ID") != RULE_ID), rule]
        call("PutBucketLifecycleConfiguration", LifecycleConfiguration={"Rules": wanted})

    def changes(found: Fields) -> Sequence[Change]:
        if any(map(expires, rules())):
            return []
        if is_ours(found):
            return [(f"expiry of the {what}: {EXPIRY_DAYS} days below {below}", configure)]
        account.line(
            "note",
            f"no rule of the bucket {name} removes old objects below {below}: give it one, for what a manager that was "
            "killed has left",
        )
        return []

    def create() -> None:
        where = {"CreateBucketConfiguration": {"LocationConstraint": config.aws_region}}
        call("CreateBucket", **({} if config.aws_region == OLDEST_REGION else where))
        # The tag comes first: what fails after it is corrected by the next setup, or removed by teardown.
        call("PutBucketTagging", Tagging={"TagSet": MANAGED_PAIRS})
        configure()

    def keys() -> list[str]:
        pages = account.pages("s3", "ListObjectsV2", Bucket=name)
        return [str(entry["Key"]) for page in pages for entry in page.get("Contents", [])]

    def in_use(_: Fields) -> str:
        foreign = next((key for key in keys() if not key.startswith(below)), None)
        return "" if foreign is None else f"{foreign} is in it, and not below {below}"

    def delete(_: Fields) -> None:
        all_keys = keys()
        for at in range(0, len(all_keys), DELETED_AT_ONCE):
            batch = [{"Key": key} for key in all_keys[at : at + DELETED_AT_ONCE]]
            call("DeleteObjects", Delete={"Objects": batch, "Quiet": True})
        call("DeleteBucket")

    return Resource(
        account=account,
        what=what,
        creation=f"{what}, whose objects expire after {EXPIRY_DAYS} days",
        removal=f"{what} with its objects",
        describe=describe,
        create=create,
        delete=delete,
        changes=changes,
        in_use=in_use,
        changes_foreign=True,
        shows_changes_apart=True,
    )


def _instance_profile(account: Account, name: str) -> tuple[Resource, Callable[[], str]]:
    """The instance profile of EC2 instances that jobs run on, with the name of their role; and its ARN."""
    names, what = {"InstanceProfileName": name}, f"instance profile {name}"

    def describe() -> Fields | None:
        found = account.find("iam", "GetInstanceProfile", "NoSuchEntity", **names)
        return found and found["InstanceProfile"]

    def add_role() -> None:
        account.call("iam", "AddRoleToInstanceProfile", **names, RoleName=name)

    def create() -> None:
        account.call("iam", "CreateInstanceProfile", **names, Tags=MANAGED_PAIRS)
        add_role()

    def delete(found: Fields) -> None:
        for role in found["Roles"]:
            account.call("iam", "RemoveRoleFromInstanceProfile", **names, RoleName=role["RoleName"])
        account.call("iam", "DeleteInstanceProfile", **names)

    def arn() -> str:
        found = describe()
        return account.arn("iam", f"instance-profile/{name}") if found is None else str(found["Arn"])

    resource = Resource(
        account=account,
        what=what,
        describe=describe,
        create=create,
        delete=delete,
        changes=lambda found: [] if found["Roles"] else [(f"{what}: its role", add_role)],
        is_quiet=True,
    )
    return resource, arn


def _service_role(account: Account) -> tuple[Resource, Callable[[], str]]:
    """The role that Batch itself acts in, which an account has once and keeps; and its ARN."""
    created: list[str] = []

    def describe() -> Fields | None:
        found = account.find("iam", "GetRole", "NoSuchEntity", RoleName=SERVICE_ROLE)
        return found and found["Role"]

    def create() -> None:
        answer = account.call("iam", "CreateServiceLinkedRole", AWSServiceName=BATCH_SERVICE)
        created.append(str(answer["Role"]["Arn"]))

    def arn() -> str:
        found = None if created else describe()
        path = f"role/aws-service-role/{BATCH_SERVICE}/{SERVICE_ROLE}"
        return created[0] if created else account.arn("iam", path) if found is None else str(found["Arn"])

    what = f"role {SERVICE_ROLE} for AWS Batch itself, one for the whole account"
    resource = Resource(
        account=account, what=what, describe=describe, create=create, delete=str, foreign_note="", is_quiet=True
    )
    return resource, arn


def _definition(account: Account, config: AwsHpcConfig, wanted: Callable[[], Fields]) -> Resource:
    """The job definition: the newest revision counts, and teardown removes all."""
    name, what = config.job_definition, f"job definition {config.job_definition}"

    def describe_all() -> list[Fields]:
        pages = account.pages("batch", "DescribeJobDefinitions", jobDefinitionName=name, status="ACTIVE")
        found = [revision for page in pages for revision in page["jobDefinitions"]]
        return sorted(found, key=lambda revision: int(revision["revision"]))

    def register() -> None:
        account.call("batch", "RegisterJobDefinition", jobDefinitionName=name, tags=MANAGED, **wanted())

    def changes(found: Fields) -> Sequence[Change]:
        changed = changed_parts(found, wanted())
        return [(f"{what}: {', '.join(changed)}", register)] if changed else []

    return Resource(
        account=account,
        what=what,
        describe=lambda: next(reversed(describe_all()), None),
        describe_all=describe_all,
        create=register,
        delete=lambda found: account.call("batch", "DeregisterJobDefinition", jobDefinition=found["jobDefinitionArn"]),
        changes=changes,
        suffix=lambda found: f":{found['revision']}",
        detail=lambda found: f":{found['revision']} with {found['containerProperties']['image']}",
    )


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
