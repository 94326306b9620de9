"""The instance profile of EC2 instances: what gives them a role."""

from __future__ import annotations

from collections.abc import Sequence

from scaler.worker_manager.aws.calls import Fields
from scaler.worker_manager.aws.resources import IamResource
from scaler.worker_manager.aws.setup import MANAGED_PAIRS, Change


class InstanceProfile(IamResource):
    service, kind, path = "iam", "instance profile", "instance-profile"
    is_quiet = True

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
