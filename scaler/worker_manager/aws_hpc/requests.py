"""Names of jobs and objects, and the requests that submit jobs. A job's name is BASE-MARK-SESSION-NUMBER. The mark is a
digest that identifies the manager and its scheduler, so that a restarted manager finds its jobs. Each process has a
separate session. Jobs never call DescribeJobs, which would expose the jobs of all managers in the account."""

from __future__ import annotations

import hashlib
import json
import platform
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from scaler.config.addresses import is_loopback, local_address
from scaler.errors import ConfigError
from scaler.interpreter import HASH_SEED_VARIABLE, own_hash_seed
from scaler.worker_manager.aws.calls import Fields, owner_tags
from scaler.worker_manager.aws.prices import fargate_price
from scaler.worker_manager.aws_hpc import AwsHpcConfig

SETUP = "`scaler_worker_manager aws_hpc setup`"
MAX_BASE_CHARACTERS = 64


def cluster_of(config: AwsHpcConfig) -> str:
    """Return the scheduler's address, with the host if on loopback, because machines may share a config file."""
    address = config.worker_scheduler_address
    return f"{address} on {platform.node()}" if is_loopback(local_address(address)) else address


def mark_of(config: AwsHpcConfig) -> str:
    return hashlib.sha256(f"{config.worker_manager_id}\0{cluster_of(config)}".encode()).hexdigest()[:12]


def job_name(config: AwsHpcConfig, session: str, number: int) -> str:
    base = re.sub(r"[^A-Za-z0-9_-]", "_", config.name or config.worker_manager_id)[:MAX_BASE_CHARACTERS]
    if not base[:1].isalnum():
        base = f"scaler{base}"[:MAX_BASE_CHARACTERS]
    return f"{base}-{mark_of(config)}-{session}-{number}"


def child_id(job_id: str, index: int, size: int) -> str:
    return job_id if size == 1 else f"{job_id}:{index}"


def owns(config: AwsHpcConfig, name: str, session: str = "[0-9a-f]+") -> bool:
    """Return whether a job's name belongs to this manager, regardless of the setting `name`. session: default: any."""
    return re.fullmatch(rf".*-{mark_of(config)}-{session}-\d+", name) is not None


OWNER_TAG = "scaler:manager"  # tag of a definition: the manager whose objects its jobs can read


def owner_of(config: AwsHpcConfig) -> str:
    return owner_tags(config.worker_manager_id, "")[OWNER_TAG]


def manager_keys(config: AwsHpcConfig) -> str:
    """Return the key prefix of a manager: unique, without characters that are special in policies."""
    name = re.sub(r"[^A-Za-z0-9!_.'()-]", "_", config.worker_manager_id)
    if name != config.worker_manager_id:
        name += f"-{hashlib.sha256(config.worker_manager_id.encode()).hexdigest()[:8]}"
    return f"{config.s3_prefix}/{name}/"


def keys_of(config: AwsHpcConfig, session: str) -> str:
    return f"{manager_keys(config)}{mark_of(config)}-{session}/"


JOB_SPEC_VARIABLE = "SCALER_JOB"
INDEX_VARIABLE = "AWS_BATCH_JOB_ARRAY_INDEX"
JOB_MODULE = "scaler.worker_manager.aws_hpc.job"

FIRST_BYTES = 128 * 1024  # size of a job's first read from the object with the calls

EXIT_NO_CALL = 90  # the job could not read its call and did not run the task
EXIT_NO_RESULT = 91  # the task ran, but its result could not be written
EXIT_TERMINATED = 143  # the job received SIGTERM (128 + 15, as in shells)


@dataclass(frozen=True, slots=True)
class JobSpec:
    """keys: prefix of the session's keys. number: number of the submission."""

    region: str
    bucket: str
    keys: str
    number: int

    @property
    def call_key(self) -> str:
        return object_key(self.keys, str(self.number))

    def result_key(self, index: int) -> str:
        return f"{self.keys}results/{self.number}/{index}"

    def to_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> JobSpec:
        text = environment.get(JOB_SPEC_VARIABLE, "")
        try:
            return cls(**json.loads(text))
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(
                f"{JOB_SPEC_VARIABLE} is not a job of this version of scaler ({text[:200]!r}): "
                "`scaler_worker_manager aws_hpc` submits such jobs; use the same version in the job's image"
            ) from error


def object_key(keys: str, name: str) -> str:
    return f"{keys}calls/{name}"


def call_request(config: AwsHpcConfig, definition: str, session: str, number: int, size: int) -> tuple[Fields, str]:
    """Return SubmitJob's parameters and the key of the object with the calls. definition: ARN of a definition that runs
    JOB_MODULE. size: number of calls."""
    spec = JobSpec(config.aws_region, config.s3_bucket, keys_of(config, session), number)
    variables = {JOB_SPEC_VARIABLE: spec.to_json(), HASH_SEED_VARIABLE: own_hash_seed()}
    request: Fields = {
        "jobName": job_name(config, session, number),
        "jobQueue": config.job_queue,
        "jobDefinition": definition,
        "containerOverrides": {"environment": [{"name": key, "value": value} for key, value in variables.items()]},
        # If a host is lost, the scheduler reruns its task without counting the attempt.
        "retryStrategy": {"attempts": 1},
        "timeout": {"attemptDurationSeconds": config.job_timeout_minutes * 60},
        "tags": owner_tags(config.worker_manager_id, cluster_of(config)),
        "propagateTags": True,
        **({"arrayProperties": {"size": size}} if size > 1 else {}),
    }
    return request, spec.call_key


def job_price(config: AwsHpcConfig, cpus: float, memory_gb: float) -> float | None:
    if not config.is_fargate:
        return None
    return fargate_price(config.aws_region, cpus, memory_gb, config.batch_cpu_architecture, config.batch_capacity)
