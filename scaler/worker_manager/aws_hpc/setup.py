"""`scaler_worker_manager aws_hpc setup|show|teardown`: bucket, compute environment, queue, job definition and roles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING

from scaler._version import __version__
from scaler.errors import UsageError
from scaler.worker_manager.aws.session import AwsCalls, AwsClient
from scaler.worker_manager.aws.setup_tools import (
    MANAGED_TAG,
    NOT_OURS,
    Steps,
    describe_role,
    ensure_log_group,
    ensure_role,
    remove_log_group,
    remove_role,
    role_name,
    show_log_group,
    show_role,
)
from scaler.worker_manager.aws_hpc.bucket import Bucket
from scaler.worker_manager.aws_hpc.environment import PAUSE_SECONDS, Environment
from scaler.worker_manager.aws_hpc.hosts import Hosts
from scaler.worker_manager.aws_hpc.requests import Fields
from scaler.worker_manager.aws_hpc.settings import AwsHpcConfig
from scaler.worker_manager.aws_hpc.wanted import (
    Network,
    changed_parts,
    compute_resources,
    is_fargate,
    job_definition,
    job_role,
    pull_role,
)

if TYPE_CHECKING:
    from scaler.config.commands import Verb

BATCH_SERVICE = "batch.amazonaws.com"
SERVICE_ROLE = "AWSServiceRoleForBatch"
ROLES = ("execution", "job", "hosts")


class _Clients(dict[str, AwsCalls]):
    """Clients of services, made when they are first needed: that takes a while for some."""

    def __init__(self, config: AwsHpcConfig) -> None:
        super().__init__()
        self._config = config

    def __missing__(self, service: str) -> AwsCalls:
        made = self[service] = AwsClient(self._config, service)
        return made


@dataclass(frozen=True, slots=True)
class _Place:
    """Where it is done, and what all of it is called."""

    config: AwsHpcConfig
    steps: Steps
    clients: _Clients
    pause_seconds: float

    @property
    def log_group(self) -> str:
        return f"/scaler/{self.config.job_definition}"

    @property
    def bucket(self) -> Bucket:
        return Bucket(self.config, self.clients["s3"], self.steps)

    @property
    def environment(self) -> Environment:
        return Environment(self.config, self.clients["batch"], self.steps, pause_seconds=self.pause_seconds)

    @property
    def hosts(self) -> Hosts:
        return Hosts(self.role("hosts"), self.clients["iam"], self.steps)

    def role(self, purpose: str) -> str:
        return role_name(self.config.job_definition, self.config.aws_region, purpose)


def provision(
    config: AwsHpcConfig,
    verb: Verb,
    dry_run: bool,
    say: Callable[[str], None],
    *,
    pause_seconds: float = PAUSE_SECONDS,
) -> int:
    """Make, list or remove what the manager needs; return the exit code. Raises AwsError, UsageError."""
    if ":" in config.job_definition:
        raise UsageError(
            f"job_definition = {config.job_definition!r} names a revision: {verb} is for a definition by its name alone"
        )
    clients = _Clients(config)
    place = _Place(config, Steps(say, dry_run=dry_run), clients, pause_seconds)
    try:
        match verb:
            case "setup":
                _setup(place)
            case "show":
                _show(place)
            case "teardown":
                return _teardown(place)
    finally:
        for client in clients.values():
            client.close()
    return 0


# -- setup


def _setup(place: _Place) -> None:
    config, steps, clients = place.config, place.steps, place.clients
    iam = clients["iam"]
    identity = clients["sts"].call("GetCallerIdentity")
    account, partition = str(identity["Account"]), str(identity["Arn"]).split(":")[1]
    network = _network(place)
    place.bucket.ensure()
    ensure_log_group(clients["logs"], steps, place.log_group)
    group_arn = f"arn:{partition}:logs:{config.aws_region}:{account}:log-group:{place.log_group}"
    execution = pull_role(place.role("execution"), config, group_arn, partition)
    roles = {
        "execution": ensure_role(iam, steps, execution, account, partition),
        "job": ensure_role(iam, steps, job_role(place.role("job"), config, partition), account, partition),
    }
    profile = "" if is_fargate(config) else place.hosts.ensure(account, partition)
    service_role = _ensure_service_role(place, account, partition)
    place.environment.ensure(compute_resources(config, network, profile), service_role)
    pinned = {"scaler": __version__, "cloudpickle": version("cloudpickle")}
    _ensure_definition(place, job_definition(config, pinned, roles, place.log_group, network))


def _network(place: _Place) -> Network:
    """Return where jobs run: what is configured, and otherwise the default VPC. Raises UsageError, AwsError."""
    config, ec2 = place.config, place.clients["ec2"]
    if config.batch_subnets:
        found = ec2.call("DescribeSubnets", SubnetIds=list(config.batch_subnets))["Subnets"]
    else:
        filters = [{"Name": "default-for-az", "Values": ["true"]}]
        found = [subnet for page in ec2.pages("DescribeSubnets", Filters=filters) for subnet in page["Subnets"]]
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


def _ensure_service_role(place: _Place, account: str, partition: str) -> str:
    """Make the role that Batch itself acts in, which an account has once, and return its ARN. It is never removed."""
    iam, what = place.clients["iam"], f"role {SERVICE_ROLE} for AWS Batch itself, one for the whole account"
    found = describe_role(iam, SERVICE_ROLE)
    if found is not None:
        place.steps.exists(what)
        return str(found["Arn"])
    arn = f"arn:{partition}:iam::{account}:role/aws-service-role/{BATCH_SERVICE}/{SERVICE_ROLE}"

    def create() -> None:
        nonlocal arn
        arn = str(iam.call("CreateServiceLinkedRole", AWSServiceName=BATCH_SERVICE)["Role"]["Arn"])

    place.steps.create(what, create)
    return arn


def _ensure_definition(place: _Place, wanted: Fields) -> None:
    name = place.config.job_definition
    revisions = _definitions(place)
    register = partial(
        place.clients["batch"].call,
        "RegisterJobDefinition",
        jobDefinitionName=name,
        tags={MANAGED_TAG: "true"},
        **wanted,
    )
    if not revisions:
        place.steps.create(f"job definition {name}", register)
        return
    newest = revisions[-1]
    what = f"job definition {name}:{newest['revision']}"
    if not _has_tag(newest):
        place.steps.exists(what, NOT_OURS)
    elif changed := changed_parts(newest, wanted):
        place.steps.change(f"job definition {name}: {', '.join(changed)}", register)
    else:
        place.steps.exists(what)


def _definitions(place: _Place) -> list[Fields]:
    """Return the active revisions, the newest last."""
    pages = place.clients["batch"].pages(
        "DescribeJobDefinitions", jobDefinitionName=place.config.job_definition, status="ACTIVE"
    )
    found = [revision for page in pages for revision in page["jobDefinitions"]]
    return sorted(found, key=lambda revision: int(revision["revision"]))


def _has_tag(found: Fields) -> bool:
    return MANAGED_TAG in (found.get("tags") or {})


# -- show


def _show(place: _Place) -> None:
    place.bucket.show()
    show_log_group(place.clients["logs"], place.steps, place.log_group)
    for purpose in ROLES[: 2 if is_fargate(place.config) else 3]:
        show_role(place.clients["iam"], place.steps, place.role(purpose))
    place.environment.show()
    revisions = _definitions(place)
    name = place.config.job_definition
    if not revisions:
        place.steps.missing(f"job definition {name}")
        return
    newest = revisions[-1]
    image = newest["containerProperties"]["image"]
    owner = "" if _has_tag(newest) else NOT_OURS
    place.steps.exists(f"job definition {name}:{newest['revision']} with {image}", owner)


# -- teardown


def _teardown(place: _Place) -> int:
    """Remove all that is ours, what uses the rest first; what is in use is kept, and makes the exit code 1."""
    iam = place.clients["iam"]
    if not place.environment.remove():
        return 1
    _remove_definitions(place)
    place.hosts.remove()
    for purpose in ("execution", "job"):
        remove_role(iam, place.steps, place.role(purpose))
    remove_log_group(place.clients["logs"], place.steps, place.log_group)
    return 0 if place.bucket.remove() else 1


def _remove_definitions(place: _Place) -> None:
    revisions = _definitions(place)
    if not revisions:
        place.steps.missing(f"job definition {place.config.job_definition}")
    for revision in revisions:
        what = f"job definition {revision['jobDefinitionName']}:{revision['revision']}"
        if _has_tag(revision):
            arn = revision["jobDefinitionArn"]
            remove = partial(place.clients["batch"].call, "DeregisterJobDefinition", jobDefinition=arn)
            place.steps.remove(what, remove)
        else:
            place.steps.keep(what, NOT_OURS)
