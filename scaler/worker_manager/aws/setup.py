"""The engine of `setup`, `show` and `teardown`: it works on a list of wanted resources.

A resource says how it is described, created, changed and deleted. Everything created carries the tag `scaler:managed`,
and nothing without it is changed or removed. Each step looks first, so a repeated run does nothing, and prints one line
for what it found or did.
"""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, ClassVar

import boto3

from scaler.backoff import Backoff
from scaler.config.commands import Verb
from scaler.worker_manager.aws import AwsSettings
from scaler.worker_manager.aws.calls import AwsClient, AwsError, Fields, aws_session, with_region

MANAGED_TAG = "scaler:managed"
MANAGED = {MANAGED_TAG: "true"}
MANAGED_PAIRS = [{"Key": MANAGED_TAG, "Value": "true"}]
"""The same tag as some services spell it."""
POLICY_NAME = "scaler"
LOG_RETENTION_DAYS = 14
NOT_OURS = "made by others, left as it is"
TASKS_SERVICE = "ecs-tasks.amazonaws.com"
HOSTS_SERVICE = "ec2.amazonaws.com"
PAUSE_SECONDS = 1.0
MAX_PAUSE_SECONDS = 8.0
ROLE_SECONDS = 30.0
"""A new role is known everywhere after this time at the latest."""
CONTAINERS = ("containerDefinitions", "containerProperties")
_COLUMN = 13
_ECR = re.compile(r"(\d{12})\.dkr\.ecr\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?/([^:@]+)")

Change = tuple[str, Callable[[], object]]
"""A text, and what makes the change."""


class Account:
    """The account that a set-up works on, and the lines that it prints. dry_run: print what would be done only."""

    def __init__(self, settings: AwsSettings, say: Callable[[str], None], *, dry_run: bool) -> None:
        settings = with_region(settings)
        self.region = settings.aws_region
        self.has_endpoint = settings.aws_endpoint_url is not None
        self.dry_run = dry_run
        self._settings = settings
        self._say = say
        self._clients: dict[str, AwsClient] = {}

    def client(self, service: str) -> AwsClient:
        if service not in self._clients:
            self._clients[service] = AwsClient(self._settings, service, session=self._session)
        return self._clients[service]

    def close(self) -> None:
        for client in self._clients.values():
            client.close()

    @cached_property
    def _session(self) -> boto3.session.Session:
        return aws_session(self._settings)

    @cached_property
    def number(self) -> str:
        return str(self.client("sts").call("GetCallerIdentity")["Account"])

    @property
    def partition(self) -> str:
        """The part of AWS that the account is in: `aws`, `aws-cn`."""
        return str(self.client("sts").raw.meta.partition)

    def arn(self, service: str, name: str, region: str = "") -> str:
        return f"arn:{self.partition}:{service}:{region}:{self.number}:{name}"

    def line(self, word: str, what: str, note: str = "") -> None:
        self._say(f"{word:{_COLUMN}} {what}{f' ({note})' if note else ''}")

    def do(self, verb: str, done: str, what: str, action: Callable[[], object]) -> None:
        """Act, and print a line; in a dry run print what would be done."""
        if not self.dry_run:
            action()
        self.line(f"would {verb}" if self.dry_run else done, what)

    def pause(self, tries: int = 1) -> None:
        time.sleep(Backoff(PAUSE_SECONDS, MAX_PAUSE_SECONDS, jitter=0.0).seconds(tries))

    def when_roles_are_known(self, action: Callable[[], object]) -> None:
        """Repeat an action while AWS refuses it for a role that was created just now. Raises AwsError.

        In a new account, the first call of a service makes the role in which the service acts, and is refused.
        """
        deadline = time.monotonic() + ROLE_SECONDS
        for tries in itertools.count(1):
            try:
                action()
            except AwsError as error:
                if not re.search("profile|role", error.message.lower()) or time.monotonic() > deadline:
                    raise
                if tries == 1:
                    self.line("waiting", f"for a role that AWS does not know yet: {error}")
                self.pause(tries)
            else:
                return


def is_ours(found: Fields) -> bool:
    """Tell whether a described resource has the tag, in any of the spellings of AWS."""
    tags = found.get("tags") or found.get("Tags") or found.get("TagSet") or ()
    names = tags if isinstance(tags, Mapping) else [tag.get("Key", tag.get("key")) for tag in tags]
    return MANAGED_TAG in names


class Resource:
    service: ClassVar[str]
    kind: ClassVar[str]
    foreign_note: ClassVar[str] = NOT_OURS
    changes_foreign: ClassVar[bool] = False
    shows_changes_apart: ClassVar[bool] = False
    """Setup prints that it exists, and each change in a line of its own."""
    is_quiet = False
    """`teardown` does not print that it is missing, and `show` nothing."""
    removal_note: ClassVar[str] = ""
    """Follows its name where it is removed."""

    def __init__(self, account: Account, name: str, note: str = "") -> None:
        """note: follows its name in the lines of setup."""
        self.account = account
        self.name = name
        self.what = f"{self.kind} {name}"
        self.wanted = f"{self.what}{note}"

    def describe(self) -> Fields | None:
        """Return it as it is, None when it does not exist."""
        raise NotImplementedError

    def create(self) -> None:
        raise NotImplementedError

    def delete(self, found: Fields) -> object:
        raise NotImplementedError

    def describe_all(self) -> Sequence[Fields]:
        """Return everything that teardown removes."""
        found = self.describe()
        return [] if found is None else [found]

    def changes(self, _: Fields) -> Sequence[Change]:
        return ()

    def creation(self) -> str:
        """Return what setup says that it creates."""
        return self.wanted

    def suffix(self, _: Fields) -> str:
        """Return what follows its name where it exists, such as a revision."""
        return ""

    def detail(self, found: Fields) -> str:
        """Return what follows its name in `show`."""
        return self.suffix(found)

    def in_use(self, _: Fields) -> str:
        """Return why it cannot be removed now."""
        return ""

    def call(self, operation: str, **parameters: Any) -> Fields:
        return self.account.client(self.service).call(operation, **parameters)

    def items(self, operation: str, member: str, **parameters: Any) -> Iterator[Any]:
        return self.account.client(self.service).items(operation, member, **parameters)

    def find(self, operation: str, *absent: str, **parameters: Any) -> Fields | None:
        return self.account.client(self.service).find(operation, *absent, **parameters)

    def ensure(self) -> None:
        """Create it, or change it as far as it is ours and not as wanted."""
        account, found = self.account, self.describe()
        if found is None:
            account.do("create", "created", self.creation(), self.create)
            return
        ours = is_ours(found)
        exists = partial(
            account.line, "exists", f"{self.wanted}{self.suffix(found)}", "" if ours else self.foreign_note
        )
        if self.shows_changes_apart:
            exists()
        changes = self.changes(found) if ours or self.changes_foreign else ()
        if not changes and not self.shows_changes_apart:
            exists()
        for text, action in changes:
            account.do("change", "changed", text, action)

    def show(self) -> None:
        found = self.describe()
        if found is None:
            self.account.line("missing", self.what)
        else:
            self.account.line("exists", f"{self.what}{self.detail(found)}", "" if is_ours(found) else NOT_OURS)

    def teardown(self) -> bool:
        """Remove it, as far as it is ours. Returns False when it is in use, and stays."""
        found_all = self.describe_all()
        if not found_all and not self.is_quiet:
            self.account.line("missing", self.what)
        for found in found_all:
            name = f"{self.what}{self.suffix(found)}"
            if not is_ours(found):
                self.account.line("kept", name, NOT_OURS)
            elif reason := self.in_use(found):
                self.account.line("kept", self.what, reason)
                return False
            else:
                self.account.do("remove", "removed", f"{name}{self.removal_note}", partial(self.delete, found))
        return True


def run(verb: Verb, wanted: Sequence[Resource], to_remove: Sequence[Resource]) -> int:
    """Set up, show or tear down resources, and return the exit code: 1 when something in use was kept.

    wanted: in the order of creation. to_remove: in the order of removal. Raises AwsError, UsageError.
    """
    if verb == "teardown":
        results = [resource.teardown() for resource in to_remove]
        return 0 if all(results) else 1
    for resource in wanted:
        if verb == "setup":
            resource.ensure()
        elif not resource.is_quiet:
            resource.show()
    return 0


class IamResource(Resource):
    """Something of IAM, which exists once for all regions. path: with its name, the end of its ARN."""

    service, kind = "iam", "role"
    path: ClassVar[str] = "role"

    def arn(self) -> str:
        """Return its ARN, also before it exists."""
        found = self.describe()
        return self.account.arn("iam", f"{self.path}/{self.name}") if found is None else str(found["Arn"])

    def describe(self) -> Fields | None:
        found = self.find("GetRole", "NoSuchEntity", RoleName=self.name)
        return found and found["Role"]


class IamRole(IamResource):
    """A role that a service, such as ecs-tasks.amazonaws.com, takes on. policies: names of AWS's own policies."""

    def __init__(
        self,
        account: Account,
        base: str,
        key: str,
        principal: str,
        purpose: str,
        statements: Callable[[], Sequence[Fields]] = tuple,
        policies: Sequence[str] = (),
    ) -> None:
        """base: its name begins with it; 64 characters at most."""
        # Roles exist once for all regions, their users do not.
        suffix = f"-{account.region}-{key}"
        super().__init__(account, f"{base[: 64 - len(suffix)]}{suffix}", f" for {purpose}")
        self._principal = principal
        self._purpose = purpose
        self._statements = statements
        self._policies = policies
        self._inline = {"RoleName": self.name, "PolicyName": POLICY_NAME}

    def changes(self, found: Fields) -> Sequence[Change]:
        changes: list[Change] = []
        if _parsed(found["AssumeRolePolicyDocument"]) != (trust := self._trust()):
            document = json.dumps(trust)
            put = partial(self.call, "UpdateAssumeRolePolicy", RoleName=self.name, PolicyDocument=document)
            changes.append((f"trust of the {self.wanted}", put))
        attached = {arn.rpartition("policy/")[2] for arn in self._attached()} if self._policies else set()
        if self._current_policy() != self._policy() or not attached >= set(self._policies):
            changes.append((f"policy of the {self.wanted}", self._put_policies))
        return changes

    def create(self) -> None:
        self.call(
            "CreateRole",
            RoleName=self.name,
            AssumeRolePolicyDocument=json.dumps(self._trust()),
            Description=f"scaler: {self._purpose}",
            Tags=MANAGED_PAIRS,
        )
        self._put_policies()

    def delete(self, _: Fields) -> None:
        name = {"RoleName": self.name}
        for arn in self._attached():
            self.call("DetachRolePolicy", **name, PolicyArn=arn)
        for policy in list(self.items("ListRolePolicies", "PolicyNames", **name)):
            self.call("DeleteRolePolicy", **name, PolicyName=policy)
        self.call("DeleteRole", **name)

    def _attached(self) -> list[str]:
        found = self.items("ListAttachedRolePolicies", "AttachedPolicies", RoleName=self.name)
        return [str(policy["PolicyArn"]) for policy in found]

    def _trust(self) -> Fields:
        trust: Fields = {
            "Effect": "Allow",
            "Principal": {"Service": self._principal},
            "Action": "sts:AssumeRole",
        }
        if self._principal != HOSTS_SERVICE:  # EC2 does not say for which account it asks: its hosts would get no role
            trust["Condition"] = {"StringEquals": {"aws:SourceAccount": self.account.number}}
        return {"Version": "2012-10-17", "Statement": [trust]}

    def _policy(self) -> Fields | None:
        statements = list(self._statements())
        return {"Version": "2012-10-17", "Statement": statements} if statements else None

    def _current_policy(self) -> Fields | None:
        document = (self.find("GetRolePolicy", "NoSuchEntity", **self._inline) or {}).get("PolicyDocument")
        return None if document is None else _parsed(document)

    def _put_policies(self) -> None:
        if (policy := self._policy()) is not None:
            self.call("PutRolePolicy", **self._inline, PolicyDocument=json.dumps(policy))
        elif self._current_policy() is not None:
            self.call("DeleteRolePolicy", **self._inline)
        for policy_name in self._policies:
            arn = f"arn:{self.account.partition}:iam::aws:policy/{policy_name}"
            self.call("AttachRolePolicy", RoleName=self.name, PolicyArn=arn)


def _parsed(document: str | Fields) -> Fields:
    """Return a policy as boto3 shows it: most operations have parsed it already."""
    parsed: Fields = json.loads(document) if isinstance(document, str) else document
    return parsed


def execution_role(
    account: Account, base: str, image: str | None, logs: LogGroup, credential_arn: Callable[[], str]
) -> IamRole:
    """Return the role in which ECS itself acts for a task."""
    return IamRole(
        account,
        base,
        "execution",
        TASKS_SERVICE,
        "ECS, to pull the image and to write logs",
        lambda: execution_statements(image or "", logs.arn(), account.partition, credential_arn()),
    )


class LogGroup(Resource):
    service, kind = "logs", "log group"
    removal_note = " with its logs"
    _kept = f"kept for {LOG_RETENTION_DAYS} days"

    def describe(self) -> Fields | None:
        for group in self.items("DescribeLogGroups", "logGroups", logGroupNamePrefix=self.name):
            if group["logGroupName"] == self.name:
                return {**group, **self.call("ListTagsForResource", resourceArn=group["arn"].removesuffix(":*"))}
        return None

    def creation(self) -> str:
        return f"{self.what}, {self._kept}"

    def create(self) -> None:
        self.call("CreateLogGroup", logGroupName=self.name, tags=MANAGED)
        self._set_retention()

    def changes(self, found: Fields) -> Sequence[Change]:
        # One without has been left by a setup that was interrupted.
        return [] if "retentionInDays" in found else [(f"{self.what}: {self._kept}", self._set_retention)]

    def delete(self, _: Fields) -> None:
        self.call("DeleteLogGroup", logGroupName=self.name)

    def arn(self) -> str:
        return self.account.arn("logs", f"log-group:{self.name}", self.account.region)

    def configuration(self) -> Fields:
        """Return where the containers of a definition write their logs."""
        options = {"awslogs-group": self.name, "awslogs-region": self.account.region, "awslogs-stream-prefix": "scaler"}
        return {"logDriver": "awslogs", "options": options}

    def _set_retention(self) -> None:
        self.call("PutRetentionPolicy", logGroupName=self.name, retentionInDays=LOG_RETENTION_DAYS)


class DefinitionResource(Resource):
    """What is described by revisions: the newest one counts, and teardown removes all."""

    def changed(self, found: Fields, wanted: Fields) -> str:
        """Return the parts that are not as wanted, also those of its containers, as the text of a change."""
        names = {name for name, wish in wanted.items() if name not in CONTAINERS and not _covers(found.get(name), wish)}
        for before, after in zip(_containers(found), _containers(wanted), strict=True):
            names |= {name for name, wish in after.items() if not _covers(before.get(name), wish)}
        return f"{self.what}: {', '.join(sorted(names))}" if names else ""

    def suffix(self, found: Fields) -> str:
        return f":{found['revision']}"

    def detail(self, found: Fields) -> str:
        return f":{found['revision']} with {', '.join(container['image'] for container in _containers(found))}"


def _containers(definition: Fields) -> list[Fields]:
    """Return the containers of a definition of ECS, or the only one of Batch."""
    return definition.get(CONTAINERS[0]) or [definition[CONTAINERS[1]]]


def _covers(found: object, wanted: object) -> bool:
    """Tell whether a described value has all that is wanted; the service adds defaults of its own."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(_covers(found.get(key), value) for key, value in wanted.items())
    return found == wanted or not (found or wanted)  # services show no empty list, or show one


def execution_statements(image: str, log_group_arn: str, partition: str, credential_arn: str = "") -> list[Fields]:
    """Return what ECS itself may do for a task: pull its image, write its logs, and read the units' credential."""
    logs = ["logs:CreateLogStream", "logs:PutLogEvents"]
    statements: list[Fields] = [{"Effect": "Allow", "Action": logs, "Resource": f"{log_group_arn}:*"}]
    if credential_arn:
        statements.append({"Effect": "Allow", "Action": "ssm:GetParameters", "Resource": credential_arn})
    if found := _ECR.match(image):
        number, region, repository = found.groups()
        statements += [
            {"Effect": "Allow", "Action": "ecr:GetAuthorizationToken", "Resource": "*"},
            {
                "Effect": "Allow",
                "Action": ["ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"],
                "Resource": f"arn:{partition}:ecr:{region}:{number}:repository/{repository}",
            },
        ]
    return statements


def backend_statements(settings: AwsSettings, partition: str) -> list[Fields]:
    """Return what the stores of units may do with the backend of the object storage, and with nothing else there."""
    if not settings.object_storage_backend:
        return []
    bucket, _, prefix = settings.object_storage_backend.removeprefix("s3://").partition("/")
    folders = "/".join(part for part in (bucket, prefix.strip("/"), "run-*") if part)
    actions = ["s3:GetObject", "s3:PutObject", "s3:AbortMultipartUpload"]
    return [{"Effect": "Allow", "Action": actions, "Resource": f"arn:{partition}:s3:::{folders}"}]


def default_subnets(account: Account) -> list[Fields]:
    """Return the subnets of the default VPC. Raises AwsError."""
    filters = [{"Name": "default-for-az", "Values": ["true"]}]
    return list(account.client("ec2").items("DescribeSubnets", "Subnets", Filters=filters))
