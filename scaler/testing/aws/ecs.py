"""ECS of the emulator: the HTTP shell around `EcsCore`."""

from __future__ import annotations

import json

from scaler.testing.aws.faults import Partial, Refusal
from scaler.testing.aws.service import Answer, Call, Surroundings

TARGET = "AmazonEC2ContainerServiceV20141113."


class Ecs:
    """ECS for clients, and its fate in tests' hands."""

    name = "ecs"

    def __init__(self, surroundings: Surroundings) -> None:
        self._surroundings = surroundings

    def name_of(self, call: Call) -> str | None:
        target = call.headers.get("x-amz-target", "")
        return target.removeprefix(TARGET) if target.startswith(TARGET) else None

    def answer(self, operation: str, call: Call, partial: Partial | None) -> Answer:
        raise Refusal("InvalidAction", f"the emulator has no ECS operation {operation}")

    def refuse(self, refusal: Refusal) -> Answer:
        body = json.dumps({"__type": refusal.code, "message": refusal.message}).encode()
        return Answer(refusal.status, body, {"Content-Type": "application/x-amz-json-1.1"})

    def throttle(self) -> Refusal:
        return Refusal("ThrottlingException", "Rate exceeded")

    def close(self) -> None:
        """Nothing runs yet."""
