"""The role and the instance profile of EC2 instances that jobs run on: made and removed."""

from __future__ import annotations

from scaler.worker_manager.aws.errors import AwsError
from scaler.worker_manager.aws.session import AwsCalls
from scaler.worker_manager.aws.setup_tools import (
    MANAGED_TAG,
    NOT_OURS,
    Steps,
    describe_role,
    ensure_role,
    is_ours,
    remove_role,
)
from scaler.worker_manager.aws_hpc.requests import Fields
from scaler.worker_manager.aws_hpc.wanted import host_role


class Hosts:
    """Role and instance profile, both of the same name. All methods raise AwsError."""

    def __init__(self, name: str, iam: AwsCalls, steps: Steps) -> None:
        self._name = name
        self._iam = iam
        self._steps = steps

    def ensure(self, account: str, partition: str) -> str:
        """Make both, and return the ARN of the profile."""
        ensure_role(self._iam, self._steps, host_role(self._name), account, partition)
        what = f"instance profile {self._name}"
        found = self._profile()
        if found is None:
            self._steps.create(what, self._create)
            return f"arn:{partition}:iam::{account}:instance-profile/{self._name}"
        if found["Roles"]:
            self._steps.exists(what)
        else:
            self._steps.change(f"{what}: its role", self._add_role)
        return str(found["Arn"])

    def remove(self) -> None:
        """Remove both, as far as they are there and ours."""
        found = self._profile()
        if found is not None:
            what = f"instance profile {self._name}"
            if is_ours(found.get("Tags", [])):
                self._steps.remove(what, lambda: self._delete(found))
            else:
                self._steps.keep(what, NOT_OURS)
        if describe_role(self._iam, self._name) is not None:
            remove_role(self._iam, self._steps, self._name)

    def _profile(self) -> Fields | None:
        try:
            answer = self._iam.call("GetInstanceProfile", InstanceProfileName=self._name)
        except AwsError as error:
            if error.code != "NoSuchEntity":
                raise
            return None
        found: Fields = answer["InstanceProfile"]
        return found

    def _create(self) -> None:
        tags = [{"Key": MANAGED_TAG, "Value": "true"}]
        self._iam.call("CreateInstanceProfile", InstanceProfileName=self._name, Tags=tags)
        self._add_role()

    def _add_role(self) -> None:
        self._iam.call("AddRoleToInstanceProfile", InstanceProfileName=self._name, RoleName=self._name)

    def _delete(self, profile: Fields) -> None:
        for role in profile["Roles"]:
            self._iam.call("RemoveRoleFromInstanceProfile", InstanceProfileName=self._name, RoleName=role["RoleName"])
        self._iam.call("DeleteInstanceProfile", InstanceProfileName=self._name)
