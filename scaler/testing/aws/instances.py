"""EC2 of the emulator: moto, plus idempotent client tokens, partial starts, and a limit on user data.

An instance runs its user data as a local process, and ends with the process. Its environment contains the address of
its metadata (version 2).
"""

from __future__ import annotations

import base64
import importlib
import json
import re
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, urlencode
from xml.sax.saxutils import escape

import psutil

from scaler.testing.aws.containers import Container
from scaler.testing.aws.faults import Partial, ServiceError
from scaler.testing.aws.moto_services import Moto, MotoService
from scaler.testing.aws.service import ACCOUNT, Answer, EmulatorContext, ServiceCall

MAX_USER_DATA_BYTES = 16 * 1024
_METADATA = re.compile(r"/instances/(i-[0-9a-f]+)/latest/(.*)")
_COUNT = "TargetCapacitySpecification.TotalTargetCapacity"
_TOKEN = "of-an-instance"  # noqa: S105 (of the emulator)


class EmulatedEc2(MotoService):
    """moto's EC2, with instances that run their user data."""

    def __init__(self, moto: Moto, context: EmulatorContext) -> None:
        super().__init__(moto, "ec2")
        self._context = context
        self._lock = threading.RLock()
        self._fleets: dict[str, Answer] = {}
        """Answers of CreateFleet by client token."""
        self.running: dict[str, Container] = {}
        self.notices: dict[str, str] = {}
        """Interruption times of spot instances, by id."""

    def answer(self, operation: str, call: ServiceCall, partial: Partial | None) -> Answer:
        given = {name: values[0] for name, values in parse_qs(call.body.decode()).items()}
        match operation:
            case "CreateLaunchTemplate" | "CreateLaunchTemplateVersion":
                script = base64.b64decode(given.get("LaunchTemplateData.UserData", ""))
                if len(script) > MAX_USER_DATA_BYTES:
                    text = f"User data is limited to {MAX_USER_DATA_BYTES} bytes"
                    raise ServiceError("InvalidUserData.Malformed", text)
            case "CreateFleet":
                with self._lock:
                    return self._create_fleet(call, given, partial)
        answer = super().answer(operation, call, partial)
        if operation == "TerminateInstances" and answer.status == 200:
            for name, instance_id in given.items():
                if name.startswith("InstanceId."):
                    self._end(instance_id)
        return answer

    def _create_fleet(self, call: ServiceCall, given: Mapping[str, str], partial: Partial | None) -> Answer:
        token = given.get("ClientToken", "")
        if token in self._fleets:
            return self._fleets[token]
        if partial is not None:
            given = {**given, _COUNT: str(partial.count)}
            call = replace(call, body=urlencode(given).encode())
        answer = super().answer("CreateFleet", call, None)
        if answer.status == 200 and partial is not None:
            headers = {name: text for name, text in answer.headers.items() if name.lower() != "content-length"}
            answer = replace(answer, body=_with_error(answer.body, given, partial.reason), headers=headers)
        if answer.status == 200:
            for instance_id in re.findall(rb">(i-[0-9a-f]+)<", answer.body):
                self._boot(instance_id.decode())
        if token:
            self._fleets[token] = answer
        return answer

    def user_data(self, instance_id: str) -> str:
        """Return the script that an instance received. Empty without one."""
        found = self._backend().get_instance(instance_id).user_data
        # moto stores the user data of a template's first version with a different type than that of later versions.
        encoded = found if isinstance(found, str) else found.as_bytes() if found else b""
        return base64.b64decode(encoded).decode()

    def alive(self) -> list[str]:
        """Return the ids of the instances that are not terminated."""
        return [each.id for each in self._backend().all_instances() if each.state != "terminated"]

    def _boot(self, instance_id: str) -> None:
        script = self.user_data(instance_id)
        metadata = f"{self._context.endpoint_url}/instances/{instance_id}"
        environment = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": metadata}
        self.running[instance_id] = self._context.containers.start(
            ["sh", "-c", script or "exec sleep 3600"], environment, instance_id, lambda _: self._ended(instance_id)
        )

    def _end(self, instance_id: str) -> None:
        container = self.running.pop(instance_id, None)
        if container is not None and container.poll() is None:
            for process in psutil.Process(container.pid).children():
                process.terminate()

    def _ended(self, instance_id: str) -> None:
        with self._lock:
            if self.running.pop(instance_id, None) is not None:
                self.lose(instance_id, "Client.InstanceInitiatedShutdown", "Instance initiated shutdown")

    def lose(self, instance_id: str, code: str, message: str) -> None:
        """Terminate an instance with this reason, as EC2 does on a spot interruption or host failure."""
        self._backend().terminate_instances([instance_id])
        instance = self._backend().get_instance(instance_id)
        instance.state_reason = type(instance.state_reason)(f"{code}: {message}", code)
        self._end(instance_id)

    def close(self) -> None:
        with self._lock:
            self.running.clear()  # the containers end with the emulator
        super().close()

    def _backend(self) -> Any:
        backends = importlib.import_module("moto.backends").get_backend("ec2")
        return backends[ACCOUNT][self._context.region]


class InstanceMetadata:
    name = "instance metadata"

    def __init__(self, ec2: EmulatedEc2) -> None:
        self._ec2 = ec2

    def name_of(self, call: ServiceCall) -> str | None:
        found = _METADATA.fullmatch(call.path)
        return found and found[2]

    def answer(self, operation: str, call: ServiceCall, partial: Partial | None) -> Answer:  # noqa: ARG002 (as every service)
        found = _METADATA.fullmatch(call.path)
        assert found is not None
        if operation == "api/token" and call.method == "PUT":
            return Answer(body=_TOKEN.encode())
        if call.headers.get("x-aws-ec2-metadata-token") != _TOKEN:
            raise ServiceError("Unauthorized", "version 2 needs a token", 401)
        if operation == "meta-data/instance-id":
            return Answer(body=found[1].encode())
        if operation == "meta-data/spot/instance-action" and found[1] in self._ec2.notices:
            return Answer(body=json.dumps({"action": "terminate", "time": self._ec2.notices[found[1]]}).encode())
        raise ServiceError("NotFound", "nothing is here", 404)

    def refuse(self, refusal: ServiceError) -> Answer:
        return Answer(refusal.status, refusal.message.encode())

    def throttle(self) -> ServiceError:
        return ServiceError("TooManyRequests", "too many requests", 429)

    def close(self) -> None:
        pass


def _with_error(body: bytes, given: Mapping[str, str], reason: str) -> bytes:
    kind = given.get("LaunchTemplateConfigs.1.Overrides.1.InstanceType", "")
    overrides = f"<overrides><instanceType>{escape(kind)}</instanceType></overrides>"
    item = (
        f"<item><launchTemplateAndOverrides>{overrides}</launchTemplateAndOverrides>"
        f"<errorCode>InsufficientInstanceCapacity</errorCode><errorMessage>{escape(reason)}</errorMessage></item>"
    )
    errors = f"<errorSet>{item}</errorSet>".encode()
    body = re.sub(rb"<errorSet\s*/>|<errorSet>.*?</errorSet>", b"", body, flags=re.DOTALL)
    return body.replace(b"</CreateFleetResponse>", errors + b"</CreateFleetResponse>")
