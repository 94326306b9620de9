"""`scaler_worker_manager aws_raw_ecs setup|show|teardown`: cluster, task definition, roles, and log group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial

from scaler.config.commands import Verb
from scaler.worker_manager.aws import package as packaging
from scaler.worker_manager.aws import resources
from scaler.worker_manager.aws.calls import Fields, with_region
from scaler.worker_manager.aws.resources import CredentialParameter
from scaler.worker_manager.aws.setup import MANAGED_TAG, Account, Change, Resource, run
from scaler.worker_manager.aws_raw_ecs import AwsRawEcsConfig
from scaler.worker_manager.aws_raw_ecs.backend import describe_definition, register, registered, wanted_definition
from scaler.worker_manager.backend import units_credential

PROVIDERS = ("FARGATE", "FARGATE_SPOT")
PURPOSE = "the tasks, to install packages and use the object storage's backend"


def provision(config: AwsRawEcsConfig, verb: Verb, dry_run: bool, say: Callable[[str], None]) -> int:
    config = with_region(config)
    family, bucket = config.ecs_task_definition, config.s3_bucket
    with closing(Account(config, verb, say, dry_run=dry_run)) as account:
        if verb == "setup":
            packaging.check_source(config.ecs_task_image, bucket, "ecs_task_image", "s3_bucket")
        logs = resources.LogGroup(account, f"/scaler/{family}")
        text = "" if verb == "teardown" else units_credential(config)
        credential = CredentialParameter(account, config, family, text)
        execution = resources.execution_role(account, family, config.ecs_task_image, logs, credential.arn)
        is_installed = config.ecs_task_image is None and bool(bucket)

        def statements() -> list[Fields]:
            packages = packaging.package_statements(bucket if is_installed else "", family, account.partition)
            return [*packages, *resources.backend_statements(config, account.partition)]

        def definition_extras() -> Fields:
            roles = {"executionRoleArn": execution.arn(), "taskRoleArn": tasks.arn()}
            return {**roles, "logConfiguration": logs.configuration(), "credential": credential.arn()}

        tasks = resources.IamRole(account, family, "task", resources.TASKS_SERVICE, PURPOSE, statements)
        cluster = Cluster(account, config.ecs_cluster, config.ecs_capacity_provider)
        definition = TaskDefinitionResource(account, config, definition_extras)
        packages = packaging.package_resources(
            account, config, config.event_loop, bucket, family, is_installed=is_installed
        )
        wanted = [cluster, *packages, logs, credential, execution, tasks, definition]
        return run(account, wanted, [cluster, definition, execution, tasks, credential, logs, *reversed(packages)])


class Cluster(Resource):
    """The ECS cluster. If Scaler did not create it, setup only attaches the capacity provider."""

    service, kind = "ecs", "cluster"
    changes_foreign = True

    def __init__(self, account: Account, name: str, provider: str) -> None:
        super().__init__(account, name)
        self._provider = provider

    def describe(self) -> Fields | None:
        found = self.call("DescribeClusters", clusters=[self.name], include=["TAGS"])["clusters"]
        return next((cluster for cluster in found if cluster["status"] == "ACTIVE"), None)

    def create(self) -> None:
        tags = [{"key": MANAGED_TAG, "value": "true"}]
        create = partial(self.call, "CreateCluster", clusterName=self.name, capacityProviders=PROVIDERS, tags=tags)
        self.account.when_roles_are_known(create)

    def changes(self, found: Fields) -> Sequence[Change]:
        attached = list(found.get("capacityProviders", []))
        attach = partial(
            self.call,
            "PutClusterCapacityProviders",
            cluster=self.name,
            capacityProviders=[*attached, self._provider],
            defaultCapacityProviderStrategy=found.get("defaultCapacityProviderStrategy", []),
        )
        text = f"capacity providers of the {self.what}: {self._provider} attached"
        return [] if self._provider in attached else [(text, attach)]

    def delete(self, _: Fields) -> None:
        self.call("DeleteCluster", cluster=self.name)

    def in_use(self, found: Fields) -> str:
        count = found["runningTasksCount"] + found["pendingTasksCount"]
        return f"it has tasks ({count}): stop their worker manager first" if count else ""


class TaskDefinitionResource(Resource):
    """A definition. Its newest revision is in use; teardown removes all revisions."""

    service, kind = "ecs", "task definition"
    changes_foreign = True

    def __init__(self, account: Account, config: AwsRawEcsConfig, extras: Callable[[], Fields]) -> None:
        super().__init__(account, config.ecs_task_definition)
        self._config, self._extras = config, extras

    def describe(self) -> Fields | None:
        return describe_definition(self.name, self.account.client("ecs"))

    def describe_all(self) -> list[Fields]:
        arns = self.items("ListTaskDefinitions", "taskDefinitionArns", familyPrefix=self.name, status="ACTIVE")
        mine = [arn for arn in arns if arn.rpartition("/")[2].rpartition(":")[0] == self.name]
        answers = [self.call("DescribeTaskDefinition", taskDefinition=arn, include=["TAGS"]) for arn in mine]
        return [{**answer["taskDefinition"], "tags": answer.get("tags", [])} for answer in answers]

    def create(self) -> None:
        self._register(None)

    def changes(self, found: Fields) -> Sequence[Change]:
        wanted = wanted_definition(self._config, found, self._extras())
        is_current = registered(found) == wanted
        return [] if is_current else [(f"{self.what}: another revision", partial(self._register, found))]

    def suffix(self, found: Fields) -> str:
        return f":{found['revision']}"

    def delete(self, found: Fields) -> None:
        self.call("DeregisterTaskDefinition", taskDefinition=found["taskDefinitionArn"])

    def _register(self, current: Fields | None) -> None:
        wanted = wanted_definition(self._config, current, self._extras())
        made = partial(register, self.name, self.account.client("ecs"), current, wanted)
        self.account.when_roles_are_known(made)
