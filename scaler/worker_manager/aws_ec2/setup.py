"""`scaler_worker_manager aws_ec2 setup|show|teardown`: package, credential, role, instance profile, launch template."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import Any

from scaler.config.commands import Verb
from scaler.worker_manager.aws.calls import Fields, with_region
from scaler.worker_manager.aws.package import PackageBucket, PackageResource, package_of, package_statements
from scaler.worker_manager.aws.resources import (
    HOSTS_SERVICE,
    CredentialParameter,
    IamRole,
    InstanceProfile,
    backend_statements,
)
from scaler.worker_manager.aws.setup import MANAGED_PAIRS, Account, Change, Resource, run
from scaler.worker_manager.aws_ec2 import AwsEc2Config
from scaler.worker_manager.aws_ec2.backend import (
    MISSING,
    check_source,
    instances_of,
    is_current,
    newest_version,
    wanted_template,
)
from scaler.worker_manager.backend import units_credential

PURPOSE = "the instances, to read what they install and their credential"


def provision(config: AwsEc2Config, verb: Verb, dry_run: bool, say: Callable[[str], None]) -> int:
    config = with_region(config)
    with closing(Account(config, verb, say, dry_run=dry_run)) as account:
        base, bucket = config.ec2_launch_template, config.s3_bucket
        if verb == "setup":
            check_source(config)
        text = "" if verb == "teardown" else units_credential(config)
        credential = CredentialParameter(account, config, base, text)

        def statements() -> Sequence[Fields]:
            read = {"Effect": "Allow", "Action": "ssm:GetParameter", "Resource": credential.arn()}
            packages = package_statements(bucket if config.is_installed else "", base, account.partition)
            return [*([read] if credential.arn() else []), *packages, *backend_statements(config, account.partition)]

        role = IamRole(account, base, "instance", HOSTS_SERVICE, PURPOSE, statements)
        profile = InstanceProfile(account, role.name)
        template = LaunchTemplate(account, config, credential.name if text else "", profile.name)
        package = package_of(config, config.event_loop) if config.is_installed and verb != "teardown" else None
        packages = [PackageBucket(account, bucket), PackageResource(account, bucket, base, package)] if bucket else []
        wanted = [*packages, credential, role, profile, template]
        return run(account, wanted, [template, profile, role, credential, *reversed(packages)])


class LaunchTemplate(Resource):
    service, kind = "ec2", "launch template"

    def __init__(self, account: Account, config: AwsEc2Config, credential: str, profile: str) -> None:
        super().__init__(account, config.ec2_launch_template)
        self._config, self._credential, self._profile = config, credential, profile

    def describe(self) -> Fields | None:
        found = self.find("DescribeLaunchTemplates", *MISSING, LaunchTemplateNames=[self.name])
        return next(iter(found["LaunchTemplates"]), None) if found else None

    def create(self) -> None:
        tags = [{"ResourceType": "launch-template", "Tags": MANAGED_PAIRS}]
        self._make("CreateLaunchTemplate", TagSpecifications=tags)

    def changes(self, _: Fields) -> Sequence[Change]:
        newest = newest_version(self.name, self.account.client("ec2"))
        if newest is not None and is_current(newest, self._wanted()):
            return []
        return [(f"{self.what}: another version", partial(self._make, "CreateLaunchTemplateVersion"))]

    def delete(self, _: Fields) -> None:
        self.call("DeleteLaunchTemplate", LaunchTemplateName=self.name)

    def suffix(self, found: Fields) -> str:
        return f":{found['LatestVersionNumber']}"

    def in_use(self, _: Fields) -> str:
        count = len(list(instances_of(self._config, self.account.client("ec2"))))
        return f"its manager has instances ({count}): stop the worker manager first" if count else ""

    def _wanted(self) -> Fields:
        return wanted_template(self._config, self._credential, self._profile)

    def _make(self, operation: str, **more: Any) -> None:
        data = self._wanted()
        make = partial(self.call, operation, LaunchTemplateName=self.name, LaunchTemplateData=data, **more)
        self.account.when_roles_are_known(make)
