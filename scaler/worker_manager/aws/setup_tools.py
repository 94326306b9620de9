"""Making, listing and removing what a manager needs on AWS.

Everything made carries the tag `scaler:managed`, and nothing without it is changed or removed. Each function looks
first, so that doing it again does nothing, and says in one line what it found or did.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scaler.worker_manager.aws.errors import AwsError
from scaler.worker_manager.aws.session import AwsCalls

MANAGED_TAG = "scaler:managed"
POLICY_NAME = "scaler"
LOG_RETENTION_DAYS = 14
NOT_OURS = "made by others, left as it is"
_COLUMN = 13

Document = dict[str, Any]


class Steps:
    """Says what is done. dry_run: says what would be done, and does nothing."""

    def __init__(self, say: Callable[[str], None], *, dry_run: bool) -> None:
        self._say = say
        self.dry_run = dry_run

    def create(self, what: str, action: Callable[[], object]) -> None:
        self._do("create", "created", what, action)

    def change(self, what: str, action: Callable[[], object]) -> None:
        self._do("change", "changed", what, action)

    def remove(self, what: str, action: Callable[[], object]) -> None:
        self._do("remove", "removed", what, action)

    def exists(self, what: str, note: str = "") -> None:
        self._line("exists", what, note)

    def missing(self, what: str, note: str = "") -> None:
        self._line("missing", what, note)

    def keep(self, what: str, why: str) -> None:
        self._line("kept", what, why)

    def note(self, text: str) -> None:
        self._line("note", text, "")

    def _do(self, verb: str, done: str, what: str, action: Callable[[], object]) -> None:
        if self.dry_run:
            self._line(f"would {verb}", what, "")
            return
        action()
        self._line(done, what, "")

    def _line(self, word: str, what: str, note: str) -> None:
        self._say(f"{word:{_COLUMN}} {what}{f' ({note})' if note else ''}")


def is_ours(tags: Iterable[Mapping[str, str]]) -> bool:
    """Tell whether we have made what has these tags, in either of the spellings of AWS."""
    return any(tag.get("Key", tag.get("key")) == MANAGED_TAG for tag in tags)


# -- roles


@dataclass(frozen=True, slots=True)
class Role:
    """A role that a service takes on. statements: what it may do; none: nothing."""

    name: str
    service: str
    """Such as ecs-tasks.amazonaws.com."""
    purpose: str
    statements: Sequence[Document] = ()
    managed_policies: Sequence[str] = ()
    """Names of AWS's own policies, such as service-role/AWSBatchServiceRole."""


def ensure_role(iam: AwsCalls, steps: Steps, role: Role, account: str, partition: str = "aws") -> str:
    """Make a role, or have ours do what it should. Returns its ARN. Raises AwsError."""
    what = f"role {role.name} for {role.purpose}"
    found = describe_role(iam, role.name)
    if found is None:
        steps.create(what, lambda: _create_role(iam, role, account))
    elif not is_ours(found.get("Tags", [])):
        steps.exists(what, NOT_OURS)
        return str(found["Arn"])
    elif _policy_of(iam, role.name) == _policy(role.statements):
        steps.exists(what)
    else:
        steps.change(f"policy of the {what}", lambda: _put_policy(iam, role))
    if not steps.dry_run:
        for policy in role.managed_policies:
            arn = f"arn:{partition}:iam::aws:policy/{policy}"
            iam.call("AttachRolePolicy", RoleName=role.name, PolicyArn=arn)
    return f"arn:{partition}:iam::{account}:role/{role.name}" if found is None else str(found["Arn"])


def describe_role(iam: AwsCalls, name: str) -> Document | None:
    """Return a role; None when there is none. Raises AwsError."""
    try:
        found: Document = iam.call("GetRole", RoleName=name)["Role"]
    except AwsError as error:
        if error.code != "NoSuchEntity":
            raise
        return None
    return found


def show_role(iam: AwsCalls, steps: Steps, name: str) -> None:
    """Say whether there is a role. Raises AwsError."""
    found = describe_role(iam, name)
    if found is None:
        steps.missing(f"role {name}")
    else:
        steps.exists(f"role {name}", "" if is_ours(found.get("Tags", [])) else NOT_OURS)


def remove_role(iam: AwsCalls, steps: Steps, name: str) -> None:
    """Remove a role, if it is ours, with its policies. Raises AwsError."""
    found = describe_role(iam, name)
    if found is None:
        steps.missing(f"role {name}")
    elif not is_ours(found.get("Tags", [])):
        steps.keep(f"role {name}", NOT_OURS)
    else:
        steps.remove(f"role {name}", lambda: _delete_role(iam, name))


def _create_role(iam: AwsCalls, role: Role, account: str) -> None:
    trust = {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Principal": {"Service": role.service},
                "Action": "sts:AssumeRole",
                "Condition": {"StringEquals": {"aws:SourceAccount": account}},
            }
        ],
    }
    iam.call(
        "CreateRole",
        RoleName=role.name,
        AssumeRolePolicyDocument=json.dumps(trust),
        Description=f"scaler: {role.purpose}",
        Tags=[{"Key": MANAGED_TAG, "Value": "true"}],
    )
    _put_policy(iam, role)


def _put_policy(iam: AwsCalls, role: Role) -> None:
    if role.statements:
        document = json.dumps(_policy(role.statements))
        iam.call("PutRolePolicy", RoleName=role.name, PolicyName=POLICY_NAME, PolicyDocument=document)
    elif _policy_of(iam, role.name) is not None:
        iam.call("DeleteRolePolicy", RoleName=role.name, PolicyName=POLICY_NAME)


def _policy(statements: Sequence[Document]) -> Document | None:
    return {"Version": "2012-10-17", "Statement": list(statements)} if statements else None


def _policy_of(iam: AwsCalls, name: str) -> Document | None:
    try:
        document = iam.call("GetRolePolicy", RoleName=name, PolicyName=POLICY_NAME)["PolicyDocument"]
    except AwsError as error:
        if error.code != "NoSuchEntity":
            raise
        return None
    found: Document = json.loads(document) if isinstance(document, str) else document
    return found


def _delete_role(iam: AwsCalls, name: str) -> None:
    for page in iam.pages("ListAttachedRolePolicies", RoleName=name):
        for policy in page["AttachedPolicies"]:
            iam.call("DetachRolePolicy", RoleName=name, PolicyArn=policy["PolicyArn"])
    for page in iam.pages("ListRolePolicies", RoleName=name):
        for policy_name in page["PolicyNames"]:
            iam.call("DeleteRolePolicy", RoleName=name, PolicyName=policy_name)
    iam.call("DeleteRole", RoleName=name)


# -- log groups


def describe_log_group(logs: AwsCalls, name: str) -> tuple[Document | None, bool]:
    """Return the log group of this name, None when there is none, and whether it is ours. Raises AwsError."""
    for page in logs.pages("DescribeLogGroups", logGroupNamePrefix=name):
        for group in page["logGroups"]:
            if group["logGroupName"] == name:
                arn = group["arn"].removesuffix(":*")
                tags = logs.call("ListTagsForResource", resourceArn=arn)["tags"]
                return group, MANAGED_TAG in tags
    return None, False


def ensure_log_group(logs: AwsCalls, steps: Steps, name: str) -> None:
    """Make a log group that forgets after LOG_RETENTION_DAYS. Raises AwsError."""
    found, ours = describe_log_group(logs, name)

    def forget() -> None:
        logs.call("PutRetentionPolicy", logGroupName=name, retentionInDays=LOG_RETENTION_DAYS)

    def create() -> None:
        logs.call("CreateLogGroup", logGroupName=name, tags={MANAGED_TAG: "true"})
        forget()

    if found is None:
        steps.create(f"log group {name}, kept for {LOG_RETENTION_DAYS} days", create)
    elif ours and "retentionInDays" not in found:  # what made it was interrupted
        steps.change(f"log group {name}: kept for {LOG_RETENTION_DAYS} days", forget)
    else:
        steps.exists(f"log group {name}", "" if ours else NOT_OURS)


def show_log_group(logs: AwsCalls, steps: Steps, name: str) -> None:
    """Say whether there is a log group. Raises AwsError."""
    found, ours = describe_log_group(logs, name)
    if found is not None:
        steps.exists(f"log group {name}", "" if ours else NOT_OURS)
    else:
        steps.missing(f"log group {name}")


def remove_log_group(logs: AwsCalls, steps: Steps, name: str) -> None:
    """Remove a log group, if it is ours, with the logs in it. Raises AwsError."""
    found, ours = describe_log_group(logs, name)
    if found is None:
        steps.missing(f"log group {name}")
    elif not ours:
        steps.keep(f"log group {name}", NOT_OURS)
    else:
        steps.remove(f"log group {name} with its logs", lambda: logs.call("DeleteLogGroup", logGroupName=name))


def role_name(base: str, region: str, purpose: str) -> str:
    """Return the name of a role; roles are the same in all regions, what uses them is not. 64 characters at most."""
    suffix = f"-{region}-{purpose}"
    return f"{base[: 64 - len(suffix)]}{suffix}"
