"""The backend of the type aws_ec2. An unanswered CreateFleet is repeated with its client token."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from scaler._version import __version__
from scaler.errors import UsageError
from scaler.protocol.messages import UnitState
from scaler.worker_manager.aws.calls import AwsClient, AwsError, Fields, seconds_between, steady, with_region
from scaler.worker_manager.aws.containers import unreachable
from scaler.worker_manager.aws.credential import parameter_name
from scaler.worker_manager.aws.package import is_in_bucket, package_of
from scaler.worker_manager.aws.prices import EC2_MINIMUM_SECONDS, ec2_price
from scaler.worker_manager.aws_ec2 import AwsEc2Config, cpus_of, template
from scaler.worker_manager.backend import BackendError, Capacity, owner_digest, units_credential
from scaler.worker_manager.polled import PolledBackend, SeenUnit, Stopped

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
LOOK = "its worker exited: /var/log/cloud-init-output.log of the instance, or `aws ec2 get-console-output`, says why"

_log = logging.getLogger(__name__)


class Ec2Backend(PolledBackend):
    """Units are instances. Raises UsageError for settings that EC2 rejects."""

    def __init__(self, config: AwsEc2Config) -> None:
        config = with_region(config)
        slots = config.slots_by_type.values()
        spot = config.ec2_purchase == "spot"
        super().__init__(
            service="EC2",
            noun="instances",
            stop_by_hand=f"terminate each with `aws ec2 terminate-instances --region {config.aws_region} "
            "--instance-ids INSTANCE`",
            # The upper bound over all types.
            capacity=Capacity.of_units(
                min(slots),
                max_instances(config),
                unit_price=max(ec2_price(config.aws_region, name, spot=spot) or 0.0 for name in config.slots_by_type),
                unit_minimum_seconds=EC2_MINIMUM_SECONDS,
            ),
            heartbeat_seconds=config.heartbeat_interval_seconds,
        )
        self._config = config
        self._credential = parameter_name(config, config.ec2_launch_template) if units_credential(config) else ""
        template.user_data(config, self._credential)
        self._ec2 = AwsClient(config, "ec2")
        self._s3 = AwsClient(config, "s3") if config.is_installed else None
        self._version = ""
        self._unanswered: Fields | None = None
        if warning := unreachable("workers on EC2", config.worker_scheduler_address, config.aws_endpoint_url):
            _log.warning("%s", warning)

    def start_some(self, count: int) -> list[str]:
        return self._run(
            template.fleet_request(self._config, self._prepared(), min(count, MAX_STARTED), uuid.uuid4().hex)
        )

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
        del search  # one list shows all
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
            unit = SeenUnit(state_of(instance), seconds_between(instance.get("LaunchTime"), now), reason, slots=slots)
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
            raise BackendError(f"EC2 does not start all instances: {'; '.join(reasons) or 'no reason given'}", unit_ids)
        return unit_ids

    def _prepared(self) -> str:
        if not self._version:
            newest = template.newest_version(self._config.ec2_launch_template, self._ec2)
            if newest is None:
                raise BackendError(
                    f"there is no launch template {self._config.ec2_launch_template}: {template.SETUP} makes it"
                )
            profile = newest["LaunchTemplateData"].get("IamInstanceProfile", {}).get("Name", "")
            if (self._credential or self._config.is_installed) and not profile:
                raise BackendError(
                    f"the launch template {self._config.ec2_launch_template} has no instance profile, in which "
                    f"instances read what they install and their credential: {template.SETUP} makes it"
                )
            if missing := self._missing_package():
                raise BackendError(missing)
            try:
                self._version, _ = template.ensure_template(
                    self._config, self._ec2, self._credential, profile, _log.info
                )
            except UsageError as error:
                raise BackendError(str(error)) from error
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
            _log.warning("cannot look into the bucket %s: %s", config.s3_bucket, error)
            return ""
        return (
            f"the bucket {config.s3_bucket} does not have scaler {__version__} as it is here, with these requirements, "
            f"for {base}: {template.SETUP} puts it there"
        )


def max_instances(config: AwsEc2Config) -> int | None:
    """Return the maximum number of instances of any type within the slot limit, at least 1. None: no limit."""
    limit = config.max_task_concurrency
    return None if limit < 0 else max(1, limit // max(config.slots_by_type.values()))


def instances_of(config: AwsEc2Config, ec2: AwsClient) -> Iterator[Fields]:
    mine = {"Name": f"tag:{template.OWNER_TAG}", "Values": [owner_digest(config, template.OWNER_CHARACTERS)]}
    states = {"Name": "instance-state-name", "Values": list(ALIVE)}
    for reservation in ec2.items("DescribeInstances", "Reservations", Filters=[mine, states]):
        yield from reservation["Instances"]


def described(ec2: AwsClient, instance_ids: Sequence[str]) -> Iterator[Fields]:
    for at in range(0, len(instance_ids), MAX_DESCRIBED):
        # A filter, because EC2 rejects a list of ids with an unknown id.
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
    return steady(str(reason.get("Message") or instance.get("StateTransitionReason") or ""))


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
    return steady(f"{where}: {said}" if where else said)
