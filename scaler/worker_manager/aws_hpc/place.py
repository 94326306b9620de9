"""Where a manager's jobs and objects are, and what they are called. Pure, but for the machine's name in `Place.of`.

A job's name is BASE-MARK-SESSION-NUMBER. The mark is a digest of the manager and its scheduler, so that jobs of an
earlier process of the same manager are found; the session is one process's own.
"""

from __future__ import annotations

import hashlib
import platform
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from scaler.worker_manager.aws.reach import is_only_here
from scaler.worker_manager.aws.session import tag_value
from scaler.worker_manager.aws_hpc.settings import AwsHpcConfig

MANAGER_TAG = "scaler:manager"
CLUSTER_TAG = "scaler:cluster"
SETUP = "`scaler_worker_manager aws_hpc setup`"
MAX_BASE_CHARACTERS = 64
"""Of a job's name, which may have 128."""


@dataclass(frozen=True, slots=True)
class Place:
    """What all jobs of a manager have in common. JSON values only: it travels to the offload agent."""

    manager: str
    cluster: str
    """The scheduler's address, with the machine where it means something there only."""
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
        """Return that of a configuration."""
        address = config.worker_scheduler_address
        return cls(
            manager=config.worker_manager_id,
            # Two people who start the same file on their own machines must not end the jobs of each other.
            cluster=f"{address} on {platform.node()}" if is_only_here(address) else address,
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
        """Return what `to_json` made."""
        return cls(**values)

    def to_json(self) -> dict[str, object]:
        """Return it as JSON values."""
        return asdict(self)

    @property
    def mark(self) -> str:
        """Return what the names of all jobs of this manager for this scheduler contain."""
        return hashlib.sha256(f"{self.manager}\0{self.cluster}".encode()).hexdigest()[:12]

    def job_name(self, session: str, number: int) -> str:
        """Return the name of a job: letters, digits, hyphens and underscores."""
        base = re.sub(r"[^A-Za-z0-9_-]", "_", self.name)[:MAX_BASE_CHARACTERS]
        if not base[:1].isalnum():
            base = f"scaler{base}"[:MAX_BASE_CHARACTERS]
        return f"{base}-{self.mark}-{session}-{number}"

    def owns(self, job_name: str) -> bool:
        """Tell whether a job is this manager's, of any session and mode, whatever `name` was then."""
        return re.fullmatch(rf".*-{self.mark}-[0-9a-f]+-\d+", job_name) is not None

    def is_of_session(self, job_name: str, session: str) -> bool:
        """Tell whether a job that this manager owns was submitted by this session."""
        return f"-{self.mark}-{session}-" in job_name

    @property
    def keys(self) -> str:
        """Return the beginning of the keys of all of this manager's objects; a session follows."""
        manager = re.sub(r"[^A-Za-z0-9!_.*'()-]", "_", self.manager)
        return f"{self.s3_prefix}/{manager}/{self.mark}-"

    def session_keys(self, session: str) -> str:
        """Return the beginning of the keys of a session's objects."""
        return f"{self.keys}{session}/"

    @property
    def tags(self) -> dict[str, str]:
        """Return the tags of all jobs."""
        return {MANAGER_TAG: tag_value(self.manager), CLUSTER_TAG: tag_value(self.cluster)}
