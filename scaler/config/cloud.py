"""Worker managers whose units are not processes of this machine: ECS, AWS Batch and Symphony."""

from __future__ import annotations

import re
import sys
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from scaler.config.kinds import Limit, Name, Names
from scaler.config.setting import Alias, Setting, SettingsModel
from scaler.config.worker_managers import WorkerManagerConfig

FARGATE_MEMORY_GB: dict[int, tuple[int, ...]] = {
    1: tuple(range(2, 9)),
    2: tuple(range(4, 17)),
    4: tuple(range(8, 31)),
    8: tuple(range(16, 61, 4)),
    16: tuple(range(32, 121, 8)),
}
"""What memory a Fargate task with so many whole CPUs may have. Source: the ECS developer guide, task size."""
MAX_ARRAY_SIZE = 10_000
NOT_GIVEN = "not-given"
"""Stands for a name that a manager needs and its set-up can do without."""
OF_PROCESSORS = ("garbage_collect_interval_seconds", "trim_memory_threshold_bytes", "hard_processor_suspend")
"""Settings of the processors of a worker, which tasks that run elsewhere do not have."""
CONCURRENCY = Setting("-mtc", "-n", aliases=(Alias("num_of_workers"),), metavar="COUNT")


def _url(value: str) -> str:
    if not re.fullmatch(r"https?://[^\s/]+(/\S*)?", value):
        raise ValueError("must be a URL such as http://127.0.0.1:5000")
    return value


def _bucket(value: str) -> str:
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", value):
        raise ValueError("must be the name of a bucket: 3 to 63 small letters, digits, dots and hyphens")
    return value


def _prefix(value: str) -> str:
    stripped = value.strip("/")
    if not re.fullmatch(r"[A-Za-z0-9!_.*'()/-]{1,500}", stripped):
        raise ValueError("must be the beginning of an object's key: letters, digits and !_.*'()/-")
    return stripped


def _cpus(value: int) -> int:
    if value not in FARGATE_MEMORY_GB:
        raise ValueError("must be 1, 2, 4, 8 or 16")
    return value


def _check_fargate(cpu_key: str, cpus: int, memory_key: str, gigabytes: int) -> None:
    allowed = FARGATE_MEMORY_GB.get(cpus)
    if allowed is None:
        raise ValueError(f"{cpu_key} ({cpus}) on Fargate must be 1, 2, 4, 8 or 16")
    if gigabytes not in allowed:
        step = allowed[1] - allowed[0]
        raise ValueError(
            f"{memory_key} ({gigabytes}) with {cpu_key} ({cpus}) must be from {allowed[0]} to {allowed[-1]} GB in "
            f"steps of {step}"
        )


def _check_elsewhere(config: WorkerManagerConfig, tasks: str) -> None:
    for key in OF_PROCESSORS:
        if getattr(config, key) != type(config).model_fields[key].default:
            raise ValueError(f"{key} is for the processors of workers, and {tasks} have none: leave it out")


Url = Annotated[str, AfterValidator(_url)]


class AwsSettings(SettingsModel):
    """AWS. Credentials come from the default chain: environment, profile, instance."""

    aws_region: Annotated[Name, Setting(metavar="REGION")] = "us-east-1"
    """Where the service runs."""
    aws_endpoint_url: Annotated[Url | None, Setting(default_text="that of AWS", metavar="URL")] = None
    """Where to reach the service instead of AWS: an emulator, or a private endpoint."""
    aws_profile: Annotated[Name | None, Setting(default_text="the default chain", metavar="NAME")] = None
    """Which profile of the AWS configuration files to use."""


class AwsRawEcsConfig(WorkerManagerConfig, AwsSettings):
    """Worker manager aws_raw_ecs: ECS tasks on Fargate."""

    type: Literal["aws_raw_ecs"] = "aws_raw_ecs"
    """What the workers run on."""
    ecs_subnets: Annotated[Names, Setting(metavar="SUBNET")] = Field(min_length=1, max_length=16)
    """Subnets that the tasks are in; from there they must reach the scheduler."""
    ecs_security_groups: Annotated[Names, Setting(default_text="the VPC's default", metavar="GROUP")] = Field(
        default=(), max_length=5
    )
    """Security groups of the tasks."""
    ecs_assign_public_ip: bool = False
    """Give each task a public address, which it needs in a public subnet to pull its image."""
    ecs_cluster: Annotated[Name, Setting(metavar="NAME")] = "scaler-cluster"
    """The ECS cluster; `setup` creates it."""
    ecs_task_definition: Annotated[Name, Setting(metavar="NAME")] = "scaler-task-definition"
    """Family of the task definition; the manager registers a revision when its settings differ from the newest."""
    ecs_task_image: Annotated[
        Name | None, Setting(default_text="python:VERSION-slim, which installs at start", metavar="IMAGE")
    ] = None
    """Image of the worker's container, such as one made with docker/worker.Dockerfile."""
    ecs_task_cpu: Annotated[int, AfterValidator(_cpus), Setting(metavar="COUNT")] = 4
    """CPUs of a task, and workers in it."""
    ecs_task_memory: Annotated[int, Setting(metavar="GB")] = 30
    """Memory of a task in GB; Fargate has ranges for every number of CPUs."""
    ecs_python_requirements: Annotated[str, Setting(default_text="this version of scaler", metavar="REQUIREMENTS")] = ""
    """What the container installs with pip before it starts, separated by blanks; an own image needs nothing."""
    ecs_python_version: Annotated[
        str, Setting(default_text="the manager's", metavar="VERSION"), Field(pattern=r"^3\.\d{1,2}$")
    ] = f"{sys.version_info.major}.{sys.version_info.minor}"
    """Python of the default image: clients and workers must have the same."""
    ecs_capacity_provider: Literal["FARGATE", "FARGATE_SPOT"] = "FARGATE"
    """FARGATE_SPOT costs less; its tasks may be taken away with two minutes of notice."""

    @model_validator(mode="after")
    def _memory_fits(self) -> AwsRawEcsConfig:
        _check_fargate("ecs_task_cpu", self.ecs_task_cpu, "ecs_task_memory", self.ecs_task_memory)
        return self


class AwsHpcConfig(WorkerManagerConfig, AwsSettings):
    """Worker manager aws_hpc: AWS Batch jobs."""

    type: Literal["aws_hpc"] = "aws_hpc"
    """What the workers run on."""
    job_queue: Annotated[Name, Setting(metavar="NAME")]
    """The job queue."""
    job_definition: Annotated[Name, Setting(metavar="NAME")]
    """The job definition: a container with scaler in it, such as one made with docker/worker.Dockerfile."""
    s3_bucket: Annotated[str, Setting(metavar="BUCKET"), AfterValidator(_bucket)]
    """Where large payloads and all results pass through."""
    s3_prefix: Annotated[str, Setting(metavar="PREFIX"), AfterValidator(_prefix)] = "scaler-tasks"
    """Begins the keys of everything there."""
    backend: Literal["batch"] = "batch"
    """The service that runs the jobs."""
    mode: Literal["offload", "worker"] = "offload"
    """offload: each task is a job; worker: jobs run workers, which connect to the scheduler."""
    max_task_concurrency: Annotated[Limit, CONCURRENCY] = -1
    """Most tasks that run at once; -1: as many as max_concurrent_jobs allows."""
    name: Annotated[Name | None, Setting(default_text="worker_manager_id", metavar="NAME")] = None
    """Begins the names of the jobs."""
    max_concurrent_jobs: Annotated[int, Field(ge=1, le=MAX_ARRAY_SIZE), Setting(metavar="COUNT")] = 100
    """offload: most tasks that are submitted as jobs at the same time. worker: most jobs."""
    job_timeout_minutes: Annotated[int, Field(ge=1, le=14 * 24 * 60), Setting(metavar="MINUTES")] = 60
    """AWS Batch ends a job that runs for longer."""
    batch_capacity: Annotated[Literal["FARGATE", "FARGATE_SPOT", "EC2", "SPOT"], Setting(metavar="TYPE")] = "FARGATE"
    """What `setup` makes jobs run on; those with SPOT cost less, and their jobs may be taken away and run again."""
    batch_subnets: Annotated[Names, Setting(default_text="those of the default VPC", metavar="SUBNET")] = Field(
        default=(), max_length=16
    )
    """Subnets for the jobs that `setup` makes a queue for; from there they must reach S3."""
    batch_security_groups: Annotated[Names, Setting(default_text="the VPC's default", metavar="GROUP")] = Field(
        default=(), max_length=5
    )
    """Security groups for these jobs."""
    batch_image: Annotated[
        Name | None, Setting(default_text="python:VERSION-slim, which installs at start", metavar="IMAGE")
    ] = None
    """Image of the job definition that `setup` makes, such as one made with docker/worker.Dockerfile."""
    batch_python_requirements: Annotated[
        str, Setting(default_text="this version of scaler", metavar="REQUIREMENTS")
    ] = ""
    """What its container installs with pip before it starts, separated by blanks; an own image needs nothing."""
    batch_cpu: Annotated[int, Field(ge=1, le=16), Setting(metavar="COUNT")] = 1
    """CPUs of a job by that definition; in mode worker it has as many workers."""
    batch_memory: Annotated[int, Field(ge=1, le=120), Setting(metavar="GB")] = 2
    """Memory of a job by that definition in GB; Fargate has ranges for every number of CPUs."""

    @model_validator(mode="after")
    def _memory_fits(self) -> AwsHpcConfig:
        if self.batch_capacity.startswith("FARGATE"):
            _check_fargate("batch_cpu", self.batch_cpu, "batch_memory", self.batch_memory)
        return self

    @model_validator(mode="after")
    def _settings_have_an_effect(self) -> AwsHpcConfig:
        if self.mode == "offload":
            _check_elsewhere(self, "tasks of aws_hpc in mode offload")
        return self


class SymphonyConfig(WorkerManagerConfig):
    """Worker manager symphony: tasks of a Symphony session."""

    type: Literal["symphony"] = "symphony"
    """What the workers run on."""
    service_name: Annotated[Name, Setting(metavar="NAME")]
    """The application whose service runs the tasks."""
    symphony_user: Annotated[str, Setting(metavar="NAME")] = "Guest"
    """Who connects."""
    symphony_password_file: Annotated[str | None, Setting(default_text="no password", metavar="PATH")] = None
    """File whose first line is the password; nobody but its owner may read it."""
    session_name: Annotated[Name | None, Setting(default_text="worker_manager_id", metavar="NAME")] = None
    """Name of the session, as Symphony's own tools show it."""
    session_priority: Annotated[int | None, Field(ge=1, le=10_000), Setting(default_text="the application's")] = None
    """From 1 to 10000; sessions with a higher one get hosts first."""
    max_task_concurrency: Annotated[Limit, CONCURRENCY] = 1000
    """Most tasks that are in the session at the same time; -1: no limit."""

    @model_validator(mode="after")
    def _settings_have_an_effect(self) -> SymphonyConfig:
        _check_elsewhere(self, "tasks of symphony")
        return self
