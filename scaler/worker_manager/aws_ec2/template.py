"""The launch template of the instances. The user data contains the worker's configuration except its credential."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from scaler.config.worker import WORKER_CONFIG_VARIABLE
from scaler.config.worker_managers import WorkerManagerConfig
from scaler.errors import UsageError
from scaler.worker_manager.aws.calls import AwsClient, Fields, owner_tags
from scaler.worker_manager.aws.package import install_command, package_of
from scaler.worker_manager.aws.resources import covers
from scaler.worker_manager.aws.setup import MANAGED_PAIRS
from scaler.worker_manager.aws_ec2 import AwsEc2Config
from scaler.worker_manager.aws_ec2.instance import INSTANCE_ID_VARIABLE
from scaler.worker_manager.backend import owner_digest
from scaler.worker_manager.containers import worker_document

SETUP = "`scaler_worker_manager aws_ec2 setup`"
MAX_USER_DATA_BYTES = 16 * 1024  # before base64; source: "User data" in the EC2 user guide
STOP_GRACE_SECONDS = 100.0  # for running tasks of a stopped worker; a spot notice is sent two minutes ahead
OWNER_TAG = "scaler:owner"
OWNER_CHARACTERS = 28
MODULE = "scaler.worker_manager.aws_ec2.instance"
MISSING = ("InvalidLaunchTemplateName.NotFoundException", "InvalidLaunchTemplateId.NotFound")
_WORKER = """\
set -e
{setup}export {variable}={document}
exec {command}
"""
_SCRIPT = """\
#!/bin/sh
# Runs a worker of scaler, and shuts this machine down when it has exited, whatever goes wrong before.
sh -c {worker}
shutdown -h now
"""


def check_source(config: AwsEc2Config) -> None:
    if config.ec2_python is None and not config.s3_bucket:
        raise UsageError(
            "s3_bucket and ec2_python are missing: give s3_bucket the name of a bucket, from which instances install "
            "this version of scaler, or give ec2_python a Python of ec2_image that has it"
        )


def user_data(config: AwsEc2Config, credential: str) -> str:
    """Return an instance's script. credential: name of its parameter, or empty. Raises UsageError if it is too long."""
    check_source(config)
    arguments = ["--slots", str(config.ec2_slots), "--region", config.aws_region]
    if credential:
        arguments += ["--credential", credential]
    if config.ec2_python is not None:
        return boot_script(config, "ec2_setup", config.ec2_setup, python_command(config.ec2_python, arguments))
    package, base = package_of(config, config.event_loop), config.ec2_launch_template
    command = install_command(package, config.aws_region, config.s3_bucket, base, MODULE)
    # Boot scripts have no HOME, where uv and the environment are installed.
    setup = f"export HOME=${{HOME:-/root}}\n{config.ec2_setup}"
    return boot_script(config, "ec2_setup", setup, [*command, *arguments])


def python_command(python: str, arguments: Sequence[str]) -> list[str]:
    return [python, "-P", "-m", MODULE, *arguments]


def boot_script(config: WorkerManagerConfig, setup_key: str, setup: str, command: Sequence[str]) -> str:
    """Return a script that runs a worker, then shuts the machine down. Raises UsageError if it is too long."""
    unit_id_from = f"env:{INSTANCE_ID_VARIABLE}"
    worker = _WORKER.format(
        setup=f"{setup.strip()}\n" if setup.strip() else "",
        variable=WORKER_CONFIG_VARIABLE,
        document=shlex.quote(
            worker_document(config, 1, unit_id_from=unit_id_from, stop_grace_seconds=STOP_GRACE_SECONDS)
        ),
        command=shlex.join(command),
    )
    text = _SCRIPT.format(worker=shlex.quote(worker))
    if (size := len(text.encode())) > MAX_USER_DATA_BYTES:
        raise UsageError(
            f"the user data of the instances has {size} bytes, and EC2 allows {MAX_USER_DATA_BYTES}: shorten "
            f"{setup_key} (let it fetch a script), per_worker_capabilities or preload"
        )
    return text


def wanted_template(config: AwsEc2Config, credential: str, profile: str) -> Fields:
    template: Fields = {
        "ImageId": config.ec2_image,
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions": {"HttpTokens": "required", "HttpEndpoint": "enabled"},
        "UserData": base64.b64encode(user_data(config, credential).encode()).decode(),
    }
    volume = {"VolumeSize": config.ec2_volume_gigabytes, "VolumeType": "gp3", "DeleteOnTermination": True}
    optional: Fields = {
        "IamInstanceProfile": profile and {"Name": profile},
        "SecurityGroupIds": list(config.ec2_security_groups),
        "KeyName": config.ec2_key_name,
        "BlockDeviceMappings": config.ec2_volume_gigabytes and [{"DeviceName": config.ec2_root_device, "Ebs": volume}],
    }
    return template | {name: value for name, value in optional.items() if value}


def newest_version(name: str, ec2: AwsClient) -> Fields | None:
    found = ec2.find("DescribeLaunchTemplateVersions", *MISSING, LaunchTemplateName=name, Versions=["$Latest"])
    return next(iter(found["LaunchTemplateVersions"]), None) if found else None


def ensure_template(
    config: AwsEc2Config,
    ec2: AwsClient,
    credential: str,
    profile: str,
    say: Callable[[str], None],
    *,
    dry_run: bool = False,
) -> tuple[str, bool]:
    """Add a template version if the newest differs. Return the version to use, and whether one was (or would be) added.
    dry_run: add nothing. Raises AwsError and UsageError."""
    name, wanted = config.ec2_launch_template, wanted_template(config, credential, profile)
    newest = newest_version(name, ec2)
    if newest is not None and _has(newest["LaunchTemplateData"], wanted):
        return str(newest["VersionNumber"]), False
    if dry_run:
        return "", True
    if newest is None:
        specification = [{"ResourceType": "launch-template", "Tags": MANAGED_PAIRS}]
        ec2.call(
            "CreateLaunchTemplate", LaunchTemplateName=name, LaunchTemplateData=wanted, TagSpecifications=specification
        )
        version = "1"
    else:
        made = ec2.call("CreateLaunchTemplateVersion", LaunchTemplateName=name, LaunchTemplateData=wanted)
        version = str(made["LaunchTemplateVersion"]["VersionNumber"])
    say(f"made version {version} of the launch template {name}")
    return version, True


def fleet_request(config: AwsEc2Config, version: str, count: int, token: str) -> Fields:
    places: list[Fields] = [{"SubnetId": subnet} for subnet in config.ec2_subnets] or [{}]
    owner = owner_tags(config.worker_manager_id, config.worker_scheduler_address)
    tags = {**owner, OWNER_TAG: owner_digest(config, OWNER_CHARACTERS), "Name": f"scaler {config.worker_manager_id}"}
    spot = config.ec2_purchase == "spot"
    return {
        "Type": "instant",
        "ClientToken": token,
        "LaunchTemplateConfigs": [
            {
                "LaunchTemplateSpecification": {"LaunchTemplateName": config.ec2_launch_template, "Version": version},
                "Overrides": [
                    {"InstanceType": name, **place} for name in config.ec2_instance_types for place in places
                ],
            }
        ],
        "TargetCapacitySpecification": {"TotalTargetCapacity": count, "DefaultTargetCapacityType": config.ec2_purchase},
        **({"SpotOptions": {"AllocationStrategy": "price-capacity-optimized"}} if spot else {}),
        **({} if spot else {"OnDemandOptions": {"AllocationStrategy": "lowest-price"}}),
        "TagSpecifications": [
            {"ResourceType": "instance", "Tags": [{"Key": key, "Value": text} for key, text in tags.items()]}
        ],
    }


def _has(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    optional = ("IamInstanceProfile", "SecurityGroupIds", "KeyName", "BlockDeviceMappings")
    if any(found.get(name) and name not in wanted for name in optional):
        return False
    return all(covers(found.get(name), wish) for name, wish in wanted.items())
