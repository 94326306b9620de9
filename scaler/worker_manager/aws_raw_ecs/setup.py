"""`scaler_worker_manager aws_raw_ecs setup|show|teardown`: cluster, task definition, roles and log group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from scaler.config.commands import Verb
from scaler.worker_manager.aws.calls import AwsError
from scaler.worker_manager.aws.setup import (
    MANAGED_TAG,
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
    role_name,
    run,
)
from scaler.worker_manager.aws_raw_ecs.definition import describe_definition, ensure_definition, image_of, registered
from scaler.worker_manager.aws_raw_ecs.settings import NOT_GIVEN, AwsRawEcsConfig

PROVIDERS = ("FARGATE", "FARGATE_SPOT")


def provision(config: AwsRawEcsConfig, verb: Verb, dry_run: bool, say: Callable[[str], None]) -> int:
    """Create, list or remove what the manager needs; return the exit code. Raises AwsError, UsageError."""
    account = Account(config, say, dry_run=dry_run)
    try:
        cluster = Cluster(account, config)
        log_group = LogGroup(account, f"/scaler/{config.ecs_task_definition}")
        execution = Role(
            account,
            role_name(config.ecs_task_definition, config.aws_region, "execution"),
            TASKS_SERVICE,
            "ECS, to pull the image and to write logs",
            lambda: execution_statements(image_of(config), log_group.arn(config.aws_region), account.partition),
        )
        tasks = Role(
            account,
            role_name(config.ecs_task_definition, config.aws_region, "task"),
            TASKS_SERVICE,
            "the tasks, which may do nothing on AWS unless you add it",
        )
        definition = TaskDefinition(account, config, execution, tasks, log_group)
        code = run(
            verb,
            [cluster, log_group, execution, tasks, definition],
            [cluster, definition, execution, tasks, log_group],
        )
        if verb != "teardown" and tuple(config.ecs_subnets) == (NOT_GIVEN,):
            _suggest_subnets(account)
        return code
    finally:
        account.close()


class Cluster(Resource):
    """The ECS cluster. Capacity providers are also attached to one that is not ours: tasks need them."""

    shows_changes_apart = True
    foreign_note = "made by others"

    def __init__(self, account: Account, config: AwsRawEcsConfig) -> None:
        super().__init__(account, f"cluster {config.ecs_cluster}")
        self._name = config.ecs_cluster
        self._provider = config.ecs_capacity_provider
        self._ecs = account.client("ecs")

    def describe(self) -> Fields | None:
        answer = self._ecs.call("DescribeClusters", clusters=[self._name], include=["TAGS"])
        return next((cluster for cluster in answer["clusters"] if cluster["status"] == "ACTIVE"), None)

    def create(self) -> None:
        tags = [{"key": MANAGED_TAG, "value": "true"}]
        self._ecs.call("CreateCluster", clusterName=self._name, capacityProviders=list(PROVIDERS), tags=tags)

    def changes(self, found: Fields) -> Sequence[Change]:
        attached = list(found.get("capacityProviders", []))
        if self._provider in attached:
            return ()

        def attach() -> None:
            self._ecs.call(
                "PutClusterCapacityProviders",
                cluster=self._name,
                capacityProviders=[*attached, self._provider],
                defaultCapacityProviderStrategy=found.get("defaultCapacityProviderStrategy", []),
            )

        return [(f"capacity providers of the {self.what}: {self._provider} attached", attach)]

    def detail(self, found: Fields) -> str:
        providers = ", ".join(found.get("capacityProviders", [])) or "no capacity providers"
        return f": {found['runningTasksCount']} tasks running, {found['pendingTasksCount']} starting; {providers}"

    def in_use(self, found: Fields) -> str:
        tasks = found["runningTasksCount"] + found["pendingTasksCount"]
        return f"{tasks} tasks are in it: stop their worker manager first" if tasks else ""

    def delete(self, _: Fields) -> None:
        self._ecs.call("DeleteCluster", cluster=self._name)


class TaskDefinition(Resource):
    """The task definition: the newest revision counts, and teardown removes all."""

    def __init__(
        self, account: Account, config: AwsRawEcsConfig, execution: Role, tasks: Role, log_group: LogGroup
    ) -> None:
        super().__init__(account, f"task definition {config.ecs_task_definition}")
        self._family = config.ecs_task_definition
        self._config = config
        self._roles = {"executionRoleArn": execution, "taskRoleArn": tasks}
        self._log_group = log_group
        self._ecs = account.client("ecs")

    def describe(self) -> Fields | None:
        current, tags = describe_definition(self._family, self._ecs)
        return None if current is None else {**current, "tags": tags}

    def describe_all(self) -> list[Fields]:
        pages = self._ecs.pages("ListTaskDefinitions", familyPrefix=self._family, status="ACTIVE")
        arns = [arn for page in pages for arn in page["taskDefinitionArns"]]
        mine = [arn for arn in arns if arn.rpartition("/")[2].rpartition(":")[0] == self._family]
        answers = [self._ecs.call("DescribeTaskDefinition", taskDefinition=arn, include=["TAGS"]) for arn in mine]
        return [{**answer["taskDefinition"], "tags": answer.get("tags", [])} for answer in answers]

    def tags(self, found: Fields) -> Iterable[Mapping[str, str]]:
        tags: Iterable[Mapping[str, str]] = found["tags"]
        return tags

    def ensure(self) -> None:
        # Users may add to the definition what they need, so a revision without the tag is extended like any other.
        current = self.describe()
        extras: Fields = {name: role.arn() for name, role in self._roles.items()}
        extras |= {"logConfiguration": log_configuration(self._log_group.name, self._config.aws_region)}
        ensured = ensure_definition(self._config, self._ecs, extras, _nothing, dry_run=True)

        def register() -> None:
            self.account.when_roles_are_known(lambda: ensure_definition(self._config, self._ecs, extras, _nothing))

        if not ensured.is_new:
            self.account.line("exists", f"{self.what}:{ensured.definition['revision']}")
        elif current is None:
            self.account.create(self.what, register)
        else:
            self.account.change(f"{self.what}: {_differences(registered(current), ensured.definition)}", register)

    def create(self) -> None:
        raise AssertionError("ensure registers revisions")

    def suffix(self, found: Fields) -> str:
        return f":{found['revision']}"

    def detail(self, found: Fields) -> str:
        images = ", ".join(container["image"] for container in found["containerDefinitions"])
        return f":{found['revision']} with {images}"

    def delete(self, found: Fields) -> None:
        self._ecs.call("DeregisterTaskDefinition", taskDefinition=found["taskDefinitionArn"])


def _differences(current: Fields, wanted: Fields) -> str:
    names = {
        name for name in wanted if name not in ("containerDefinitions", "family") and current.get(name) != wanted[name]
    }
    for before, after in zip(current["containerDefinitions"], wanted["containerDefinitions"], strict=True):
        names |= {name for name in after if before.get(name) != after[name]}
    return ", ".join(sorted(names))


def _nothing(_: str) -> None:
    """The line of the step says it."""


def _suggest_subnets(account: Account) -> None:
    try:
        found = default_subnets(account.client("ec2"))
    except AwsError as error:
        account.line("note", f"cannot list subnets to suggest: {error}")
        return
    if found:
        names = ", ".join(f'"{name}"' for name in sorted(subnet["SubnetId"] for subnet in found))
        public = ", ecs_assign_public_ip = true" if all(subnet.get("MapPublicIpOnLaunch") for subnet in found) else ""
        account.line("note", f"subnets of the default VPC: ecs_subnets = [{names}]{public}")
