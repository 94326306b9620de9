"""The backend of the type orb_aws_ec2: ORB requests and returns machines, and EC2 says how they are.

ORB's own list has every machine that it has started, but it does not notice that one has ended: so EC2 is asked.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from scaler.config.worker import WORKER_CONFIG_VARIABLE
from scaler.errors import UsageError
from scaler.protocol.messages import UnitState
from scaler.worker_manager.aws.calls import AwsClient, steady
from scaler.worker_manager.aws.containers import worker_document
from scaler.worker_manager.backend import BackendError, Capacity
from scaler.worker_manager.orb_aws_ec2 import OrbAwsEc2Config
from scaler.worker_manager.orb_aws_ec2.broker import OrbBroker, OrbError
from scaler.worker_manager.polled import PolledBackend, SeenUnit, Stopped

MAX_REQUESTED = 100
"""Machines of one request."""
MAX_LISTED = 1000
"""Machines of the template that ORB started last."""
MAX_DESCRIBED = 200
"""Values of a filter. Source: DescribeInstances in the API reference of EC2."""
MAX_USER_DATA_BYTES = 16 * 1024
"""Before base64. Source: the EC2 user guide, user data."""
STOP_GRACE_SECONDS = 100.0
"""How long running tasks of a worker that is stopped may take."""
REQUEST_SECONDS = 30.0
REQUEST_PAUSE_SECONDS = 1.0
"""A request is asked for this often, until it is complete or this long has passed."""
FINAL = ("complete", "partial", "failed", "cancelled", "timeout")
OVER = ("terminated", "returned", "failed", "shutting-down")
_STATES = {
    "pending": UnitState.PENDING,
    "running": UnitState.RUNNING,
    "terminated": UnitState.FAILED,
}
"""A machine in any other state is stopping."""
_WORKER = """\
set -e
{setup}metadata=${{AWS_EC2_METADATA_SERVICE_ENDPOINT:-http://169.254.169.254}}/latest
token=$(curl -sfS -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 300' "$metadata/api/token")
SCALER_MACHINE=$(curl -sfS -H "X-aws-ec2-metadata-token: $token" "$metadata/meta-data/instance-id")
export SCALER_MACHINE {variable}={document}
exec {python} -P -m scaler.worker
"""
_USER_DATA = """\
#!/bin/sh
# Runs a worker of scaler, and shuts this machine down when it has exited, whatever goes wrong before.
sh -c {worker}
shutdown -h now
"""


def user_data(config: OrbAwsEc2Config) -> str:
    """Return the script that a machine runs when it starts. Raises UsageError when it is longer than EC2 allows."""
    document = worker_document(
        config, config.orb_slots, unit_id_from="env:SCALER_MACHINE", stop_grace_seconds=STOP_GRACE_SECONDS
    )
    worker = _WORKER.format(
        setup="".join(f"{command}\n" for command in config.orb_setup),
        variable=WORKER_CONFIG_VARIABLE,
        document=shlex.quote(document),
        python=shlex.quote(config.orb_python),
    )
    text = _USER_DATA.format(worker=shlex.quote(worker))
    if (size := len(text.encode())) > MAX_USER_DATA_BYTES:
        raise UsageError(
            f"the user data of the machines has {size} bytes, and EC2 allows {MAX_USER_DATA_BYTES}: shorten orb_setup "
            "(let it fetch a script), per_worker_capabilities or preload"
        )
    return text


class OrbBackend(PolledBackend):
    """Units are machines of ORB. orb: opened as the settings say by default. Raises UsageError."""

    def __init__(self, config: OrbAwsEc2Config, orb: OrbBroker | None = None) -> None:
        limit, slots = config.max_task_concurrency, config.orb_slots
        super().__init__(
            service="ORB",
            noun="machines",
            stop_by_hand="return each with `orb machines return MACHINE`",
            capacity=Capacity.of_units(slots, None if limit < 0 else -(-limit // slots)),
            heartbeat_seconds=config.heartbeat_interval_seconds,
        )
        self._template = config.orb_template
        self._user_data = user_data(config)
        self._orb = OrbBroker(config.orb_config) if orb is None else orb
        self._owns_orb = orb is None
        self._ec2 = AwsClient(config, "ec2")
        self._is_prepared = False
        self._open_request = ""
        """A request whose outcome is not known yet."""
        self._returned: set[str] = set()

    def start_some(self, count: int) -> list[str]:
        if not self._is_prepared:
            self._orb.call("update_template", self._template, user_data=self._user_data)
            self._is_prepared = True
        answer = self._orb.call("request_machines", self._template, min(count, MAX_REQUESTED))
        self._open_request = str(answer.get("request_id") or "")
        if not self._open_request:
            raise OrbError(f"ORB does not start machines: {steady(str(answer.get('error') or 'no reason given'))}")
        return self.started_unanswered()

    def started_unanswered(self) -> list[str]:
        if not self._open_request:
            return []
        deadline = time.monotonic() + REQUEST_SECONDS
        while True:
            found = self._orb.call("get_request_status", request_id=self._open_request)["requests"]
            request: Mapping[str, Any] = next(iter(found), {"status": "failed", "message": "ORB does not know it"})
            if request["status"] in FINAL:
                break
            if time.monotonic() >= deadline:
                raise OrbError(f"ORB has not decided about a request within {REQUEST_SECONDS:g} s")
            time.sleep(REQUEST_PAUSE_SECONDS)
        self._open_request = ""
        unit_ids = [str(unit_id) for unit_id in request.get("machine_ids") or ()]
        if request["status"] != "complete":
            reason = steady(str(request.get("message") or request["status"]))
            raise BackendError(f"ORB does not start all machines: {reason}", unit_ids)
        return unit_ids

    def stop_one(self, unit_id: str) -> Stopped:
        try:
            self._orb.call("return_machines", [unit_id])
        except OrbError as error:
            if type(error.__cause__).__name__ == "EntityNotFoundError":
                return "not found"
            raise
        self._returned.add(unit_id)
        return "stopping"

    def list_ids(self, *, search: bool) -> list[str]:
        if search:  # ORB lists the machines of a request once that has been asked for
            requests = self._orb.call("list_requests").get("requests", ())
            waiting = [str(each["request_id"]) for each in requests if each.get("status") not in FINAL]
            if waiting:
                self._orb.call("get_request_status", waiting)
        machines = self._orb.call("list_machines", limit=MAX_LISTED)["machines"]
        ours = [each for each in machines if each.get("template_id") == self._template and each["status"] not in OVER]
        return [str(each["machine_id"]) for each in ours]

    def describe(self, unit_ids: Sequence[str]) -> dict[str, SeenUnit]:
        now = datetime.now(UTC)
        seen = {}
        for at in range(0, len(unit_ids), MAX_DESCRIBED):
            filters = [{"Name": "instance-id", "Values": list(unit_ids[at : at + MAX_DESCRIBED])}]
            for reservation in self._ec2.items("DescribeInstances", "Reservations", Filters=filters):
                for machine in reservation["Instances"]:
                    seen[str(machine["InstanceId"])] = self._seen(machine, now)
        return seen

    def disconnect(self) -> None:
        if self._owns_orb:
            self._orb.close()
        self._ec2.close()

    def _seen(self, machine: Mapping[str, Any], now: datetime) -> SeenUnit:
        name, unit_id = machine["State"]["Name"], str(machine["InstanceId"])
        state = _STATES.get(name, UnitState.STOPPING)
        if state is UnitState.FAILED and unit_id in self._returned:
            state = UnitState.STOPPED
        if name == "stopped" and unit_id not in self._returned:
            self.stop_one(unit_id)  # it has shut itself down, and ORB's launch templates leave it at that
        age = max(0.0, (now - machine["LaunchTime"]).total_seconds())
        return SeenUnit(state, age, steady((machine.get("StateReason") or {}).get("Message") or ""))
