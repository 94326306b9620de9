"""The endpoint where a container of an ECS task learns which task it is: version 4 of the task metadata endpoint."""

from __future__ import annotations

import re

from scaler.testing.aws.ecs import METADATA_PATH, Ecs
from scaler.testing.aws.faults import Partial, Refusal
from scaler.testing.aws.service import Answer, Call

_PATH = re.compile(rf"{METADATA_PATH}/([0-9a-f]+)-1(/task|/taskWithTags|)/?")


class Metadata:
    """The metadata of tasks, for the processes in their containers."""

    name = "metadata"

    def __init__(self, ecs: Ecs) -> None:
        self._ecs = ecs

    def name_of(self, call: Call) -> str | None:
        """Return `GetTaskMetadata` or `GetContainerMetadata` for a path of this endpoint."""
        found = _PATH.fullmatch(call.path) if call.method == "GET" else None
        return None if found is None else "GetTaskMetadata" if found[2] else "GetContainerMetadata"

    def answer(self, operation: str, call: Call, partial: Partial | None) -> Answer:  # noqa: ARG002 (as every service)
        """Serve a call."""
        found = _PATH.fullmatch(call.path)
        return self._ecs.metadata("" if found is None else found[1], of_task=operation == "GetTaskMetadata")

    def refuse(self, refusal: Refusal) -> Answer:
        """Return an error as text, as the endpoint does."""
        return Answer(refusal.status, refusal.message.encode(), {"Content-Type": "text/plain"})

    def throttle(self) -> Refusal:
        """Return what the endpoint says to too many requests."""
        return Refusal("TooManyRequests", "Too Many Requests", 429)

    def close(self) -> None:
        """It runs nothing."""
