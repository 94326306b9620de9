"""The specification of a job, in the variable SCALER_JOB of its container: where its call is, where its result goes.

Pure. A call travels inside the job's request when it fits, and otherwise through S3. A request has room in two places:
the container's variables, and the parameters of a job that is no array, which the job reads with DescribeJobs.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from scaler.errors import ConfigError

JOB_SPEC_VARIABLE = "SCALER_JOB"
INDEX_VARIABLE = "AWS_BATCH_JOB_ARRAY_INDEX"
JOB_VARIABLE = "AWS_BATCH_JOB_ID"
PARAMETER = "call"
JOB_MODULE = "scaler.worker_manager.aws_hpc.job"
WORKER_MODULE = "scaler.worker"

MAX_VARIABLES_CHARACTERS = 8192 - 1192
"""Batch starts containers through ECS, which takes overrides of 8,192 characters. The job definition's own command and
variables count too, and some hundred characters that Batch adds; 7,680 have been too many. Batch accepts a longer
request, and its job fails."""
MAX_PARAMETER_CHARACTERS = 28 * 1024
MAX_REQUEST_CHARACTERS = 30 * 1024
"""Of a whole SubmitJob. Source: service quotas of AWS Batch."""
FIRST_BYTES = 128 * 1024
"""A job reads this much of the object with the calls at first."""

EXIT_NO_CALL = 90
"""The job could not read its call: its task did not start."""
EXIT_NO_RESULT = 91
"""The task ran, and its result could not be written."""
EXIT_TERMINATED = 143
"""The job received SIGTERM: 128 and its number, as shells report it."""

InputFrom = Literal["variable", "parameter", "s3"]


@dataclass(frozen=True, slots=True)
class JobSpec:
    """results: the prefix of the keys of results; a job's index follows. input: base64, or a key."""

    region: str
    bucket: str
    results: str
    input_from: InputFrom
    input: str

    def to_json(self) -> str:
        """Return the value of the variable."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> JobSpec:
        """Read it. Raises ConfigError."""
        text = environment.get(JOB_SPEC_VARIABLE, "")
        try:
            document: Any = json.loads(text)
            if document["input_from"] not in get_args(InputFrom):
                raise ValueError(document["input_from"])
            return cls(**document)
        except (TypeError, KeyError, ValueError) as error:
            raise ConfigError(
                f"{JOB_SPEC_VARIABLE} is no job of this version of scaler ({text[:200]!r}): "
                "`scaler_worker_manager aws_hpc` submits such jobs; use the same version in the job's image"
            ) from error


def index_of(environment: Mapping[str, str]) -> int:
    """Return the index of a job in its array; 0 for a job that is no child."""
    return int(environment.get(INDEX_VARIABLE, "0"))


def as_text(data: bytes) -> str:
    """Return bytes as text for a request."""
    return base64.b64encode(data).decode("ascii")


def from_text(text: str) -> bytes:
    """Return the bytes of a text that `as_text` made. Raises ConfigError."""
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ConfigError(f"a call of {len(text)} characters cannot be decoded: {error}") from error
