"""The engine of `setup`, `show` and `teardown`: it works on a list of wanted resources.

A resource says how it is described, created, changed and deleted. Everything created carries the tag `scaler:managed`,
and nothing without it is changed or removed. Each step looks first, so a repeated run does nothing, and prints one line
for what it found or did.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from scaler.worker_manager.aws.calls import AwsAccess, AwsClient, AwsError

if TYPE_CHECKING:
    from scaler.config.commands import Verb

MANAGED_TAG = "scaler:managed"
MANAGED = {MANAGED_TAG: "true"}
MANAGED_PAIRS = [{"Key": MANAGED_TAG, "Value": "true"}]
"""The same tag as some services spell it."""
POLICY_NAME = "scaler"
LOG_RETENTION_DAYS = 14
NOT_OURS = "made by others, left as it is"
TASKS_SERVICE = "ecs-tasks.amazonaws.com"
PAUSE_SECONDS = 1.0
ROLE_SECONDS = 30.0
"""A new role is known everywhere after this time at the latest."""
_COLUMN = 13
_ECR = re.compile(r"(\d{12})\.dkr\.ecr\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?/([^:@]+)")

Fields = dict[str, Any]
Change = tuple[str, Callable[[], object]]
"""A text, and what makes the change."""


class Account:
    """The account that a set-up works on, and the lines that it prints. dry_run: print what would be done only."""

    def __init__(
        self, access: AwsAccess, say: Callable[[str], None], *, dry_run: bool, pause_seconds: float = PAUSE_SECONDS
    ) -> None:
        self._access = access
        self._say = say
        self.dry_run = dry_run
        self.pause_seconds = pause_seconds
        self._clients: dict[str, AwsClient] = {}

    def client(self, service: str) -> AwsClient:
        """Return the client of a service, made when it is first needed."""
        if service not in self._clients:
            self._clients[service] = AwsClient(self._access, service)
        return self._clients[service]

    def call(self, service: str, operation: str, **parameters: Any) -> Fields:
        return self.client(service).call(operation, **parameters)

    def pages(self, service: str, operation: str, **parameters: Any) -> Iterable[Fields]:
        return self.client(service).pages(operation, **parameters)

    def find(self, service: str, operation: str, *absent: str, **parameters: Any) -> Fields | None:
        """Call an operation; None when it fails with one of the codes for what does not exist."""
        try:
            return self.call(service, operation, **parameters)
        except AwsError as error:
            if error.code not in absent:
                raise
            return None

    def close(self) -> None:
        for client in self._clients.values():
            client.close()

    @cached_property
    def _identity(self) -> Fields:
        return self.call("sts", "GetCallerIdentity")

    @property
    def number(self) -> str:
        return str(self._identity["Account"])

    @property
    def partition(self) -> str:
        """The part of AWS that the account is in: `aws`, `aws-cn`."""
        return str(self._identity["Arn"]).split(":")[1]

    def arn(self, service: str, name: str, region: str = "") -> str:
        return f"arn:{self.partition}:{service}:{region}:{self.number}:{name}"

    def line(self, word: str, what: str, note: str = "") -> None:
        self._say(f"{word:{_COLUMN}} {what}{f' ({note})' if note else ''}")

    def do(self, verb: str, done: str, what: str, action: Callable[[], object]) -> None:
        """Act, and print a line; in a dry run print what would be done."""
        if not self.dry_run:
            action()
        self.line(f"would {verb}" if self.dry_run else done, what)

    def when_roles_are_known(self, action: Callable[[], object]) -> None:
        """Repeat an action while AWS refuses it for a role that was created just now. Raises AwsError."""
        deadline = time.monotonic() + ROLE_SECONDS
        while True:
            try:
                action()
            except AwsError as error:
                if not re.search("profile|role", error.message.lower()) or time.monotonic() > deadline:
                    raise
                time.sleep(self.pause_seconds)
            else:
                return


def is_ours(found: Fields) -> bool:
    """Tell whether a described resource has the tag, in any of the spellings of AWS."""
    tags = found.get("tags") or found.get("Tags") or found.get("TagSet") or ()
    names = tags if isinstance(tags, Mapping) else [tag.get("Key", tag.get("key")) for tag in tags]
    return MANAGED_TAG in names


@dataclass(kw_only=True)
class Resource:
    """Something on AWS that a manager needs. describe: as it is, None when it does not exist."""

    account: Account
    what: str
    """Its name in lines."""
    describe: Callable[[], Fields | None]
    create: Callable[[], object]
    delete: Callable[[Fields], object]
    describe_all: Callable[[], Sequence[Fields]] | None = None
    """Everything that teardown removes, where that is more than `describe` returns."""
    changes: Callable[[Fields], Sequence[Change]] = lambda _: ()
    suffix: Callable[[Fields], str] = lambda _: ""
    """Follows its name where it exists, such as a revision."""
    detail: Callable[[Fields], str] | None = None
    """Follows its name in `show`; the suffix by default."""
    in_use: Callable[[Fields], str] = lambda _: ""
    """Why it cannot be removed now."""
    conflict: Callable[[Fields], str] = lambda _: ""
    """Why setup cannot change it to what is wanted."""
    settle: Callable[[], object] = lambda: None
    """Waits until a change that is under way is over."""
    confirm: Callable[[], object] = lambda: None
    """Waits until it can be used."""
    is_wanted: Callable[[], bool] = lambda: True
    wanted: str = ""
    """Its name in the lines of setup, where that is longer."""
    creation: Callable[[], str] | str = ""
    removal: str = ""
    foreign_note: str = NOT_OURS
    changes_foreign: bool = False
    shows_changes_apart: bool = False
    """Setup prints that it exists, and each change in a line of its own."""
    is_quiet: bool = False
    """`teardown` does not print that it is missing, and `show` nothing."""

    def ensure(self) -> None:
        """Create it, or change it as far as it is ours and not as wanted."""
        if not self.is_wanted():
            return
        self.settle()
        account, wanted, found = self.account, self.wanted or self.what, self.describe()
        if found is None:
            creation = self.creation if isinstance(self.creation, str) else self.creation()
            account.do("create", "created", creation or wanted, self.create)
            return
        ours = is_ours(found)
        if ours and (conflict := self.conflict(found)):
            account.line("kept", self.what, conflict)
            return
        exists = partial(account.line, "exists", f"{wanted}{self.suffix(found)}", "" if ours else self.foreign_note)
        if self.shows_changes_apart:
            exists()
        changes = self.changes(found) if ours or self.changes_foreign else ()
        if not changes and not self.shows_changes_apart:
            exists()
            if ours and not account.dry_run:
                self.confirm()
        for text, action in changes:
            account.do("change", "changed", text, action)

    def _described(self) -> list[Fields]:
        found = self.describe()
        return [] if found is None else [found]

    def show(self) -> None:
        found = self.describe()
        if found is None:
            self.account.line("missing", self.what)
        else:
            detail = (self.detail or self.suffix)(found)
            self.account.line("exists", f"{self.what}{detail}", "" if is_ours(found) else NOT_OURS)

    def teardown(self) -> bool:
        """Remove it, as far as it is ours. Returns False when it is in use, and stays."""
        found_all = (self.describe_all or self._described)()
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
                self.account.do("remove", "removed", self.removal or name, partial(self.delete, found))
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
                if not resource.is_quiet:
                    resource.show()
        case "teardown":
            results = [resource.teardown() for resource in to_remove]
            return 0 if all(results) else 1
    return 0


@dataclass(frozen=True, slots=True)
class IamRole:
    """A role that a service, such as ecs-tasks.amazonaws.com, takes on. policies: names of AWS's own policies."""

    account: Account
    name: str
    service: str
    purpose: str
    statements: Callable[[], Sequence[Fields]] = tuple
    policies: Sequence[str] = ()

    @property
    def resource(self) -> Resource:
        wanted = f"role {self.name} for {self.purpose}"
        return Resource(
            account=self.account,
            what=f"role {self.name}",
            wanted=wanted,
            describe=self.describe,
            create=self._create,
            delete=self._delete,
            changes=lambda _: [] if self._policy_is_current() else [(f"policy of the {wanted}", self._put_policies)],
        )

    def arn(self) -> str:
        """Return its ARN, also before it exists."""
        found = self.describe()
        return self.account.arn("iam", f"role/{self.name}") if found is None else str(found["Arn"])

    def describe(self) -> Fields | None:
        found = self.account.find("iam", "GetRole", "NoSuchEntity", RoleName=self.name)
        return found and found["Role"]

    def _policy_is_current(self) -> bool:
        attached = {arn.rpartition("policy/")[2] for arn in self._attached()} if self.policies else set()
        return self._current_policy() == self._policy() and attached >= set(self.policies)

    def _create(self) -> None:
        trust = {
            "Effect": "Allow",
            "Principal": {"Service": self.service},
            "Action": "sts:AssumeRole",
            "Condition": {"StringEquals": {"aws:SourceAccount": self.account.number}},
        }
        self.account.call(
            "iam",
            "CreateRole",
            RoleName=self.name,
            AssumeRolePolicyDocument=json.dumps({"Version": "2012-10-17", "Statement": [trust]}),
            Description=f"scaler: {self.purpose}",
            Tags=MANAGED_PAIRS,
        )
        self._put_policies()

    def _delete(self, _: Fields) -> None:
        account, name = self.account, {"RoleName": self.name}
        for arn in self._attached():
            account.call("iam", "DetachRolePolicy", **name, PolicyArn=arn)
        for page in account.pages("iam", "ListRolePolicies", **name):
            for policy in page["PolicyNames"]:
                account.call("iam", "DeleteRolePolicy", **name, PolicyName=policy)
        account.call("iam", "DeleteRole", **name)

    def _attached(self) -> list[str]:
        pages = self.account.pages("iam", "ListAttachedRolePolicies", RoleName=self.name)
        return [str(policy["PolicyArn"]) for page in pages for policy in page["AttachedPolicies"]]

    def _policy(self) -> Fields | None:
        statements = list(self.statements())
        return {"Version": "2012-10-17", "Statement": statements} if statements else None

    def _current_policy(self) -> Fields | None:
        names = {"RoleName": self.name, "PolicyName": POLICY_NAME}
        document = (self.account.find("iam", "GetRolePolicy", "NoSuchEntity", **names) or {}).get("PolicyDocument")
        parsed: Fields | None = json.loads(document) if isinstance(document, str) else document
        return parsed

    def _put_policies(self) -> None:
        account, names = self.account, {"RoleName": self.name, "PolicyName": POLICY_NAME}
        if (policy := self._policy()) is not None:
            account.call("iam", "PutRolePolicy", **names, PolicyDocument=json.dumps(policy))
        elif self._current_policy() is not None:
            account.call("iam", "DeleteRolePolicy", **names)
        for policy_name in self.policies:
            arn = f"arn:{account.partition}:iam::aws:policy/{policy_name}"
            account.call("iam", "AttachRolePolicy", RoleName=self.name, PolicyArn=arn)


def log_group(account: Account, name: str) -> Resource:
    """Return a log group whose lines are kept for LOG_RETENTION_DAYS."""
    what, kept = f"log group {name}", f"kept for {LOG_RETENTION_DAYS} days"

    def describe() -> Fields | None:
        for page in account.pages("logs", "DescribeLogGroups", logGroupNamePrefix=name):
            for group in page["logGroups"]:
                if group["logGroupName"] == name:
                    arn = group["arn"].removesuffix(":*")
                    return {**group, **account.call("logs", "ListTagsForResource", resourceArn=arn)}
        return None

    def set_retention() -> None:
        account.call("logs", "PutRetentionPolicy", logGroupName=name, retentionInDays=LOG_RETENTION_DAYS)

    def create() -> None:
        account.call("logs", "CreateLogGroup", logGroupName=name, tags=MANAGED)
        set_retention()

    return Resource(
        account=account,
        what=what,
        creation=f"{what}, {kept}",
        removal=f"{what} with its logs",
        describe=describe,
        create=create,
        delete=lambda _: account.call("logs", "DeleteLogGroup", logGroupName=name),
        # One without has been left by a setup that was interrupted.
        changes=lambda found: [] if "retentionInDays" in found else [(f"{what}: {kept}", set_retention)],
    )


def execution_statements(image: str, log_group_arn: str, partition: str) -> list[Fields]:
    """Return what ECS itself may do for a task: pull its image, and write its logs."""
    logs = ["logs:CreateLogStream", "logs:PutLogEvents"]
    statements: list[Fields] = [{"Effect": "Allow", "Action": logs, "Resource": f"{log_group_arn}:*"}]
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


def default_subnets(account: Account) -> list[Fields]:
    """Return the subnets of the default VPC. Raises AwsError."""
    filters = [{"Name": "default-for-az", "Values": ["true"]}]
    return [subnet for page in account.pages("ec2", "DescribeSubnets", Filters=filters) for subnet in page["Subnets"]]


def role_name(base: str, region: str, purpose: str) -> str:
    """Return the name of a role: roles exist once for all regions, their users do not. 64 characters at most."""
    suffix = f"-{region}-{purpose}"
    return f"{base[: 64 - len(suffix)]}{suffix}"
