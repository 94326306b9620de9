"""Runs workers as ECS tasks on Fargate. Tasks outlive their manager, and a new manager finds them by `startedBy`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from scaler.config.setting import Setting
from scaler.config.values import Count, Name, Names, length
from scaler.config.worker_managers import FAR_WORKERS, WorkerManagerConfig
from scaler.plugins import WorkerManagerType
from scaler.worker_manager.aws import BUCKET_NAME, InstallingSettings

TYPE = WorkerManagerType(
    backend="scaler.worker_manager.aws_raw_ecs.backend:EcsBackend",
    settings="scaler.worker_manager.aws_raw_ecs:AwsRawEcsConfig",
    provision="scaler.worker_manager.aws_raw_ecs.setup:provision",
)


@dataclass(frozen=True, kw_only=True)
class AwsRawEcsConfig(WorkerManagerConfig, InstallingSettings):
    """Worker manager aws_raw_ecs: ECS tasks on Fargate."""

    note = FAR_WORKERS
    setup_defaults: ClassVar = {**WorkerManagerConfig.setup_defaults, "ecs_subnets": ("not-needed",)}

    type: Literal["aws_raw_ecs"] = "aws_raw_ecs"
    ecs_subnets: Annotated[Names, length(1, 16), Setting(metavar="SUBNET")]
    """Subnets for the tasks. The scheduler must be reachable from each."""
    ecs_security_groups: Annotated[Names, length(0, 5), Setting(default_text="the VPC's default", metavar="GROUP")] = ()
    """Security groups for the tasks."""
    ecs_assign_public_ip: bool = False
    """Assign a public IP address to each task. Tasks in a public subnet need one to pull their image."""
    ecs_cluster: Annotated[Name, Setting(metavar="NAME")] = "scaler-cluster"
    """ECS cluster, created by `setup`."""
    ecs_task_definition: Annotated[Name, Setting(metavar="NAME")] = "scaler-task-definition"
    """Family of the task definition. The manager registers a new revision when its settings change."""
    ecs_task_image: Annotated[Name | None, Setting(default_text="the official Python image", metavar="IMAGE")] = None
    """Container image with this version of scaler. Without it, tasks install scaler from s3_bucket."""
    s3_bucket: Annotated[str, Setting(default_text="none", metavar="BUCKET"), BUCKET_NAME] = ""
    """Bucket from which tasks without an image install this version of scaler. `setup` creates it."""
    ecs_task_cpu: Annotated[Count, Setting(metavar="COUNT")] = 4
    """CPUs and workers per task."""
    ecs_task_memory: Annotated[Count, Setting(metavar="GB")] = 30
    """Memory per task in GB. The valid range depends on the number of CPUs."""
    ecs_cpu_architecture: Annotated[Literal["X86_64", "ARM64"], Setting(metavar="NAME")] = "X86_64"
    """CPU architecture of the tasks, which a custom image must match. ARM64 is about 20 % cheaper."""
    ecs_capacity_provider: Literal["FARGATE", "FARGATE_SPOT"] = "FARGATE"
    """FARGATE_SPOT is cheaper, but AWS may reclaim the tasks with two minutes' notice."""
