"""`scaler_worker_manager aws_raw_ecs setup|show|teardown`: cluster, task definition, roles and log group."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from scaler.worker_manager.aws.errors import AwsError
from scaler.worker_manager.aws.session import AwsCalls, AwsClient, aws_session
from scaler.worker_manager.aws.setup_tools import (
    MANAGED_TAG,
    NOT_OURS,
    Document,
    Role,
    Steps,
    ensure_log_group,
    ensure_role,
    is_ours,
    remove_log_group,
    remove_role,
    role_name,
    show_log_group,
    show_role,
)
from scaler.worker_manager.aws_raw_ecs.definition import Fields, image_of, registered
from scaler.worker_manager.aws_raw_ecs.launches import describe_definition, ensure_definition
from scaler.worker_manager.aws_raw_ecs.settings import AwsRawEcsConfig

if TYPE_CHECKING:
    from scaler.config.commands import Verb

SERVICES = ("ecs", "iam", "logs", "sts")
PROVIDERS = ("FARGATE", "FARGATE_SPOT")
SERVICE = "ecs-tasks.amazonaws.com"
ROLE_SECONDS = 30.0
"""A role that was made just now is not known everywhere at once."""
ROLE_PAUSE_SECONDS = 2.0

_ECR = re.compile(r"(\d{12})\.dkr\.ecr\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?/([^:@]+)")


@dataclass(frozen=True, slots=True)
class _Place:
    """Where it is done, and what all of it is called."""

    config: AwsRawEcsConfig
    steps: Steps
    ecs: AwsCalls
    iam: AwsCalls
    logs: AwsCalls
    sts: AwsCalls

    @property
    def log_group(self) -> str:
        return f"/scaler/{self.config.ecs_task_definition}"

    def role(self, purpose: str) -> str:
        return role_name(self.config.ecs_task_definition, self.config.aws_region, purpose)


def provision(config: AwsRawEcsConfig, verb: Verb, dry_run: bool, say: Callable[[str], None]) -> int:
    """Make, list or remove what the manager needs; return the exit code. Raises AwsError, UsageError."""
    from scaler.worker_manager.aws_raw_ecs.settings import NOT_GIVEN  # noqa: PLC0415 (a manager's process does without the models)

    session = aws_session(config)
    ecs, iam, logs, sts = clients = [AwsClient(config, name, session=session) for name in SERVICES]
    place = _Place(config, Steps(say, dry_run=dry_run), ecs, iam, logs, sts)
    try:
        match verb:
            case "setup":
                _setup(place)
            case "show":
                _show(place)
            case "teardown":
                return _teardown(place)
        if tuple(config.ecs_subnets) == (NOT_GIVEN,):
            clients.append(AwsClient(config, "ec2", session=session))
            _suggest_subnets(clients[-1], place.steps)
    finally:
        for client in clients:
            client.close()
    return 0


def execution_role(name: str, image: str, log_group_arn: str, partition: str) -> Role:
    """Return the role by which ECS itself pulls the image and writes the logs of a task."""
    statements: list[Document] = [
        {
            "Effect": "Allow",
            "Action": ["logs:CreateLogStream", "logs:PutLogEvents"],
            "Resource": f"{log_group_arn}:*",
        }
    ]
    if found := _ECR.match(image):
        account, region, repository = found.groups()
        statements += [
            {"Effect": "Allow", "Action": "ecr:GetAuthorizationToken", "Resource": "*"},
            {
                "Effect": "Allow",
                "Action": ["ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"],
                "Resource": f"arn:{partition}:ecr:{region}:{account}:repository/{repository}",
            },
        ]
    return Role(name, SERVICE, "ECS, to pull the image and to write logs", statements)


def task_role(name: str) -> Role:
    """Return the role of the tasks themselves: they may do nothing until somebody lets them."""
    return Role(name, SERVICE, "the tasks, which may do nothing on AWS unless you add it")


# -- setup


def _setup(place: _Place) -> None:
    config, steps = place.config, place.steps
    account, partition = _account(place.sts)
    _ensure_cluster(place)
    ensure_log_group(place.logs, steps, place.log_group)
    log_group_arn = f"arn:{partition}:logs:{config.aws_region}:{account}:log-group:{place.log_group}"
    execution = execution_role(place.role("execution"), image_of(config), log_group_arn, partition)
    extras: Fields = {
        "executionRoleArn": ensure_role(place.iam, steps, execution, account, partition),
        "taskRoleArn": ensure_role(place.iam, steps, task_role(place.role("task")), account, partition),
        "logConfiguration": {
            "logDriver": "awslogs",
            "options": {
                "awslogs-group": place.log_group,
                "awslogs-region": config.aws_region,
                "awslogs-stream-prefix": "scaler",
            },
        },
    }
    _ensure_definition(place, extras)


def _account(sts: AwsCalls) -> tuple[str, str]:
    """Return the account, and the part of AWS that it is in: `aws`, `aws-cn`."""
    answer = sts.call("GetCallerIdentity")
    return answer["Account"], answer["Arn"].split(":")[1]


def _ensure_cluster(place: _Place) -> None:
    name = place.config.ecs_cluster
    cluster = _describe_cluster(place)
    if cluster is None:
        tags = [{"key": MANAGED_TAG, "value": "true"}]
        place.steps.create(
            f"cluster {name}",
            lambda: place.ecs.call("CreateCluster", clusterName=name, capacityProviders=list(PROVIDERS), tags=tags),
        )
        return
    place.steps.exists(f"cluster {name}", "" if is_ours(cluster.get("tags", [])) else "made by others")
    attached = list(cluster.get("capacityProviders", []))
    wanted = place.config.ecs_capacity_provider
    if wanted not in attached:
        place.steps.change(
            f"capacity providers of the cluster {name}: {wanted} attached",
            lambda: place.ecs.call(
                "PutClusterCapacityProviders",
                cluster=name,
                capacityProviders=[*attached, wanted],
                defaultCapacityProviderStrategy=cluster.get("defaultCapacityProviderStrategy", []),
            ),
        )


def _describe_cluster(place: _Place) -> Fields | None:
    answer = place.ecs.call("DescribeClusters", clusters=[place.config.ecs_cluster], include=["TAGS"])
    active = [cluster for cluster in answer["clusters"] if cluster["status"] == "ACTIVE"]
    return active[0] if active else None


def _ensure_definition(place: _Place, extras: Fields) -> None:
    family = place.config.ecs_task_definition
    current, _ = describe_definition(family, place.ecs)
    ensured = ensure_definition(place.config, place.ecs, extras, _nothing, dry_run=True)
    if not ensured.is_new:
        place.steps.exists(f"task definition {family}:{ensured.definition['revision']}")
        return

    def register() -> None:
        deadline = time.monotonic() + ROLE_SECONDS
        while True:
            try:
                ensure_definition(place.config, place.ecs, extras, _nothing)
            except AwsError as error:
                if "role" not in error.message.lower() or time.monotonic() > deadline:
                    raise
                time.sleep(ROLE_PAUSE_SECONDS)
            else:
                return

    if current is None:
        place.steps.create(f"task definition {family}", register)
    else:
        place.steps.change(
            f"task definition {family}: {_differences(registered(current), ensured.definition)}", register
        )


def _differences(current: Fields, wanted: Fields) -> str:
    names = {
        name for name in wanted if name not in ("containerDefinitions", "family") and current.get(name) != wanted[name]
    }
    for before, after in zip(current["containerDefinitions"], wanted["containerDefinitions"], strict=True):
        names |= {name for name in after if before.get(name) != after[name]}
    return ", ".join(sorted(names))


def _nothing(_: str) -> None:
    """The step says it."""


# -- show


def _show(place: _Place) -> None:
    name, family = place.config.ecs_cluster, place.config.ecs_task_definition
    cluster = _describe_cluster(place)
    if cluster is None:
        place.steps.missing(f"cluster {name}")
    else:
        tasks = f"{cluster['runningTasksCount']} tasks running, {cluster['pendingTasksCount']} starting"
        providers = ", ".join(cluster.get("capacityProviders", [])) or "no capacity providers"
        place.steps.exists(f"cluster {name}: {tasks}; {providers}", _owner(cluster.get("tags", [])))
    show_log_group(place.logs, place.steps, place.log_group)
    for purpose in ("execution", "task"):
        show_role(place.iam, place.steps, place.role(purpose))
    current, tags = describe_definition(family, place.ecs)
    if current is None:
        place.steps.missing(f"task definition {family}")
    else:
        images = ", ".join(container["image"] for container in current["containerDefinitions"])
        place.steps.exists(f"task definition {family}:{current['revision']} with {images}", _owner(tags))


def _owner(tags: list[dict[str, str]]) -> str:
    return "" if is_ours(tags) else NOT_OURS


def _suggest_subnets(ec2: AwsCalls, steps: Steps) -> None:
    filters = [{"Name": "default-for-az", "Values": ["true"]}]
    try:
        found = [subnet for page in ec2.pages("DescribeSubnets", Filters=filters) for subnet in page["Subnets"]]
    except AwsError as error:
        steps.note(f"cannot list subnets to suggest: {error}")
        return
    if found:
        names = ", ".join(f'"{subnet["SubnetId"]}"' for subnet in sorted(found, key=lambda item: item["SubnetId"]))
        public = all(subnet.get("MapPublicIpOnLaunch") for subnet in found)
        steps.note(
            f"subnets of the default VPC: ecs_subnets = [{names}]{', ecs_assign_public_ip = true' if public else ''}"
        )


# -- teardown


def _teardown(place: _Place) -> int:
    """Remove all that is ours; what is in use is kept, and makes the exit code 1."""
    is_done = _remove_cluster(place)
    _remove_definitions(place)
    for purpose in ("execution", "task"):
        remove_role(place.iam, place.steps, place.role(purpose))
    remove_log_group(place.logs, place.steps, place.log_group)
    return 0 if is_done else 1


def _remove_cluster(place: _Place) -> bool:
    name = place.config.ecs_cluster
    cluster = _describe_cluster(place)
    if cluster is None:
        place.steps.missing(f"cluster {name}")
        return True
    if not is_ours(cluster.get("tags", [])):
        place.steps.keep(f"cluster {name}", NOT_OURS)
        return True
    tasks = cluster["runningTasksCount"] + cluster["pendingTasksCount"]
    if tasks:
        place.steps.keep(f"cluster {name}", f"{tasks} tasks are in it: stop their worker manager first")
        return False
    place.steps.remove(f"cluster {name}", lambda: place.ecs.call("DeleteCluster", cluster=name))
    return True


def _remove_definitions(place: _Place) -> None:
    family = place.config.ecs_task_definition
    pages = place.ecs.pages("ListTaskDefinitions", familyPrefix=family, status="ACTIVE")
    arns = [arn for page in pages for arn in page["taskDefinitionArns"]]
    mine = [arn for arn in arns if arn.rpartition("/")[2].rpartition(":")[0] == family]
    if not mine:
        place.steps.missing(f"task definition {family}")
    for arn in mine:
        what = f"task definition {arn.rpartition('/')[2]}"
        tags = place.ecs.call("DescribeTaskDefinition", taskDefinition=arn, include=["TAGS"]).get("tags", [])
        if is_ours(tags):
            place.steps.remove(what, partial(place.ecs.call, "DeregisterTaskDefinition", taskDefinition=arn))
        else:
            place.steps.keep(what, NOT_OURS)
