"""`scaler_worker_manager aws_ec2 setup|show|teardown`: package, credential, role, instance profile, launch template."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import Any

from scaler.config.commands import Verb
from scaler.worker_manager.aws.calls import Fields, with_region
from scaler.worker_manager.aws.checks import Checks, show_costs
from scaler.worker_manager.aws.package import PackageBucket, PackageResource, package_of, package_statements
from scaler.worker_manager.aws.prices import ec2_price
from scaler.worker_manager.aws.resources import (
    HOSTS_SERVICE,
    CredentialParameter,
    IamRole,
    InstanceProfile,
    backend_statements,
    subnets_of,
)
from scaler.worker_manager.aws.setup import MANAGED_PAIRS, Account, Change, Resource, run
from scaler.worker_manager.aws_ec2 import AwsEc2Config, cpus_of
from scaler.worker_manager.aws_ec2.backend import (
    MISSING,
    check_source,
    cpus_received,
    instances_of,
    is_current,
    max_instances,
    newest_version,
    wanted_template,
)
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
            _show_costs(account, config)
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


def check_instances(checks: Checks, config: AwsEc2Config, instances: int | None) -> None:
    """Check that image, types, and subnets are compatible. instances: the maximum; None for no limit."""
    ec2, own = checks.account.client("ec2"), config.ec2_subnets
    types: list[Fields] = []
    with checks.asking(f"instance types {', '.join(config.ec2_instance_types)}", "ec2_instance_types"):
        types = ec2.call("DescribeInstanceTypes", InstanceTypes=list(config.ec2_instance_types))["InstanceTypes"]
    with checks.asking(f"image {config.ec2_image}", "ec2_image: ids differ by region"):
        [image] = ec2.call("DescribeImages", ImageIds=[config.ec2_image])["Images"]
        checks.ok(f"image {config.ec2_image}")
        for each in types:
            if image["Architecture"] not in each["ProcessorInfo"]["SupportedArchitectures"]:
                text = f"image {config.ec2_image} is for {image['Architecture']}, and {each['InstanceType']} is not"
                checks.problem(f"{text}: choose another image, or other ec2_instance_types")
    with checks.asking("subnets", "ec2_subnets"):
        found = subnets_of(checks.account, own)
        if not found:
            checks.problem("there is no default VPC with subnets in this region: set ec2_subnets")
            return
        checks.network(
            found,
            public_ip=None,
            units=instances,
            noun="instance",
            more="add subnets to ec2_subnets, or lower max_task_concurrency",
            closed_key="VPC endpoints (s3, ssm) and an image with ec2_python",
            public_key="enable auto-assign public IPv4 on the subnet, or choose one with a NAT",
        )
        zones = {str(subnet["AvailabilityZone"]) for subnet in found}
        for name in config.ec2_instance_types:
            filters = [{"Name": "instance-type", "Values": [name]}]
            where = {"LocationType": "availability-zone", "Filters": filters}
            offers = ec2.items("DescribeInstanceTypeOfferings", "InstanceTypeOfferings", **where)
            without = sorted(zones - {str(offer["Location"]) for offer in offers})
            if without and (own or len(without) == len(zones)):
                text = f"{name} is not offered in {', '.join(without)}"
                checks.problem(f"{text}: choose other ec2_instance_types, or subnets in other zones")


def _show_costs(account: Account, config: AwsEc2Config) -> None:
    instances = list(instances_of(config, account.client("ec2")))
    prices = [
        ec2_price(account.region, str(each["InstanceType"]), spot=each.get("InstanceLifecycle") == "spot")
        for each in instances
    ]
    show_costs(account, "instance", prices, f"{sum(map(cpus_received, instances))} vCPUs")
