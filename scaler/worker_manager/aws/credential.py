"""The credential of units on AWS. `setup` stores it in the Parameter Store, and ECS (also for Batch) passes it from
there to the container as SCALER_CREDENTIAL. Definitions, other requests, and tags never contain the credential."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from scaler.config.worker_managers import WorkerManagerConfig
from scaler.errors import UsageError
from scaler.worker.credential import CREDENTIAL_VARIABLE
from scaler.worker_manager.aws.calls import Fields
from scaler.worker_manager.aws.setup import MANAGED_PAIRS, Account, Change, Resource
from scaler.worker_manager.backend import units_credential


def parameter_name(config: WorkerManagerConfig, base: str) -> str:
    """Return the parameter name of a manager's units' credential. base: name of the definition."""
    return f"/scaler/{re.sub('[^A-Za-z0-9_.-]', '_', config.worker_manager_id)}/{base}"


def secrets_with(secrets: Iterable[Mapping[str, str]], arn: str) -> list[Mapping[str, str]]:
    """Return a container's secrets with the units' credential, or without one for an empty ARN."""
    others = [secret for secret in secrets if secret["name"] != CREDENTIAL_VARIABLE]
    return [*others, {"name": CREDENTIAL_VARIABLE, "valueFrom": arn}] if arn else others


def check_secrets(config: WorkerManagerConfig, base: str, secrets: Iterable[Mapping[str, str]], setup: str) -> None:
    """Raise UsageError unless containers get this manager's credential. base: name of the definition."""
    given = next((secret["valueFrom"] for secret in secrets if secret["name"] == CREDENTIAL_VARIABLE), "")
    wanted = parameter_name(config, base) if units_credential(config) else ""
    if given.rpartition(":parameter")[2] != wanted:
        raise UsageError(
            f"units of {base} get {given or 'no credential'}, and {wanted or 'none'} is that of this manager: run "
            f"{setup} with its worker_manager_id and credentials; two managers need two definitions"
        )


class CredentialParameter(Resource):
    """The units' credential as a SecureString (free of charge). Without a credential, the parameter does not exist."""

    service, kind = "ssm", "parameter"

    def __init__(self, account: Account, config: WorkerManagerConfig, base: str, credential: str) -> None:
        super().__init__(account, parameter_name(config, base), " with the credential of the units")
        self._text = credential
        # A digest identifies the credential without revealing it, because the secret key is 32 random bytes.
        self._description = f"credential {hashlib.sha256(credential.encode()).hexdigest()[:12]} of scaler"
        self.is_quiet = not credential

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
        return [] if self._is_current(found) else [(f"{self.wanted}", partial(self._put, Overwrite=True))]

    def delete(self, _: Fields) -> None:
        self.call("DeleteParameter", Name=self.name)

    def detail(self, found: Fields) -> str:
        old = "" if self._is_current(found) else ", of another credential: run setup"
        return f": version {found.get('Version')}{old}"

    def _is_current(self, found: Fields) -> bool:
        return bool(found.get("Description") == self._description)

    def _put(self, **fields: Any) -> None:
        self.call(
            "PutParameter",
            Name=self.name,
            Description=self._description,
            Type="SecureString",
            Value=self._text,
            **fields,
        )
