"""The engine of `setup`, `show` and `teardown`: it works on a list of wanted resources.

A resource can be described, created, changed and deleted. Everything created carries the tag `scaler:managed`, and
nothing without it is changed or removed. Each step looks first, so a repeated run does nothing, and prints one line
for what it found or did.
"""

from __future__ import annotations

import json
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from scaler.worker_manager.aws.calls import AwsAccess, AwsCalls, AwsClient, AwsError

if TYPE_CHECKING:
    from scaler.config.commands import Verb  # managers do without the command line

MANAGED_TAG = "scaler:managed"
POLICY_NAME = "scaler"
LOG_RETENTION_DAYS = 14
NOT_OURS = "made by others, left as it is"
PAUSE_SECONDS = 1.0
ROLE_SECONDS = 30.0
"""A new role is known everywhere after this time at the latest."""
TASKS_SERVICE = "ecs-tasks.amazonaws.com"
_COLUMN = 13
_ECR = re.compile(r"(\d{12})\.dkr\.ecr\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?/([^:@]+)")

Fields = dict[str, Any]
Change = tuple[str, Callable[[], object]]
"""A text, and what makes the change."""


def is_ours(tags: Mapping[str, str] | Iterable[Mapping[str, str]]) -> bool:
    """Tell whether the tags have `scaler:managed`, in any of the spellings of AWS."""
    if isinstance(tags, Mapping):
        return MANAGED_TAG in tags
    return any(tag.get("Key", tag.get("key")) == MANAGED_TAG for tag in tags)


class Account:
    """The account that a set-up works on, and the lines that it prints. dry_run: print what would be done only."""

    def __init__(
        self, access: AwsAccess, say: Callable[[str], None], *, dry_run: bool, pause_seconds: float = PAUSE_SECONDS
    ) -> None:
        self._access = access
        self._say = say
        self.dry_run = dry_run
        self.pause_seconds = pause_seconds
        self._clients: dict[str, AwsCalls] = {}

    def client(self, service: str) -> AwsCalls:
        """Return the client of a service; made when first needed, which takes a while for some."""
        if service not in self._clients:
            self._clients[service] = AwsClient(self._access, service)
        return self._clients[service]

    def close(self) -> None:
        """Close all connections."""
        for client in self._clients.values():
            client.close()

    @cached_property
    def _identity(self) -> Fields:
        return self.client("sts").call("GetCallerIdentity")

    @property
    def number(self) -> str:
        """The account's number."""
        return str(self._identity["Account"])

    @property
    def partition(self) -> str:
        """The part of AWS that the account is in: `aws`, `aws-cn`."""
        return str(self._identity["Arn"]).split(":")[1]

    def create(self, what: str, action: Callable[[], object]) -> None:
        self._do("create", "created", what, action)

    def change(self, what: str, action: Callable[[], object]) -> None:
        self._do("change", "changed", what, action)

    def remove(self, what: str, action: Callable[[], object]) -> None:
        self._do("remove", "removed", what, action)

    def line(self, word: str, what: str, note: str = "") -> None:
        """Print a line: exists, missing, kept or note."""
        self._say(f"{word:{_COLUMN}} {what}{f' ({note})' if note else ''}")

    def when_roles_are_known(self, action: Callable[[], object]) -> None:
        """Repeat an action while AWS refuses it for a role that was created just now. Raises AwsError."""
        deadline = time.monotonic() + ROLE_SECONDS
        while True:
            try:
                action()
            except AwsError as error:
                is_about_roles = "profile" in error.message.lower() or "role" in error.message.lower()
                if not is_about_roles or time.monotonic() > deadline:
                    raise
                time.sleep(self.pause_seconds)
            else:
                return

    def _do(self, verb: str, done: str, what: str, action: Callable[[], object]) -> None:
        if not self.dry_run:
            action()
        self.line(f"would {verb}" if self.dry_run else done, what)


class Resource(ABC):
    """Something on AWS that a manager needs. All methods raise AwsError.

    what: its name in lines of `show` and `teardown`. wanted: in those of `setup`. creation: in the one that creates it.
    """

    is_optional = False
    """`teardown` does not print that it is missing, and `show` does not print it."""
    shows_changes_apart = False
    """`setup` prints that it exists, and each change in a line of its own."""
    foreign_note = NOT_OURS

    def __init__(self, account: Account, what: str, *, wanted: str = "", creation: str = "") -> None:
        self.account = account
        self.what = what
        self.wanted = wanted or what
        self.creation = creation or self.wanted

    @abstractmethod
    def describe(self) -> Fields | None:
        """Return it as it is; None when it does not exist."""

    @abstractmethod
    def create(self) -> None: ...

    @abstractmethod
    def delete(self, _: Fields) -> None: ...

    def tags(self, found: Fields) -> Mapping[str, str] | Iterable[Mapping[str, str]]:
        """Return its tags."""
        tags: Mapping[str, str] = found.get("tags") or {}
        return tags

    def describe_all(self) -> list[Fields]:
        """Return all that `teardown` removes."""
        found = self.describe()
        return [] if found is None else [found]

    def changes(self, _: Fields) -> Sequence[Change]:
        """Return what `setup` changes."""
        return ()

    def suffix(self, _: Fields) -> str:
        """Return what follows its name where it exists, such as a revision."""
        return ""

    def detail(self, found: Fields) -> str:
        """Return what `show` prints of it."""
        return self.suffix(found)

    def in_use(self, _: Fields) -> str:
        """Return why it cannot be removed now; empty when it can."""
        return ""

    def removal(self, found: Fields) -> str:
        """Return what `teardown` prints that it removes."""
        return f"{self.what}{self.suffix(found)}"

    def is_ours(self, found: Fields) -> bool:
        """Tell whether a set-up created it."""
        return is_ours(self.tags(found))

    def ensure(self) -> None:
        """Create it, or change it as far as it is ours and not as wanted."""
        found = self.describe()
        if found is None:
            self.account.create(self.creation, self.create)
            return
        changes = self.changes(found)
        if not self.is_ours(found) and not self.shows_changes_apart:
            changes = ()
        if not changes or self.shows_changes_apart:
            self.exists(found)
        for text, action in changes:
            self.account.change(text, action)

    def exists(self, found: Fields) -> None:
        note = "" if self.is_ours(found) else self.foreign_note
        self.account.line("exists", f"{self.wanted}{self.suffix(found)}", note)

    def show(self) -> None:
        """Print it as it is."""
        found = self.describe()
        if found is None:
            self.account.line("missing", self.what)
        else:
            self.account.line("exists", f"{self.what}{self.detail(found)}", "" if self.is_ours(found) else NOT_OURS)

    def teardown(self) -> bool:
        """Remove it, as far as it is ours. Returns False when it is in use, and stays."""
        all_found = self.describe_all()
        if not all_found and not self.is_optional:
            self.account.line("missing", self.what)
        for found in all_found:
            if not self.is_ours(found):
                self.account.line("kept", f"{self.what}{self.suffix(found)}", NOT_OURS)
            elif reason := self.in_use(found):
                self.account.line("kept", self.what, reason)
                return False
            else:
                self.account.remove(self.removal(found), partial(self.delete, found))
        return True


def run(verb: Verb, wanted: Sequence[Resource], to_remove: Sequence[Resource]) -> int:
    """Set up, show or tear down resources, and return the exit code: 1 when something in use was kept.

    wanted: in the order of creation. to_remove: in the order of removal. Raises AwsError, UsageError.
    """
    match verb:
        case "setup":
            for resource in wanted:
                resource.ensure()
        case "show":
            for resource in wanted:
                if not resource.is_optional:
                    resource.show()
        case "teardown":
            results = [resource.teardown() for resource in to_remove]
            return 0 if all(results) else 1
    return 0


class Role(Resource):
    """A role that a service takes on."""

    def __init__(
        self,
        account: Account,
        name: str,
        service: str,
        purpose: str,
        statements: Callable[[], Sequence[Fields]] = tuple,
        managed_policies: Sequence[str] = (),
    ) -> None:
        """service: such as ecs-tasks.amazonaws.com. statements: what the role may do.

        managed_policies: names of AWS's own policies, such as service-role/AWSBatchServiceRole.
        """
        super().__init__(account, f"role {name}", wanted=f"role {name} for {purpose}")
        self.name = name
        self._service = service
        self._purpose = purpose
        self._statements = statements
        self._managed_policies = managed_policies
        self._iam = account.client("iam")

    def arn(self) -> str:
        """Return its ARN, also before it exists."""
        found = self.describe()
        return (
            f"arn:{self.account.partition}:iam::{self.account.number}:role/{self.name}"
            if found is None
            else str(found["Arn"])
        )

    def describe(self) -> Fields | None:
        return none_if_absent(lambda: self._iam.call("GetRole", RoleName=self.name)["Role"])

    def tags(self, found: Fields) -> Iterable[Mapping[str, str]]:
        tags: Iterable[Mapping[str, str]] = found.get("Tags", [])
        return tags

    def changes(self, found: Fields) -> Sequence[Change]:
        if not self.is_ours(found) or self._current_policy() == self._policy():
            return ()
        return [(f"policy of the {self.wanted}", self._put_policy)]

    def ensure(self) -> None:
        super().ensure()
        if self._managed_policies and not self.account.dry_run and (found := self.describe()) and self.is_ours(found):
            for policy in self._managed_policies:
                arn = f"arn:{self.account.partition}:iam::aws:policy/{policy}"
                self._iam.call("AttachRolePolicy", RoleName=self.name, PolicyArn=arn)

    def create(self) -> None:
        trust = {
            "Version": "2012-10-17",
            "Statement": [
                {
                    "Effect": "Allow",
                    "Principal": {"Service": self._service},
                    "Action": "sts:AssumeRole",
                    "Condition": {"StringEquals": {"aws:SourceAccount": self.account.number}},
                }
            ],
        }
        self._iam.call(
            "CreateRole",
            RoleName=self.name,
            AssumeRolePolicyDocument=json.dumps(trust),
            Description=f"scaler: {self._purpose}",
            Tags=[{"Key": MANAGED_TAG, "Value": "true"}],
        )
        self._put_policy()

    def delete(self, _: Fields) -> None:
        for page in self._iam.pages("ListAttachedRolePolicies", RoleName=self.name):
            for policy in page["AttachedPolicies"]:
                self._iam.call("DetachRolePolicy", RoleName=self.name, PolicyArn=policy["PolicyArn"])
        for page in self._iam.pages("ListRolePolicies", RoleName=self.name):
            for policy_name in page["PolicyNames"]:
                self._iam.call("DeleteRolePolicy", RoleName=self.name, PolicyName=policy_name)
        self._iam.call("DeleteRole", RoleName=self.name)

    def _policy(self) -> Fields | None:
        statements = list(self._statements())
        return {"Version": "2012-10-17", "Statement": statements} if statements else None

    def _current_policy(self) -> Fields | None:
        names = {"RoleName": self.name, "PolicyName": POLICY_NAME}
        found = none_if_absent(lambda: self._iam.call("GetRolePolicy", **names))
        document = None if found is None else found["PolicyDocument"]
        parsed: Fields | None = json.loads(document) if isinstance(document, str) else document
        return parsed

    def _put_policy(self) -> None:
        if (policy := self._policy()) is not None:
            names = {"RoleName": self.name, "PolicyName": POLICY_NAME}
            self._iam.call("PutRolePolicy", **names, PolicyDocument=json.dumps(policy))
        elif self._current_policy() is not None:
            self._iam.call("DeleteRolePolicy", RoleName=self.name, PolicyName=POLICY_NAME)


class LogGroup(Resource):
    """A log group whose lines are kept for LOG_RETENTION_DAYS."""

    def __init__(self, account: Account, name: str) -> None:
        super().__init__(account, f"log group {name}", creation=f"log group {name}, kept for {LOG_RETENTION_DAYS} days")
        self.name = name
        self._logs = account.client("logs")

    def arn(self, region: str) -> str:
        """Return its ARN, also before it exists."""
        return f"arn:{self.account.partition}:logs:{region}:{self.account.number}:log-group:{self.name}"

    def describe(self) -> Fields | None:
        for page in self._logs.pages("DescribeLogGroups", logGroupNamePrefix=self.name):
            for group in page["logGroups"]:
                if group["logGroupName"] == self.name:
                    arn = group["arn"].removesuffix(":*")
                    return {**group, "tags": self._logs.call("ListTagsForResource", resourceArn=arn)["tags"]}
        return None

    def changes(self, found: Fields) -> Sequence[Change]:
        if "retentionInDays" in found:
            return ()
        return [(f"{self.what}: kept for {LOG_RETENTION_DAYS} days", self._set_retention)]  # creation was interrupted

    def create(self) -> None:
        self._logs.call("CreateLogGroup", logGroupName=self.name, tags={MANAGED_TAG: "true"})
        self._set_retention()

    def delete(self, _: Fields) -> None:
        self._logs.call("DeleteLogGroup", logGroupName=self.name)

    def removal(self, _: Fields) -> str:
        return f"{self.what} with its logs"

    def _set_retention(self) -> None:
        self._logs.call("PutRetentionPolicy", logGroupName=self.name, retentionInDays=LOG_RETENTION_DAYS)


def none_if_absent(call: Callable[[], Fields], *codes: str) -> Fields | None:
    """Return what a call returns; None when the thing does not exist. codes: of that error, IAM's by default."""
    try:
        return call()
    except AwsError as error:
        if error.code not in (codes or ("NoSuchEntity",)):
            raise
        return None


def execution_statements(image: str, log_group_arn: str, partition: str) -> list[Fields]:
    """Return what ECS itself may do for a task: pull its image, and write its logs."""
    statements: list[Fields] = [
        {
            "Effect": "Allow",
            "Action": ["logs:CreateLogStream", "logs:PutLogEvents"],
            "Resource": f"{log_group_arn}:*",
        }
    ]
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


def log_configuration(log_group: str, region: str) -> Fields:
    """Return where the containers of a definition write their logs."""
    options = {"awslogs-group": log_group, "awslogs-region": region, "awslogs-stream-prefix": "scaler"}
    return {"logDriver": "awslogs", "options": options}


def default_subnets(ec2: AwsCalls) -> list[Fields]:
    """Return the subnets of the default VPC. Raises AwsError."""
    filters = [{"Name": "default-for-az", "Values": ["true"]}]
    return [subnet for page in ec2.pages("DescribeSubnets", Filters=filters) for subnet in page["Subnets"]]


def role_name(base: str, region: str, purpose: str) -> str:
    """Return the name of a role: roles exist once for all regions, their users do not. 64 characters at most."""
    suffix = f"-{region}-{purpose}"
    return f"{base[: 64 - len(suffix)]}{suffix}"
