"""`scaler_worker_manager aws_ec2 setup|show|teardown`: package, credential, role, instance profile, launch template."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import Any

from scaler.config.commands import Verb
from scaler.worker_manager.aws import resources
from scaler.worker_manager.aws.calls import Fields, with_region
from scaler.worker_manager.aws.package import package_resources, package_statements
from scaler.worker_manager.aws.setup import MANAGED_PAIRS, Account, Change, Resource, run
from scaler.worker_manager.aws_ec2 import AwsEc2Config, backend
from scaler.worker_manager.backend import units_credential

PURPOSE = "the instances, to read their packages and credential"


def provision(config: AwsEc2Config, verb: Verb, dry_run: bool, say: Callable[[str], None]) -> int:
    config = with_region(config)
    with closing(Account(config, verb, say, dry_run=dry_run)) as account:
        base, bucket = config.ec2_launch_template, config.s3_bucket
        if verb == "setup":
            backend.check_source(config)
        text = "" if verb == "teardown" else units_credential(config)
        credential = resources.CredentialParameter(account, config, base, text)

        def statements() -> Sequence[Fields]:
            read = {"Effect": "Allow", "Action": "ssm:GetParameter", "Resource": credential.arn()}
            found = [read] if credential.arn() else []
            found += package_statements(bucket if config.is_installed else "", base, account.partition)
            return found + resources.backend_statements(config, account.partition)

        role = resources.IamRole(account, base, "instance", resources.HOSTS_SERVICE, PURPOSE, statements)
        profile = resources.InstanceProfile(account, role.name)
        template = LaunchTemplate(account, config, credential.name if text else "", profile.name)
        packages = package_resources(account, config, config.event_loop, bucket, base, is_installed=config.is_installed)
        wanted = [*packages, credential, role, profile, template]
        return run(account, wanted, [template, profile, role, credential, *reversed(packages)])


class LaunchTemplate(Resource):
    service, kind = "ec2", "launch template"

    def __init__(self, account: Account, config: AwsEc2Config, credential: str, profile: str) -> None:
        super().__init__(account, config.ec2_launch_template)
        self._config, self._credential, self._profile = config, credential, profile

    def describe(self) -> Fields | None:
        found = self.find("DescribeLaunchTemplates", *backend.MISSING, LaunchTemplateNames=[self.name])
        return next(iter(found["LaunchTemplates"]), None) if found else None

    def create(self) -> None:
        tags = [{"ResourceType": "launch-template", "Tags": MANAGED_PAIRS}]
        self._make("CreateLaunchTemplate", TagSpecifications=tags)

    def changes(self, _: Fields) -> Sequence[Change]:
        newest = backend.newest_version(self.name, self.account.client("ec2"))
        if newest is not None and backend.is_current(newest, self._wanted()):
            return []
        return [(f"{self.what}: another version", partial(self._make, "CreateLaunchTemplateVersion"))]

    def delete(self, _: Fields) -> None:
        self.call("DeleteLaunchTemplate", LaunchTemplateName=self.name)

    def suffix(self, found: Fields) -> str:
        return f":{found['LatestVersionNumber']}"

    def in_use(self, _: Fields) -> str:
        count = len(list(backend.instances_of(self._config, self.account.client("ec2"))))
        return f"its manager has instances ({count}): stop the worker manager first" if count else ""

    def _wanted(self) -> Fields:
        return backend.wanted_template(self._config, self._credential, self._profile)

    def _make(self, operation: str, **more: Any) -> None:
        data = self._wanted()
        make = partial(self.call, operation, LaunchTemplateName=self.name, LaunchTemplateData=data, **more)
        self.account.when_roles_are_known(make)
