"""The backend of the type orb_aws_ec2. ORB does not notice the end of a machine, so EC2 is asked."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from scaler.protocol.messages import UnitState
from scaler.worker_manager.aws.calls import AwsClient, steady
from scaler.worker_manager.aws_ec2.backend import LOOK, age_seconds, described, reason_of
from scaler.worker_manager.aws_ec2.template import boot_script, python_command
from scaler.worker_manager.backend import BackendError, Capacity, most_units
from scaler.worker_manager.orb_aws_ec2 import OrbAwsEc2Config
from scaler.worker_manager.orb_aws_ec2.broker import Fields, OrbBroker, OrbError
from scaler.worker_manager.polled import PolledBackend, SeenUnit, Stopped

MAX_REQUESTED = 100
MAX_LISTED = 1000
"""Most recent machines of the template."""
REQUEST_SECONDS = 30.0
REQUEST_PAUSE_SECONDS = 1.0
"""Pause between looks at a request, until it is complete or REQUEST_SECONDS have passed."""
FINAL = ("complete", "partial", "failed", "cancelled", "timeout")
OVER = ("terminated", "returned", "failed", "shutting-down")
_STATES = {"pending": UnitState.PENDING, "running": UnitState.RUNNING, "terminated": UnitState.FAILED}
"""In any other state, a machine is stopping."""


def user_data(config: OrbAwsEc2Config) -> str:
    """Return a machine's start script. Raises UsageError if it is longer than EC2 allows."""
    command = python_command(config.orb_python, ["--slots", str(config.orb_slots)])
    return boot_script(config, "orb_setup", "\n".join(config.orb_setup), command)


class OrbBackend(PolledBackend):
    """Units are ORB's machines. Raises UsageError."""

    def __init__(self, config: OrbAwsEc2Config, orb: OrbBroker | None = None) -> None:
        super().__init__(
            service="ORB",
            noun="machines",
            stop_by_hand="return each with `orb machines return MACHINE`",
            capacity=Capacity.of_units(config.orb_slots, most_units(config.max_task_concurrency, config.orb_slots)),
            heartbeat_seconds=config.heartbeat_interval_seconds,
        )
        self._template = config.orb_template
        self._user_data = user_data(config)
        self._orb = OrbBroker(config.orb_config) if orb is None else orb
        self._owns_orb = orb is None
        self._ec2 = AwsClient(config, "ec2")
        self._is_prepared = False
        self._open_request = ""
        self._returned: set[str] = set()
        self._exited: set[str] = set()

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
            request = self._request(self._open_request)
            if request["status"] in FINAL:
                break
            if time.monotonic() >= deadline:
                raise OrbError(f"ORB has not decided about a request within {REQUEST_SECONDS:g} s")
            time.sleep(REQUEST_PAUSE_SECONDS)
        self._open_request = ""
        unit_ids = [str(unit_id) for unit_id in request.get("machine_ids") or ()]
        if request["status"] != "complete":
            raise BackendError(f"ORB does not start all machines: {_reason_of(request)}", unit_ids)
        return unit_ids

    def stop_one(self, unit_id: str) -> Stopped:
        try:
            self._return([unit_id])
        except OrbError as error:
            if type(error.__cause__).__name__ == "EntityNotFoundError":
                return "not found"
            raise
        self._returned.add(unit_id)
        return "stopping"

    def stop_some(self, unit_ids: Sequence[str]) -> Mapping[str, Stopped | BackendError]:
        """Return all with one request: ORB skips unknown ones if there are several."""
        if len(unit_ids) == 1:
            return super().stop_some(unit_ids)
        try:
            self._return(unit_ids)
        except OrbError as error:
            return dict.fromkeys(unit_ids, error)
        self._returned.update(unit_ids)
        return dict.fromkeys(unit_ids, "stopping")

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
        return {str(machine["InstanceId"]): self._seen(machine, now) for machine in described(self._ec2, unit_ids)}

    def disconnect(self) -> None:
        if self._owns_orb:
            self._orb.close()
        self._ec2.close()

    def _return(self, unit_ids: Sequence[str]) -> None:
        """Return machines to ORB, again after a failed return. Raises OrbError, also if EC2 refuses."""
        answer = self._orb.call("return_machines", list(unit_ids), force=True)
        if request_id := answer.get("request_id"):
            request = self._request(str(request_id))
            if request["status"] == "failed":
                raise OrbError(f"ORB does not return machines: {_reason_of(request)}")

    def _request(self, request_id: str) -> Fields:
        found = self._orb.call("get_request_status", request_id=request_id)["requests"]
        return next(iter(found), {"status": "failed", "message": "ORB does not know it"})

    def _seen(self, machine: Mapping[str, Any], now: datetime) -> SeenUnit:
        name, unit_id = machine["State"]["Name"], str(machine["InstanceId"])
        state = _STATES.get(name, UnitState.STOPPING)
        if state is UnitState.FAILED and unit_id in self._returned:
            state = UnitState.STOPPED
        if name == "stopped" and unit_id not in self._returned:
            # It has shut itself down, and ORB's launch templates leave it at that.
            self._exited.add(unit_id)
            with suppress(OrbError):  # the next poll tries again
                self._return([unit_id])
        reason = LOOK if unit_id in self._exited else reason_of(machine)
        return SeenUnit(state, age_seconds(machine, now), reason)


def _reason_of(request: Mapping[str, Any]) -> str:
    return steady(str(request.get("message") or request["status"]))
