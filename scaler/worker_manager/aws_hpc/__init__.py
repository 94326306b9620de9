"""Runs tasks as AWS Batch jobs, through one local agent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from scaler.config.setting import Setting
from scaler.config.values import Check, Limit, Name, Names, Range, length, matching
from scaler.config.worker_managers import TASKS_AT_ONCE, WorkerManagerConfig
from scaler.plugins import WorkerManagerType
from scaler.worker_manager.aws import BUCKET_NAME, InstallingSettings

TYPE = WorkerManagerType(
    backend="scaler.worker_manager.aws_hpc.executor:make_backend",
    settings="scaler.worker_manager.aws_hpc:AwsHpcConfig",
    provision="scaler.worker_manager.aws_hpc.setup:provision",
)
MAX_ARRAY_SIZE = 10_000  # Children of an array job. Source: AWS Batch service quotas.


_GIVEN = length(1, 63)
_PREFIX = matching(r"[A-Za-z0-9!_.'()/-]{1,500}", "must be an S3 key prefix: letters, digits, and !_.'()/-")


@dataclass(frozen=True, kw_only=True)
class AwsHpcConfig(WorkerManagerConfig, InstallingSettings):
    """Worker manager aws_hpc: AWS Batch jobs."""

    runs_elsewhere = True

    type: Literal["aws_hpc"] = "aws_hpc"
    job_queue: Annotated[Name, Setting(metavar="NAME")]
    """Job queue."""
    job_definition: Annotated[Name, Setting(metavar="NAME")]
    """Job definition, created by `setup`."""
    s3_bucket: Annotated[str, Setting(metavar="BUCKET"), BUCKET_NAME, _GIVEN]
    """Bucket for large payloads, all results, and the package that jobs without an image install."""
    s3_prefix: Annotated[str, Setting(metavar="PREFIX"), Check(lambda value: value.strip("/")), _PREFIX] = (
        "scaler-tasks"
    )
    """Prefix of all keys in the bucket."""
    backend: Literal["batch"] = "batch"
    """Service that runs the jobs."""
    mode: Literal["offload"] = "offload"
    """Content of a job: one task."""
    max_task_concurrency: Annotated[Limit, TASKS_AT_ONCE] = -1
    """Maximum number of tasks at once; -1: limited only by max_concurrent_jobs."""
    name: Annotated[Name | None, Setting(default_text="worker_manager_id", metavar="NAME")] = None
    """Prefix of job names."""
    max_concurrent_jobs: Annotated[int, Range(ge=1, le=MAX_ARRAY_SIZE), Setting(metavar="COUNT")] = 100
    """Maximum concurrent jobs."""
    job_timeout_minutes: Annotated[int, Range(ge=1, le=14 * 24 * 60), Setting(metavar="MINUTES")] = 60
    """Time limit of a job. AWS Batch terminates longer jobs."""
    batch_capacity: Annotated[Literal["FARGATE", "FARGATE_SPOT", "EC2", "SPOT"], Setting(metavar="TYPE")] = "FARGATE"
    """Capacity that `setup` creates for jobs. The SPOT types are cheaper, but AWS may reclaim them and rerun the
    jobs."""
    batch_subnets: Annotated[Names, length(0, 16), Setting(default_text="the default VPC's", metavar="SUBNET")] = ()
    """Subnets for the compute environment that `setup` creates. S3 must be reachable from each."""
    batch_security_groups: Annotated[
        Names, length(0, 5), Setting(default_text="the VPC's default", metavar="GROUP")
    ] = ()
    """Security groups for the compute environment that `setup` creates."""
    batch_image: Annotated[Name | None, Setting(default_text="the official Python image", metavar="IMAGE")] = None
    """Image with this version of scaler, for the job definition that `setup` creates. Without an image, jobs install
    scaler from s3_bucket, where `setup` uploads it."""
    batch_cpu: Annotated[int, Range(ge=1, le=16), Setting(metavar="COUNT")] = 1
    """CPUs per job."""
    batch_memory: Annotated[int, Range(ge=1, le=120), Setting(metavar="GB")] = 2
    """Memory per job in GB. On Fargate, the valid range depends on the number of CPUs."""
    batch_cpu_architecture: Annotated[Literal["X86_64", "ARM64"], Setting(metavar="NAME")] = "X86_64"
    """CPU architecture for the job definition that `setup` creates. ARM64 is about 20 % cheaper on Fargate. With EC2
    and SPOT, instance types determine the architecture."""
    batch_gpus: Annotated[int, Range(ge=0, le=16), Setting(metavar="COUNT")] = 0
    """GPUs per job; requires instances with GPUs. Also set the gpu=1 capability."""
    batch_instance_types: Annotated[Names, length(1, 20), Setting(metavar="TYPE")] = ("optimal",)
    """Instance types or families, such as g5, for EC2 and SPOT; optimal: AWS Batch chooses by job size."""

    @property
    def is_fargate(self) -> bool:
        return self.batch_capacity.startswith("FARGATE")

    def check(self) -> None:
        super().check()
        if self.batch_gpus and self.is_fargate:
            raise ValueError(f"batch_gpus ({self.batch_gpus}) needs batch_capacity EC2 or SPOT: Fargate has no GPUs")
