"""Resources shared by several types: roles, log groups, buckets, definitions with revisions, and credentials."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from scaler.config.worker_managers import WorkerManagerConfig
from scaler.errors import UsageError
from scaler.worker.credential import CREDENTIAL_VARIABLE
from scaler.worker_manager.aws import InstallingSettings
from scaler.worker_manager.aws.calls import AwsClient, AwsError, Fields, steady
from scaler.worker_manager.aws.setup import MANAGED, MANAGED_PAIRS, Account, Change, Resource
from scaler.worker_manager.backend import units_credential

POLICY_NAME = "scaler"
LOG_RETENTION_DAYS = 14
TASKS_SERVICE = "ecs-tasks.amazonaws.com"
HOSTS_SERVICE = "ec2.amazonaws.com"
_ECR = re.compile(r"(\d{12})\.dkr\.ecr\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?/([^:@]+)")
NO_BUCKET = ("404", "NoSuchBucket", "NotFound")
MAX_DELETED = 1000
OLDEST_REGION = "us-east-1"  # S3 refuses this region as a location constraint


class IamResource(Resource):
    """An IAM resource, global to the account. path: part of its ARN before the name."""

    service, kind = "iam", "role"
    path: ClassVar[str] = "role"

    def arn(self) -> str:
        found = self.describe()
        return self.account.arn("iam", f"{self.path}/{self.name}") if found is None else str(found["Arn"])

    def describe(self) -> Fields | None:
        found = self.find("GetRole", "NoSuchEntity", RoleName=self.name)
        return found and found["Role"]


class IamRole(IamResource):
    """A role for an AWS service. policies: names of AWS-managed policies."""

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
        # Roles are global, so their names contain the region of the units.
        suffix = f"-{account.region}-{key}"
        super().__init__(account, f"{base[: 64 - len(suffix)]}{suffix}", f" for {purpose}")
        self._principal = principal
        self._purpose = purpose
        self._statements = statements
        self._policies = policies
        self._inline = {"RoleName": self.name, "PolicyName": POLICY_NAME}

    def changes(self, _: Fields) -> Sequence[Change]:
        attached = {arn.rpartition("policy/")[2] for arn in self._attached()} if self._policies else set()
        if self._current_policy() == self._policy() and attached >= set(self._policies):
            return []
        return [(f"policy of the {self.wanted}", self._put_policies)]

    def create(self) -> None:
        trust: Fields = {"Effect": "Allow", "Principal": {"Service": self._principal}, "Action": "sts:AssumeRole"}
        if self._principal != HOSTS_SERVICE:  # EC2 sends no account, and the condition would exclude its hosts
            trust["Condition"] = {"StringEquals": {"aws:SourceAccount": self.account.number}}
        self.call(
            "CreateRole",
            RoleName=self.name,
            AssumeRolePolicyDocument=json.dumps({"Version": "2012-10-17", "Statement": [trust]}),
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

    def _policy(self) -> Fields | None:
        statements = list(self._statements())
        return {"Version": "2012-10-17", "Statement": statements} if statements else None

    def _current_policy(self) -> Fields | None:
        return (self.find("GetRolePolicy", "NoSuchEntity", **self._inline) or {}).get("PolicyDocument")

    def _put_policies(self) -> None:
        if (policy := self._policy()) is not None:
            self.call("PutRolePolicy", **self._inline, PolicyDocument=json.dumps(policy))
        elif self._current_policy() is not None:
            self.call("DeleteRolePolicy", **self._inline)
        for policy_name in self._policies:
            arn = f"arn:{self.account.partition}:iam::aws:policy/{policy_name}"
            self.call("AttachRolePolicy", RoleName=self.name, PolicyArn=arn)


class InstanceProfile(IamResource):
    """Attaches a role with the same name to EC2 instances."""

    service, kind, path = "iam", "instance profile", "instance-profile"

    def describe(self) -> Fields | None:
        found = self.find("GetInstanceProfile", "NoSuchEntity", InstanceProfileName=self.name)
        return found and found["InstanceProfile"]

    def create(self) -> None:
        self.call("CreateInstanceProfile", InstanceProfileName=self.name, Tags=MANAGED_PAIRS)
        self._add_role()

    def changes(self, found: Fields) -> Sequence[Change]:
        return [] if found["Roles"] else [(f"{self.what}: its role", self._add_role)]

    def delete(self, found: Fields) -> None:
        name = {"InstanceProfileName": self.name}
        for role in found["Roles"]:
            self.call("RemoveRoleFromInstanceProfile", **name, RoleName=role["RoleName"])
        self.call("DeleteInstanceProfile", **name)

    def _add_role(self) -> None:
        self.call("AddRoleToInstanceProfile", InstanceProfileName=self.name, RoleName=self.name)


def execution_role(
    account: Account, base: str, image: str | None, logs: LogGroup, credential_arn: Callable[[], str] = str
) -> IamRole:
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

    def __init__(self, account: Account, name: str) -> None:
        super().__init__(account, name, f", kept for {LOG_RETENTION_DAYS} days")

    def describe(self) -> Fields | None:
        for group in self.items("DescribeLogGroups", "logGroups", logGroupNamePrefix=self.name):
            if group["logGroupName"] == self.name:
                return {**group, **self.call("ListTagsForResource", resourceArn=group["arn"].removesuffix(":*"))}
        return None

    def create(self) -> None:
        self.call("CreateLogGroup", logGroupName=self.name, tags=MANAGED)
        self._set_retention()

    def changes(self, found: Fields) -> Sequence[Change]:
        # No retention: an earlier setup was interrupted.
        return [] if "retentionInDays" in found else [(self.wanted, self._set_retention)]

    def delete(self, _: Fields) -> None:
        self.call("DeleteLogGroup", logGroupName=self.name)

    def arn(self) -> str:
        return self.account.arn("logs", f"log-group:{self.name}", self.account.region)

    def configuration(self) -> Fields:
        options = {"awslogs-group": self.name, "awslogs-region": self.account.region, "awslogs-stream-prefix": "scaler"}
        return {"logDriver": "awslogs", "options": options}

    def _set_retention(self) -> None:
        self.call("PutRetentionPolicy", logGroupName=self.name, retentionInDays=LOG_RETENTION_DAYS)


class BucketResource(Resource):
    """A bucket. S3 encrypts new buckets and blocks public access by default."""

    service, kind = "s3", "bucket"

    def describe(self) -> Fields | None:
        try:
            found = self.find("HeadBucket", *NO_BUCKET, Bucket=self.name)
        except AwsError as error:
            if error.code != "403":
                raise
            raise UsageError(
                f"the bucket {self.name!r} belongs to another account, or you lack permission to read it: bucket "
                "names are globally unique; choose another s3_bucket"
            ) from error
        return None if found is None else self.find("GetBucketTagging", "NoSuchTagSet", Bucket=self.name) or {}

    def create(self) -> None:
        region = self.account.region
        where = {"CreateBucketConfiguration": {"LocationConstraint": region}} if region != OLDEST_REGION else {}
        self.call("CreateBucket", Bucket=self.name, **where)
        # Tag first: if a later step fails, the next setup completes the bucket, or teardown removes it.
        self.call("PutBucketTagging", Bucket=self.name, Tagging={"TagSet": MANAGED_PAIRS})

    def delete(self, _: Fields) -> None:
        self.call("DeleteBucket", Bucket=self.name)

    def foreign_key(self, own: tuple[str, ...]) -> str:
        keys = object_keys(self.account.client("s3"), self.name)
        return next((key for key in keys if not key.startswith(own)), "")


def object_keys(s3: AwsClient, bucket: str, prefix: str = "") -> Iterator[str]:
    return (entry["Key"] for entry in s3.items("ListObjectsV2", "Contents", Bucket=bucket, Prefix=prefix))


def delete_objects(s3: AwsClient, bucket: str, keys: Sequence[str]) -> None:
    for at in range(0, len(keys), MAX_DELETED):
        objects = [{"Key": key} for key in keys[at : at + MAX_DELETED]]
        answer = s3.call("DeleteObjects", Bucket=bucket, Delete={"Objects": objects, "Quiet": True})
        for error in answer.get("Errors", [])[:1]:
            raise AwsError(f"S3 DeleteObjects refused ({error['Code']}): {steady(error['Message'])}", "refused")


def covers(found: object, wanted: object) -> bool:
    if isinstance(wanted, dict):
        return isinstance(found, Mapping) and all(covers(found.get(key), value) for key, value in wanted.items())
    if isinstance(wanted, list) and isinstance(found, list):
        return len(found) == len(wanted) and all(map(covers, found, wanted))
    return found == wanted or not (found or wanted)  # services may omit empty lists


def execution_statements(image: str, log_group_arn: str, partition: str, credential_arn: str = "") -> list[Fields]:
    """Return the permissions that ECS needs for a task: pull its image, write its logs, and read the credential."""
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


def backend_statements(settings: InstallingSettings, partition: str) -> list[Fields]:
    if not settings.object_storage_backend:
        return []
    bucket, _, prefix = settings.object_storage_backend.removeprefix("s3://").partition("/")
    folders = "/".join(part for part in (bucket, prefix.strip("/"), "run-*") if part)
    actions = ["s3:GetObject", "s3:PutObject", "s3:AbortMultipartUpload"]
    return [{"Effect": "Allow", "Action": actions, "Resource": f"arn:{partition}:s3:::{folders}"}]


def parameter_name(config: WorkerManagerConfig, base: str) -> str:
    """Return the name of the parameter that holds the units' credential. base: name of the definition."""
    return f"/scaler/{re.sub('[^A-Za-z0-9_.-]', '_', config.worker_manager_id)}/{base}"


def secrets_with(secrets: Iterable[Mapping[str, str]], arn: str) -> list[Mapping[str, str]]:
    """Return a container's secrets: the units' credential, or none if the ARN is empty."""
    others = [secret for secret in secrets if secret["name"] != CREDENTIAL_VARIABLE]
    return [*others, {"name": CREDENTIAL_VARIABLE, "valueFrom": arn}] if arn else others


def check_secrets(config: WorkerManagerConfig, base: str, secrets: Iterable[Mapping[str, str]], setup: str) -> None:
    """Raise UsageError unless the definition `base` passes this manager's credential to its containers."""
    given = next((secret["valueFrom"] for secret in secrets if secret["name"] == CREDENTIAL_VARIABLE), "")
    wanted = parameter_name(config, base) if units_credential(config) else ""
    if given.rpartition(":parameter")[2] != wanted:
        raise UsageError(
            f"units of {base} get {given or 'no credential'}, but this manager uses {wanted or 'none'}: run "
            f"{setup} with its worker_manager_id and credentials; two managers need two definitions"
        )


class CredentialParameter(Resource):
    """The units' credential as a SecureString (free of charge). Exists only if there is a credential. ECS (also for
    Batch) passes it to containers as SCALER_CREDENTIAL. Definitions, other requests, and tags never contain it."""

    service, kind = "ssm", "parameter"

    def __init__(self, account: Account, config: WorkerManagerConfig, base: str, credential: str) -> None:
        super().__init__(account, parameter_name(config, base), " with the units' credential")
        self._text = credential
        # A digest identifies the credential without revealing it, because the secret key is 32 random bytes.
        self._description = f"credential {hashlib.sha256(credential.encode()).hexdigest()[:12]} of scaler"

    def arn(self) -> str:
        name = f"parameter{self.name}"
        return self.account.arn("ssm", name, self.account.region) if self._text else ""

    def describe(self) -> Fields | None:
        filters = [{"Key": "Name", "Option": "Equals", "Values": [self.name]}]
        for found in self.items("DescribeParameters", "Parameters", ParameterFilters=filters):
            tags = self.call("ListTagsForResource", ResourceType="Parameter", ResourceId=self.name)
            return {**found, "Tags": tags["TagList"]}
        return None

    def ensure(self) -> None:
        if self._text:
            super().ensure()
        else:
            self.teardown()

    def create(self) -> None:
        self._put(Tags=MANAGED_PAIRS)

    def changes(self, found: Fields) -> Sequence[Change]:
        is_current = found.get("Description") == self._description
        return [] if is_current else [(self.wanted, partial(self._put, Overwrite=True))]

    def delete(self, _: Fields) -> None:
        self.call("DeleteParameter", Name=self.name)

    def _put(self, **fields: Any) -> None:
        self.call(
            "PutParameter",
            Name=self.name,
            Description=self._description,
            Type="SecureString",
            Value=self._text,
            **fields,
        )
