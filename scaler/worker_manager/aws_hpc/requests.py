"""What is asked of AWS Batch to run jobs. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scaler.worker_manager.aws_hpc.place import Place
from scaler.worker_manager.aws_hpc.ticket import (
    MAX_PARAMETER_CHARACTERS,
    MAX_REQUEST_CHARACTERS,
    MAX_VARIABLES_CHARACTERS,
    PARAMETER,
    InputFrom,
    as_text,
)

Fields = dict[str, Any]

MODULE = "module"
"""The parameter by which a job definition's own command, such as that of `setup`, is told which module to run."""
HOST_LOSSES = ("Host EC2*", "Your Spot Task was interrupted*")
"""Reasons with which Batch takes a host away. Source: the user guide of AWS Batch, job retries."""
ATTEMPTS = 3
"""So often Batch runs a job whose host it takes away; after that the scheduler does, charging nobody."""
MAX_TEXT_BYTES = MAX_PARAMETER_CHARACTERS // 4 * 3
"""More bytes than this do not fit into a request as text."""


@dataclass(frozen=True, slots=True)
class Definition:
    """An active job definition. takes_module: its command has a place for the module's name."""

    arn: str
    vcpus: float
    takes_module: bool
    own_characters: int = 0
    """Of its command and variables, as JSON: they count with what a job overrides."""

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> Definition:
        """Return that of a definition as DescribeJobDefinitions shows it."""
        container = described.get("containerProperties") or {}
        requirements = container.get("resourceRequirements") or ()
        command = container.get("command") or ()
        own = [list(command), container.get("environment") or []]
        given = [entry["value"] for entry in requirements if entry.get("type") == "VCPU"]
        return cls(
            arn=str(described["jobDefinitionArn"]),
            vcpus=float(given[0] if given else container.get("vcpus") or 1),
            takes_module=f"Ref::{MODULE}" in command,
            own_characters=len(json.dumps(own)),
        )


def submission(
    place: Place,
    definition: Definition,
    name: str,
    module: str,
    variables: Mapping[str, str],
    *,
    size: int,
    repeat: bool,
    parameters: Mapping[str, str] | None = None,
) -> Fields:
    """Return the parameters of SubmitJob. size: how many children, 1 for a plain job.

    repeat: Batch runs it again when it takes its host away.
    """
    overrides: Fields = {"environment": [{"name": key, "value": value} for key, value in variables.items()]}
    given = dict(parameters or {})
    if definition.takes_module:
        given[MODULE] = module
    else:
        overrides["command"] = ["python", "-m", module]
    request: Fields = {
        "jobName": name,
        "jobQueue": place.job_queue,
        "jobDefinition": definition.arn,
        "containerOverrides": overrides,
        "retryStrategy": _repeats() if repeat else {"attempts": 1},
        "timeout": {"attemptDurationSeconds": place.job_timeout_minutes * 60},
        "tags": place.tags,
        "propagateTags": True,
    }
    if given:
        request["parameters"] = given
    if size > 1:
        request["arrayProperties"] = {"size": size}
    return request


def fits(request: Fields, definition: Definition) -> bool:
    """Tell whether Batch takes a request, and ECS what Batch makes of it."""
    overrides = len(json.dumps(request["containerOverrides"])) + definition.own_characters
    return len(json.dumps(request)) <= MAX_REQUEST_CHARACTERS and overrides <= MAX_VARIABLES_CHARACTERS


def places_for(data: bytes, size: int) -> Sequence[tuple[InputFrom, str]]:
    """Return where calls may travel inside a request and how they are spelled there, the best first.

    Only a job that is no array asks Batch for its parameters: the children of one would all ask at once.
    """
    if len(data) > MAX_TEXT_BYTES:
        return ()
    text = as_text(data)
    return (("variable", text),) if size > 1 else (("variable", text), ("parameter", text))


def parameters_for(input_from: InputFrom, text: str) -> dict[str, str]:
    """Return the parameters that carry a call."""
    return {PARAMETER: text} if input_from == "parameter" else {}


def _repeats() -> Fields:
    rules: list[Fields] = [{"onStatusReason": reason, "action": "RETRY"} for reason in HOST_LOSSES]
    return {"attempts": ATTEMPTS, "evaluateOnExit": [*rules, {"onReason": "*", "action": "EXIT"}]}
