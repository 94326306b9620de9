"""`scaler_worker_manager aws_ec2 setup|show|teardown`: package, credential, role, instance profile, launch template."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial

from scaler.config.commands import Verb
from scaler.worker_manager.aws.calls import Fields, with_region
from scaler.worker_manager.aws.checks import Checks
from scaler.worker_manager.aws.credential import CredentialParameter
from scaler.worker_manager.aws.instance_profile import InstanceProfile
from scaler.worker_manager.aws.package import PackageBucket, PackageResource, package_of, package_statements
from scaler.worker_manager.aws.resources import HOSTS_SERVICE, IamRole, backend_statements
from scaler.worker_manager.aws.setup import Account, Change, Resource, run
from scaler.worker_manager.aws_ec2 import AwsEc2Config, cpus_of
from scaler.worker_manager.aws_ec2.backend import instances_of, max_instances
from scaler.worker_manager.aws_ec2.checking import check_instances, show_instances
from scaler.worker_manager.aws_ec2.template import MISSING, check_source, ensure_template
from scaler.worker_manager.backend import units_credential


def provision(config: AwsEc2Config, verb: Verb, dry_run: bool, say: Callable[[str], None]) -> int:
    config = with_region(config)
    with closing(Account(config, say, dry_run=dry_run)) as account:
        base, bucket = config.ec2_launch_template, config.s3_bucket
        if verb in ("setup", "check"):
            check_source(config)
        text = "" if verb == "teardown" else units_credential(config)
        credential = CredentialParameter(account, config, base, text)

        def statements() -> Sequence[Fields]:
            read = {"Effect": "Allow", "Action": "ssm:GetParameter", "Resource": credential.arn()}
            packages = package_statements(bucket if config.is_installed else "", base, account.partition)
            return [*([read] if credential.arn() else []), *packages, *backend_statements(config, account.partition)]

        purpose = "the instances, to read their credential"
        if config.is_installed:
            purpose = "the instances, to read what they install and their credential"
        role = IamRole(account, base, "instance", HOSTS_SERVICE, purpose, statements)
        profile = InstanceProfile(account, role.name)
        template = LaunchTemplate(account, config, credential.name if text else "", profile.name)
        package = package_of(config, config.event_loop) if config.is_installed and verb != "teardown" else None
        packages = [PackageBucket(account, bucket), PackageResource(account, bucket, base, package)] if bucket else []
        wanted = [*packages, credential, role, profile, template]
        if verb == "check":
            return _check(account, config, wanted)
        code = run(verb, wanted, [template, profile, role, credential, *reversed(packages)])
        if verb == "show":
            show_instances(account, instances_of(config, account.client("ec2")))
        return code


def _check(account: Account, config: AwsEc2Config, wanted: Sequence[Resource]) -> int:
    checks, types = Checks(account), config.ec2_instance_types
    instances = max_instances(config)
    vcpus = None if instances is None else instances * max(map(cpus_of, types))
    checks.instances("SPOT" if config.ec2_purchase == "spot" else "EC2", types, vcpus, "max_task_concurrency")
    check_instances(checks, config, instances)
    checks.resources(wanted)
    return checks.finish(config)


class LaunchTemplate(Resource):
    """The launch template, to which the manager and users add versions."""

    service, kind = "ec2", "launch template"
    foreign_note = "made by others"

    def __init__(self, account: Account, config: AwsEc2Config, credential: str, profile: str) -> None:
        super().__init__(account, config.ec2_launch_template)
        self._config, self._credential, self._profile = config, credential, profile

    def describe(self) -> Fields | None:
        found = self.find("DescribeLaunchTemplates", *MISSING, LaunchTemplateNames=[self.name])
        return next(iter(found["LaunchTemplates"]), None) if found else None

    def create(self) -> None:
        self.account.when_roles_are_known(partial(self._ensured, dry_run=False))

    def changes(self, _: Fields) -> Sequence[Change]:
        return [(f"{self.what}: another version", self.create)] if self._ensured(dry_run=True) else []

    def delete(self, _: Fields) -> None:
        self.call("DeleteLaunchTemplate", LaunchTemplateName=self.name)

    def suffix(self, found: Fields) -> str:
        return f":{found['LatestVersionNumber']}"

    def in_use(self, _: Fields) -> str:
        count = len(list(instances_of(self._config, self.account.client("ec2"))))
        return f"its manager has instances ({count}): stop the worker manager first" if count else ""

    def _ensured(self, *, dry_run: bool) -> bool:
        ec2, profile = self.account.client("ec2"), self._profile
        _, is_new = ensure_template(self._config, ec2, self._credential, profile, lambda _: None, dry_run=dry_run)
        return is_new
