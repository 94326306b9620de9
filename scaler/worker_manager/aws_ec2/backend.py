"""The backend of the type aws_ec2. Retries an unanswered CreateFleet with the same client token."""

from __future__ import annotations

import base64
import logging
import shlex
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from scaler._version import __version__
from scaler.config.worker import WORKER_CONFIG_VARIABLE
from scaler.config.worker_managers import WorkerManagerConfig
from scaler.errors import UsageError
from scaler.protocol.messages import UnitState
from scaler.worker_manager import backend as frame
from scaler.worker_manager.aws import calls
from scaler.worker_manager.aws.calls import AwsClient, AwsError, Fields
from scaler.worker_manager.aws.package import install_command, is_in_bucket, package_of
from scaler.worker_manager.aws.prices import EC2_MINIMUM_SECONDS, ec2_price
from scaler.worker_manager.aws.resources import covers, parameter_name
from scaler.worker_manager.aws_ec2 import AwsEc2Config, cpus_of
from scaler.worker_manager.aws_ec2.instance import INSTANCE_ID_VARIABLE
from scaler.worker_manager.backend import BackendError, Capacity
from scaler.worker_manager.polled import PolledBackend, SeenUnit, Stopped

SETUP = "`scaler_worker_manager aws_ec2 setup`"
STOP_GRACE_SECONDS = 100.0  # grace period for running tasks; a spot notice is sent two minutes in advance
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
# Runs a scaler worker, then shuts this machine down, even if an earlier step fails.
sh -c {worker}
shutdown -h now
"""


def check_source(config: AwsEc2Config) -> None:
    if config.ec2_python is None and not config.s3_bucket:
        raise UsageError(
            "s3_bucket and ec2_python are missing: set s3_bucket to a bucket from which instances can install this "
            "version of scaler, or ec2_python to a Python in ec2_image that has it"
        )


def user_data(config: AwsEc2Config, credential: str) -> str:
    """Return an instance's boot script. credential: name of the credential's parameter, or empty. Raises UsageError."""
    check_source(config)
    arguments = ["--slots", str(config.ec2_slots), "--region", config.aws_region]
    if credential:
        arguments += ["--credential", credential]
    if config.ec2_python is not None:
        return boot_script(config, config.ec2_setup, python_command(config.ec2_python, arguments))
    package, base = package_of(config, config.event_loop), config.ec2_launch_template
    command = install_command(package, config.aws_region, config.s3_bucket, base, MODULE)
    # Boot scripts have no HOME, where uv and the environment are installed.
    setup = f"export HOME=${{HOME:-/root}}\n{config.ec2_setup}"
    return boot_script(config, setup, [*command, *arguments])


def python_command(python: str, arguments: Sequence[str]) -> list[str]:
    return [python, "-P", "-m", MODULE, *arguments]


def boot_script(config: WorkerManagerConfig, setup: str, command: Sequence[str]) -> str:
    """Return a script that runs a worker, then shuts the machine down. EC2 accepts 16 KB."""
    unit_id_from = f"env:{INSTANCE_ID_VARIABLE}"
    worker = _WORKER.format(
        setup=f"{setup.strip()}\n" if setup.strip() else "",
        variable=WORKER_CONFIG_VARIABLE,
        document=shlex.quote(
            frame.worker_document(config, 1, unit_id_from=unit_id_from, stop_grace_seconds=STOP_GRACE_SECONDS)
        ),
        command=shlex.join(command),
    )
    return _SCRIPT.format(worker=shlex.quote(worker))


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


def is_current(version: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    found = version["LaunchTemplateData"]
    optional = ("IamInstanceProfile", "SecurityGroupIds", "KeyName", "BlockDeviceMappings")
    if any(found.get(name) and name not in wanted for name in optional):
        return False
    return all(covers(found.get(name), wish) for name, wish in wanted.items())


def fleet_request(config: AwsEc2Config, version: str, count: int, token: str) -> Fields:
    places: list[Fields] = [{"SubnetId": subnet} for subnet in config.ec2_subnets] or [{}]
    owner = calls.owner_tags(config.worker_manager_id, config.worker_scheduler_address)
    tags = {
        **owner,
        OWNER_TAG: frame.owner_digest(config, OWNER_CHARACTERS),
        "Name": f"scaler {config.worker_manager_id}",
    }
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


MAX_STARTED = 100  # instances per CreateFleet; more would exceed the call timeout
MAX_DESCRIBED = 200  # Values per filter. Source: DescribeInstances, EC2 API reference.
ALIVE = ("pending", "running", "shutting-down", "stopping")
_STATES = {
    "pending": UnitState.PENDING,
    "running": UnitState.RUNNING,
    "shutting-down": UnitState.STOPPING,
    "stopping": UnitState.STOPPING,
}
BY_US = "Client.UserInitiatedShutdown"
BY_ITSELF = "Client.InstanceInitiatedShutdown"
LOOK = "its worker exited: /var/log/cloud-init-output.log of the instance, or `aws ec2 get-console-output`, shows why"

_log = logging.getLogger(__name__)


class Ec2Backend(PolledBackend):
    """Units are instances. Raises UsageError for settings that EC2 rejects."""

    def __init__(self, config: AwsEc2Config) -> None:
        config = calls.with_region(config)
        slots = config.slots_by_type.values()
        spot = config.ec2_purchase == "spot"
        super().__init__(
            service="EC2",
            noun="instances",
            stop_by_hand=f"terminate each with `aws ec2 terminate-instances --region {config.aws_region} "
            "--instance-ids INSTANCE`",
            # The price is an upper bound for all types.
            capacity=Capacity.of_units(
                min(slots),
                max_instances(config),
                unit_price=max(ec2_price(config.aws_region, name, spot=spot) or 0.0 for name in config.slots_by_type),
                unit_minimum_seconds=EC2_MINIMUM_SECONDS,
            ),
            heartbeat_seconds=config.heartbeat_interval_seconds,
        )
        self._config = config
        self._credential = parameter_name(config, config.ec2_launch_template) if frame.units_credential(config) else ""
        check_source(config)
        self._ec2 = AwsClient(config, "ec2")
        self._s3 = AwsClient(config, "s3") if config.is_installed else None
        self._version = ""
        self._unanswered: Fields | None = None
        if config.aws_endpoint_url is None:
            frame.warn_of_loopback("workers on EC2", config.worker_scheduler_address)

    def start_some(self, count: int) -> list[str]:
        return self._run(fleet_request(self._config, self._prepared(), min(count, MAX_STARTED), uuid.uuid4().hex))

    def started_unanswered(self) -> list[str]:
        return [] if self._unanswered is None else self._run(self._unanswered)

    def stop_one(self, unit_id: str) -> Stopped:
        return "stopping" if self._terminate([unit_id]) else "not found"

    def stop_some(self, unit_ids: Sequence[str]) -> Mapping[str, Stopped | BackendError]:
        """Terminate all units with one call, or one by one if EC2 rejects the call because of one unit."""
        if len(unit_ids) == 1:
            return super().stop_some(unit_ids)
        try:
            if self._terminate(unit_ids):
                return dict.fromkeys(unit_ids, "stopping")
        except AwsError as error:
            if error.kind != "refused":
                return dict.fromkeys(unit_ids, error)
        return super().stop_some(unit_ids)

    def list_ids(self, *, search: bool) -> list[str]:
        del search  # one listing contains all instances
        return [str(instance["InstanceId"]) for instance in instances_of(self._config, self._ec2)]

    def describe(self, unit_ids: Sequence[str]) -> dict[str, SeenUnit]:
        now, seen = datetime.now(UTC), {}
        exited = ""
        for instance in described(self._ec2, unit_ids):
            reason = reason_of(instance)
            if reason == LOOK:
                self._version = ""  # check for a missing template before the next start
                exited = reason = exited or self._missing_package() or LOOK
            slots = self._config.ec2_slots or cpus_received(instance)
            unit = SeenUnit(
                state_of(instance), calls.seconds_between(instance.get("LaunchTime"), now), reason, slots=slots
            )
            seen[str(instance["InstanceId"])] = unit
        return seen

    def disconnect(self) -> None:
        self._ec2.close()
        if self._s3 is not None:
            self._s3.close()

    def _terminate(self, unit_ids: Sequence[str]) -> bool:
        absent = ("InvalidInstanceID.NotFound", "InvalidInstanceID.Malformed")
        return self._ec2.find("TerminateInstances", *absent, InstanceIds=list(unit_ids)) is not None

    def _run(self, request: Fields) -> list[str]:
        try:
            answer = self._ec2.call("CreateFleet", **request)
        except AwsError as error:
            if error.is_uncertain:
                self._unanswered = request
            elif error.kind == "refused":
                self._unanswered = None
                self._version = ""  # the template may have been removed or changed
            raise
        self._unanswered = None
        unit_ids = [unit_id for each in answer.get("Instances", ()) for unit_id in each["InstanceIds"]]
        if len(unit_ids) < request["TargetCapacitySpecification"]["TotalTargetCapacity"]:
            reasons = sorted({_failure_text(failure) for failure in answer.get("Errors", ())})
            raise BackendError(f"EC2 did not start all instances: {'; '.join(reasons) or 'no reason given'}", unit_ids)
        return unit_ids

    def _prepared(self) -> str:
        if not self._version:
            newest = newest_version(self._config.ec2_launch_template, self._ec2)
            if newest is None:
                raise BackendError(f"there is no launch template {self._config.ec2_launch_template}: run {SETUP}")
            profile = newest["LaunchTemplateData"].get("IamInstanceProfile", {}).get("Name", "")
            if (self._credential or self._config.is_installed) and not profile:
                raise BackendError(
                    f"the launch template {self._config.ec2_launch_template} has no instance profile, which "
                    f"instances need to read their credential and packages: run {SETUP}"
                )
            if missing := self._missing_package():
                raise BackendError(missing)
            version = str(newest["VersionNumber"])
            wanted = wanted_template(self._config, self._credential, profile)
            if not is_current(newest, wanted):
                name = self._config.ec2_launch_template
                made = self._ec2.call("CreateLaunchTemplateVersion", LaunchTemplateName=name, LaunchTemplateData=wanted)
                version = str(made["LaunchTemplateVersion"]["VersionNumber"])
                _log.info("created version %s of the launch template %s", version, name)
            self._version = version
        return self._version

    def _missing_package(self) -> str:
        if self._s3 is None:
            return ""
        config = self._config
        package, base = package_of(config, config.event_loop), config.ec2_launch_template
        try:
            if is_in_bucket(self._s3, config.s3_bucket, base, package):
                return ""
        except AwsError as error:
            _log.warning("cannot read the bucket %s: %s", config.s3_bucket, error)
            return ""
        return (
            f"the bucket {config.s3_bucket} does not contain this build of scaler {__version__} with the current "
            f"requirements for {base}: run {SETUP}"
        )


def max_instances(config: AwsEc2Config) -> int | None:
    """Return the maximum number of instances of any type within the slot limit, at least 1. None: no limit."""
    limit = config.max_task_concurrency
    return None if limit < 0 else max(1, limit // max(config.slots_by_type.values()))


def instances_of(config: AwsEc2Config, ec2: AwsClient) -> Iterator[Fields]:
    mine = {"Name": f"tag:{OWNER_TAG}", "Values": [frame.owner_digest(config, OWNER_CHARACTERS)]}
    states = {"Name": "instance-state-name", "Values": list(ALIVE)}
    for reservation in ec2.items("DescribeInstances", "Reservations", Filters=[mine, states]):
        yield from reservation["Instances"]


def described(ec2: AwsClient, instance_ids: Sequence[str]) -> Iterator[Fields]:
    for at in range(0, len(instance_ids), MAX_DESCRIBED):
        # Filter, because EC2 rejects an id list that contains an unknown id.
        some = [{"Name": "instance-id", "Values": list(instance_ids[at : at + MAX_DESCRIBED])}]
        for reservation in ec2.items("DescribeInstances", "Reservations", Filters=some):
            yield from reservation["Instances"]


def state_of(instance: Mapping[str, Any]) -> UnitState:
    """Return the state of an instance. STOPPED: terminated by Scaler or a user."""
    state = instance.get("State", {}).get("Name", "")
    if state in _STATES:
        return _STATES[state]
    return UnitState.STOPPED if _reason_code(instance) == BY_US else UnitState.FAILED


def reason_of(instance: Mapping[str, Any]) -> str:
    reason = instance.get("StateReason", {})
    if _reason_code(instance) == BY_ITSELF:
        return LOOK
    return calls.steady(str(reason.get("Message") or instance.get("StateTransitionReason") or ""))


def cpus_received(instance: Mapping[str, Any]) -> int:
    options = instance.get("CpuOptions", {})
    counted = int(options.get("CoreCount", 0)) * int(options.get("ThreadsPerCore", 1))
    return counted or cpus_of(str(instance.get("InstanceType", "")))


def _reason_code(instance: Mapping[str, Any]) -> str:
    return str(instance.get("StateReason", {}).get("Code", ""))


def _failure_text(failure: Mapping[str, Any]) -> str:
    place = failure.get("LaunchTemplateAndOverrides", {}).get("Overrides", {})
    where = " in ".join(str(place[key]) for key in ("InstanceType", "SubnetId") if place.get(key))
    said = ": ".join(str(failure[key]) for key in ("ErrorCode", "ErrorMessage") if failure.get(key))
    return calls.steady(f"{where}: {said}" if where else said)
