"""The backend of the type orb_aws_ec2. ORB does not detect the end of a machine, so EC2 is queried."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import TimeoutError as NoAnswerError
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from scaler.errors import UsageError
from scaler.extras import require
from scaler.paths import local_path
from scaler.protocol.messages import UnitState
from scaler.worker_manager.aws.calls import AwsClient, Fields, seconds_between, steady
from scaler.worker_manager.aws_ec2.backend import LOOK, boot_script, described, python_command, reason_of
from scaler.worker_manager.backend import BackendError, Capacity, most_units
from scaler.worker_manager.orb_aws_ec2 import OrbAwsEc2Config
from scaler.worker_manager.polled import PolledBackend, SeenUnit, Stopped

CALL_SECONDS = 120.0  # includes ORB's own EC2 retries and their pauses
MAX_REQUESTED = 100
MAX_LISTED = 1000  # maximum number of machines to list, most recent first
REQUEST_SECONDS = 30.0
REQUEST_PAUSE_SECONDS = 1.0  # pause between polls of a request, until it is complete or REQUEST_SECONDS have passed
FINAL = ("complete", "partial", "failed", "cancelled", "timeout")
OVER = ("terminated", "returned", "failed", "shutting-down")
_STATES = {"pending": UnitState.PENDING, "running": UnitState.RUNNING, "terminated": UnitState.FAILED}
"""In all other states, the machine is stopping."""


_error = partial(BackendError, is_temporary=True)


def user_data(config: OrbAwsEc2Config) -> str:
    command = python_command(config.orb_python, ["--slots", str(config.orb_slots)])
    return boot_script(config, "\n".join(config.orb_setup), command)


class OrbBackend(PolledBackend):
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
            raise _error(f"ORB refuses to start machines: {steady(str(answer.get('error') or 'no reason given'))}")
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
                raise _error(f"ORB did not decide on a request within {REQUEST_SECONDS:g} s")
            time.sleep(REQUEST_PAUSE_SECONDS)
        self._open_request = ""
        unit_ids = [str(unit_id) for unit_id in request.get("machine_ids") or ()]
        if request["status"] != "complete":
            raise BackendError(f"ORB did not start all machines: {_reason_of(request)}", unit_ids)
        return unit_ids

    def stop_one(self, unit_id: str) -> Stopped:
        try:
            self._return([unit_id])
        except BackendError as error:
            if type(error.__cause__).__name__ == "EntityNotFoundError":
                return "not found"
            raise
        self._returned.add(unit_id)
        return "stopping"

    def stop_some(self, unit_ids: Sequence[str]) -> Mapping[str, Stopped | BackendError]:
        """Return all machines to ORB with one request. ORB skips unknown machines if there are several."""
        if len(unit_ids) == 1:
            return super().stop_some(unit_ids)
        try:
            self._return(unit_ids)
        except BackendError as error:
            return dict.fromkeys(unit_ids, error)
        self._returned.update(unit_ids)
        return dict.fromkeys(unit_ids, "stopping")

    def list_ids(self, *, search: bool) -> list[str]:
        if search:  # ORB lists a request's machines only once the request has been queried
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
        answer = self._orb.call("return_machines", list(unit_ids), force=True)
        if request_id := answer.get("request_id"):
            request = self._request(str(request_id))
            if request["status"] == "failed":
                raise _error(f"ORB does not return machines: {_reason_of(request)}")

    def _request(self, request_id: str) -> Fields:
        found = self._orb.call("get_request_status", request_id=request_id)["requests"]
        return next(iter(found), {"status": "failed", "message": "unknown to ORB"})

    def _seen(self, machine: Mapping[str, Any], now: datetime) -> SeenUnit:
        name, unit_id = machine["State"]["Name"], str(machine["InstanceId"])
        state = _STATES.get(name, UnitState.STOPPING)
        if state is UnitState.FAILED and unit_id in self._returned:
            state = UnitState.STOPPED
        if name == "stopped" and unit_id not in self._returned:
            # The machine has shut itself down, which ORB's launch templates do not treat as termination.
            self._exited.add(unit_id)
            with suppress(BackendError):  # the next poll tries again
                self._return([unit_id])
        reason = LOOK if unit_id in self._exited else reason_of(machine)
        return SeenUnit(state, seconds_between(machine.get("LaunchTime"), now), reason)


def _reason_of(request: Mapping[str, Any]) -> str:
    return steady(str(request.get("message") or request["status"]))


class OrbBroker:
    """Calls ORB, which is opened on first use. Thread-safe. Raises UsageError if it is not installed or initialized."""

    def __init__(self, config_path: str | None) -> None:
        require("orb", "a worker manager of the type orb_aws_ec2", "orb-py")
        from orb.config.platform_dirs import get_config_location  # noqa: PLC0415 (an extra)

        self._path = local_path(config_path) if config_path is not None else Path(get_config_location(), "config.json")
        if not self._path.is_file():
            raise UsageError(
                f"ORB is not initialized: there is no {self._path}; run `orb init`, or set orb_config to the path of "
                "its config.json"
            )
        self._client: Any = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="orb", daemon=True)
        self._thread.start()

    def call(self, method: str, *arguments: Any, **named: Any) -> Fields:
        answer = asyncio.run_coroutine_threadsafe(self._call(method, arguments, named), self._loop)
        try:
            return answer.result(CALL_SECONDS) or {}
        except NoAnswerError:
            answer.cancel()
            raise _error(f"ORB {method}: no answer within {CALL_SECONDS:g} s") from None
        except Exception as error:  # ORB's errors share no base class
            text = steady(str(error)) or type(error).__name__
            raise _error(f"ORB {method} failed ({type(error).__name__}): {text}") from error

    def close(self) -> None:
        if self._client is not None:
            asyncio.run_coroutine_threadsafe(self._client.cleanup(), self._loop).result(CALL_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _call(self, method: str, arguments: tuple[Any, ...], named: Fields) -> Fields | None:
        if self._client is None:
            self._client = await self._opened()
        found: Fields | None = await getattr(self._client, method)(*arguments, **named)
        return found

    async def _opened(self) -> Any:
        from orb.sdk import ORBClient  # noqa: PLC0415 (an extra, which takes seconds to import)

        # ORB redirects the root logger to its own file, including the lines of this process.
        root = logging.getLogger()
        handlers, level = root.handlers[:], root.level
        try:
            client = ORBClient(config_path=str(self._path))
            await client.initialize()
        finally:
            for handler in set(root.handlers) - set(handlers):
                handler.close()
            root.handlers[:] = handlers
            root.setLevel(level)
            logging.getLogger("orb").setLevel(logging.WARNING)
        return client
