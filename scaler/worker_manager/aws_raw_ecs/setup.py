"""`scaler_worker_manager aws_raw_ecs setup|show|teardown`: cluster, task definition, roles and log group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from scaler.worker_manager.aws.calls import AwsError
from scaler.worker_manager.aws.setup import (
    MANAGED_TAG,
    TASKS_SERVICE,
    Account,
    Change,
    Fields,
    IamRole,
    Resource,
    default_subnets,
    execution_statements,
    log_configuration,
    log_group,
    role_name,
    run,
)
from scaler.worker_manager.aws_raw_ecs import NOT_GIVEN, AwsRawEcsConfig
from scaler.worker_manager.aws_raw_ecs.definition import describe_definition, ensure_definition, image_of, registered

if TYPE_CHECKING:
    from scaler.config.commands import Verb

PROVIDERS = ("FARGATE", "FARGATE_SPOT")


def provision(config: AwsRawEcsConfig, verb: Verb, dry_run: bool, say: Callable[[str], None]) -> int:
    """Create, list or remove what the manager needs; return the exit code. Raises AwsError, UsageError."""
    account = Account(config, say, dry_run=dry_run)
    group, region = f"/scaler/{config.ecs_task_definition}", config.aws_region
    group_arn = partial(account.arn, "logs", f"log-group:{group}", region)
    role = partial(role_name, config.ecs_task_definition, region)
    execution = IamRole(
        account,
        role("execution"),
        TASKS_SERVICE,
        "ECS, to pull the image and to write logs",
        lambda: execution_statements(image_of(config), group_arn(), account.partition),
    )
    purpose = "the tasks, which may do nothing on AWS unless you add it"
    tasks = IamRole(account, role("task"), TASKS_SERVICE, purpose)
    cluster, logs, roles = _cluster(account, config), log_group(account, group), [execution.resource, tasks.resource]
    definition = _definition(account, config, execution, tasks, log_configuration(group, region))
    try:
        code = run(verb, [cluster, logs, *roles, definition], [cluster, definition, *roles, logs])
        if verb != "teardown" and tuple(config.ecs_subnets) == (NOT_GIVEN,):
            _suggest_subnets(account)
        return code
    finally:
        account.close()


def _cluster(account: Account, config: AwsRawEcsConfig) -> Resource:
    name, wanted = config.ecs_cluster, config.ecs_capacity_provider

    def describe() -> Fields | None:
        found = account.call("ecs", "DescribeClusters", clusters=[name], include=["TAGS"])["clusters"]
        return next((cluster for cluster in found if cluster["status"] == "ACTIVE"), None)

    def create() -> None:
        tags = [{"key": MANAGED_TAG, "value": "true"}]
        account.call("ecs", "CreateCluster", clusterName=name, capacityProviders=list(PROVIDERS), tags=tags)

    def changes(found: Fields) -> Sequence[Change]:
        attached = list(found.get("capacityProviders", []))
        attach = partial(
            account.call,
            "ecs",
            "PutClusterCapacityProviders",
            cluster=name,
            capacityProviders=[*attached, wanted],
            defaultCapacityProviderStrategy=found.get("defaultCapacityProviderStrategy", []),
        )
        return [] if wanted in attached else [(f"capacity providers of the cluster {name}: {wanted} attached", attach)]

    def detail(found: Fields) -> str:
        providers = ", ".join(found.get("capacityProviders", [])) or "no capacity providers"
        return f": {found['runningTasksCount']} tasks running, {found['pendingTasksCount']} starting; {providers}"

    def in_use(found: Fields) -> str:
        count = found["runningTasksCount"] + found["pendingTasksCount"]
        return f"{count} tasks are in it: stop their worker manager first" if count else ""

    return Resource(
        account=account,
        what=f"cluster {name}",
        describe=describe,
        create=create,
        delete=lambda _: account.call("ecs", "DeleteCluster", cluster=name),
        changes=changes,
        detail=detail,
        in_use=in_use,
        foreign_note="made by others",
        changes_foreign=True,  # tasks need the provider
        shows_changes_apart=True,
    )


def _definition(
    account: Account, config: AwsRawEcsConfig, execution: IamRole, tasks: IamRole, logging: Fields
) -> Resource:
    family, what = config.ecs_task_definition, f"task definition {config.ecs_task_definition}"

    def ensured(*, dry_run: bool) -> Fields | None:
        extras = {"executionRoleArn": execution.arn(), "taskRoleArn": tasks.arn(), "logConfiguration": logging}
        made = ensure_definition(config, account.client("ecs"), extras, lambda _: None, dry_run=dry_run)
        return made.definition if made.is_new else None

    def describe() -> Fields | None:
        current, tags = describe_definition(family, account.client("ecs"))
        return None if current is None else {**current, "tags": tags}

    def describe_all() -> list[Fields]:
        pages = account.pages("ecs", "ListTaskDefinitions", familyPrefix=family, status="ACTIVE")
        arns = [arn for page in pages for arn in page["taskDefinitionArns"]]
        mine = [arn for arn in arns if arn.rpartition("/")[2].rpartition(":")[0] == family]
        answers = [account.call("ecs", "DescribeTaskDefinition", taskDefinition=arn, include=["TAGS"]) for arn in mine]
        return [{**answer["taskDefinition"], "tags": answer.get("tags", [])} for answer in answers]

    def register() -> None:
        account.when_roles_are_known(lambda: ensured(dry_run=False))

    def changes(found: Fields) -> Sequence[Change]:
        wanted = ensured(dry_run=True)
        return [] if wanted is None else [(f"{what}: {_differences(registered(found), wanted)}", register)]

    def detail(found: Fields) -> str:
        images = ", ".join(container["image"] for container in found["containerDefinitions"])
        return f":{found['revision']} with {images}"

    return Resource(
        account=account,
        what=what,
        describe=describe,
        describe_all=describe_all,
        create=register,
        delete=lambda found: account.call("ecs", "DeregisterTaskDefinition", taskDefinition=found["taskDefinitionArn"]),
        changes=changes,
        suffix=lambda found: f":{found['revision']}",
        detail=detail,
        foreign_note="",
        changes_foreign=True,  # users add to it what they need, and the settings stay those of the file
    )


def _differences(current: Fields, wanted: Fields) -> str:
    names = {
        name for name in wanted if name not in ("containerDefinitions", "family") and current.get(name) != wanted[name]
    }
    for before, after in zip(current["containerDefinitions"], wanted["containerDefinitions"], strict=True):
        names |= {name for name in after if before.get(name) != after[name]}
    return ", ".join(sorted(names))


def _suggest_subnets(account: Account) -> None:
    try:
        found = default_subnets(account)
    except AwsError as error:
        account.line("note", f"cannot list subnets to suggest: {error}")
        return
    if found:
        names = ", ".join(f'"{name}"' for name in sorted(subnet["SubnetId"] for subnet in found))
        public = ", ecs_assign_public_ip = true" if all(subnet.get("MapPublicIpOnLaunch") for subnet in found) else ""
        account.line("note", f"subnets of the default VPC: ecs_subnets = [{names}]{public}")
