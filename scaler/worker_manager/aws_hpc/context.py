"""Where a manager's jobs and objects are, and how they are named.

A job's name is BASE-MARK-SESSION-NUMBER. The mark is a digest of the manager and its scheduler, by which jobs of an
earlier process of the same manager are found; the session is different for each process.
"""

from __future__ import annotations

import hashlib
import platform
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from scaler.worker_manager.aws.calls import tag_value
from scaler.worker_manager.aws.containers import is_loopback
from scaler.worker_manager.aws_hpc.settings import AwsHpcConfig

MANAGER_TAG = "scaler:manager"
CLUSTER_TAG = "scaler:cluster"
SETUP = "`scaler_worker_manager aws_hpc setup`"
MAX_BASE_CHARACTERS = 64
"""Of a job's name, which may have 128."""


@dataclass(frozen=True, slots=True)
class BatchContext:
    """What all jobs of a manager have in common. JSON values only: the offload agent's configuration contains it."""

    manager: str
    cluster: str
    """The scheduler's address, with the host's name when the address is a loopback address."""
    name: str
    job_queue: str
    job_definition: str
    s3_bucket: str
    s3_prefix: str
    job_timeout_minutes: int
    aws_region: str
    aws_endpoint_url: str | None
    aws_profile: str | None

    @classmethod
    def of(cls, config: AwsHpcConfig) -> Self:
        """Return the context of a configuration."""
        address = config.worker_scheduler_address
        return cls(
            manager=config.worker_manager_id,
            # The same file started on two machines must not end the jobs of the other.
            cluster=f"{address} on {platform.node()}" if is_loopback(address) else address,
            name=config.name or config.worker_manager_id,
            job_queue=config.job_queue,
            job_definition=config.job_definition,
            s3_bucket=config.s3_bucket,
            s3_prefix=config.s3_prefix,
            job_timeout_minutes=config.job_timeout_minutes,
            aws_region=config.aws_region,
            aws_endpoint_url=config.aws_endpoint_url,
            aws_profile=config.aws_profile,
        )

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Return the context from JSON values."""
        return cls(**values)

    def to_json(self) -> dict[str, object]:
        """Return the context as JSON values."""
        return asdict(self)

    @property
    def mark(self) -> str:
        """The part of the names of all jobs of this manager and scheduler."""
        return hashlib.sha256(f"{self.manager}\0{self.cluster}".encode()).hexdigest()[:12]

    def job_name(self, session: str, number: int) -> str:
        """Return the name of a job: letters, digits, hyphens and underscores."""
        base = re.sub(r"[^A-Za-z0-9_-]", "_", self.name)[:MAX_BASE_CHARACTERS]
        if not base[:1].isalnum():
            base = f"scaler{base}"[:MAX_BASE_CHARACTERS]
        return f"{base}-{self.mark}-{session}-{number}"

    def owns(self, job_name: str) -> bool:
        """Tell whether a job is this manager's, of any session, mode and `name`."""
        return re.fullmatch(rf".*-{self.mark}-[0-9a-f]+-\d+", job_name) is not None

    def is_of_session(self, job_name: str, session: str) -> bool:
        """Tell whether this session submitted a job that this manager owns."""
        return f"-{self.mark}-{session}-" in job_name

    @property
    def keys(self) -> str:
        """The prefix of the keys of all objects of this manager; a session follows."""
        manager = re.sub(r"[^A-Za-z0-9!_.*'()-]", "_", self.manager)
        return f"{self.s3_prefix}/{manager}/{self.mark}-"

    def session_keys(self, session: str) -> str:
        """Return the prefix of the keys of a session's objects."""
        return f"{self.keys}{session}/"

    @property
    def tags(self) -> dict[str, str]:
        """The tags of all jobs."""
        return {MANAGER_TAG: tag_value(self.manager), CLUSTER_TAG: tag_value(self.cluster)}
