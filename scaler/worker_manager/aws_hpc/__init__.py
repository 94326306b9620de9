"""AWS Batch. Mode offload: each task of a local agent is a job. Mode worker: jobs run workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from scaler.config.setting import Setting
from scaler.config.values import Check, Limit, Name, Names, Range, length, matching
from scaler.config.worker_managers import TASKS_AT_ONCE, WorkerManagerConfig
from scaler.plugins import WorkerManagerType
from scaler.worker_manager.aws import BUCKET_NAME, InstallingSettings, check_fargate

TYPE = WorkerManagerType(
    backend="scaler.worker_manager.aws_hpc.backend:make_backend",
    settings="scaler.worker_manager.aws_hpc:AwsHpcConfig",
    provision="scaler.worker_manager.aws_hpc.setup:provision",
)
MAX_ARRAY_SIZE = 10_000  # Children of an array job. Source: AWS Batch service quotas.


_GIVEN = length(1, 63)
_PREFIX = matching(
    r"[A-Za-z0-9!_.'()/-]{1,500}", "must be the beginning of an object's key: letters, digits and !_.'()/-"
)


@dataclass(frozen=True, kw_only=True)
class AwsHpcConfig(WorkerManagerConfig, InstallingSettings):
    """Worker manager aws_hpc: AWS Batch jobs."""

    type: Literal["aws_hpc"] = "aws_hpc"
    job_queue: Annotated[Name, Setting(metavar="NAME")]
    """The job queue."""
    job_definition: Annotated[Name, Setting(metavar="NAME")]
    """The job definition; `setup` makes it."""
    s3_bucket: Annotated[str, Setting(metavar="BUCKET"), BUCKET_NAME, _GIVEN]
    """Where large payloads and all results pass through, and what jobs without an image install."""
    s3_prefix: Annotated[str, Setting(metavar="PREFIX"), Check(lambda value: value.strip("/")), _PREFIX] = (
        "scaler-tasks"
    )
    """Begins the keys of everything there."""
    backend: Literal["batch"] = "batch"
    """The service that runs the jobs."""
    mode: Literal["offload", "worker"] = "offload"
    """offload: each task is a job; worker: jobs run workers, which connect to the scheduler."""
    max_task_concurrency: Annotated[Limit, TASKS_AT_ONCE] = -1
    """Most tasks that run at once; -1: as many as max_concurrent_jobs allows."""
    name: Annotated[Name | None, Setting(default_text="worker_manager_id", metavar="NAME")] = None
    """Begins the names of the jobs."""
    max_concurrent_jobs: Annotated[int, Range(ge=1, le=MAX_ARRAY_SIZE), Setting(metavar="COUNT")] = 100
    """offload: most tasks that are submitted as jobs at the same time. worker: most jobs."""
    job_timeout_minutes: Annotated[int, Range(ge=1, le=14 * 24 * 60), Setting(metavar="MINUTES")] = 60
    """AWS Batch ends a job that runs for longer."""
    batch_capacity: Annotated[Literal["FARGATE", "FARGATE_SPOT", "EC2", "SPOT"], Setting(metavar="TYPE")] = "FARGATE"
    """What `setup` makes jobs run on; those with SPOT cost less, and their jobs may be taken away and run again."""
    batch_subnets: Annotated[
        Names, length(0, 16), Setting(default_text="those of the default VPC", metavar="SUBNET")
    ] = ()
    """Subnets for the jobs that `setup` makes a queue for; from there they must reach S3."""
    batch_security_groups: Annotated[
        Names, length(0, 5), Setting(default_text="the VPC's default", metavar="GROUP")
    ] = ()
    """Security groups for these jobs."""
    batch_image: Annotated[Name | None, Setting(default_text="Python's own", metavar="IMAGE")] = None
    """Image of the job definition of `setup`, with this version of scaler in it; without one, jobs install it from
    s3_bucket, where `setup` puts it."""
    batch_cpu: Annotated[int, Range(ge=1, le=16), Setting(metavar="COUNT")] = 1
    """CPUs of a job by that definition; in mode worker it has as many workers."""
    batch_memory: Annotated[int, Range(ge=1, le=120), Setting(metavar="GB")] = 2
    """Memory of a job by that definition in GB; Fargate has ranges for every number of CPUs."""
    batch_cpu_architecture: Annotated[Literal["X86_64", "ARM64"], Setting(metavar="NAME")] = "X86_64"
    """CPUs of the jobs that `setup` makes a definition for; ARM64 costs a fifth less on Fargate. Instances have
    those of their types."""
    batch_gpus: Annotated[int, Range(ge=0, le=16), Setting(metavar="COUNT")] = 0
    """GPUs of a job by that definition, on instances that have some; give their capability as well: gpu=1."""
    batch_instance_types: Annotated[Names, length(1, 20), Setting(metavar="TYPE")] = ("optimal",)
    """Types of instances for EC2 and SPOT, or families of them, such as g5; optimal: what fits the jobs."""

    @property
    def is_fargate(self) -> bool:
        return self.batch_capacity.startswith("FARGATE")

    @property
    def runs_elsewhere(self) -> bool:
        return self.mode == "offload"

    def check(self) -> None:
        super().check()
        if self.batch_gpus and self.is_fargate:
            raise ValueError(f"batch_gpus ({self.batch_gpus}) needs batch_capacity EC2 or SPOT: Fargate has no GPUs")
        if self.is_fargate:
            check_fargate("batch_cpu", self.batch_cpu, "batch_memory", self.batch_memory)
