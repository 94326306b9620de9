"""Workers as ECS tasks on Fargate, which outlive their manager. A later one finds them by `startedBy`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from scaler.config.setting import Setting
from scaler.config.values import Name, Names, length
from scaler.config.worker_managers import FAR_WORKERS, WorkerManagerConfig
from scaler.plugins import WorkerManagerType
from scaler.worker_manager.aws import BUCKET_NAME, InstallingSettings, check_fargate

TYPE = WorkerManagerType(
    backend="scaler.worker_manager.aws_raw_ecs.backend:EcsBackend",
    settings="scaler.worker_manager.aws_raw_ecs:AwsRawEcsConfig",
    provision="scaler.worker_manager.aws_raw_ecs.setup:provision",
)
NOT_GIVEN = "not-given"  # stands for subnets, which the manager needs and `setup` does not


@dataclass(frozen=True, kw_only=True)
class AwsRawEcsConfig(WorkerManagerConfig, InstallingSettings):
    """Worker manager aws_raw_ecs: ECS tasks on Fargate."""

    note = FAR_WORKERS
    setup_defaults: ClassVar = {**WorkerManagerConfig.setup_defaults, "ecs_subnets": (NOT_GIVEN,)}

    type: Literal["aws_raw_ecs"] = "aws_raw_ecs"
    ecs_subnets: Annotated[Names, length(1, 16), Setting(metavar="SUBNET")]
    """Subnets that the tasks are in; from there they must reach the scheduler."""
    ecs_security_groups: Annotated[Names, length(0, 5), Setting(default_text="the VPC's default", metavar="GROUP")] = ()
    """Security groups of the tasks."""
    ecs_assign_public_ip: bool = False
    """Give each task a public address, which it needs in a public subnet to pull its image."""
    ecs_cluster: Annotated[Name, Setting(metavar="NAME")] = "scaler-cluster"
    """The ECS cluster; `setup` creates it."""
    ecs_task_definition: Annotated[Name, Setting(metavar="NAME")] = "scaler-task-definition"
    """Family of the task definition; the manager registers a revision when its settings differ from the newest."""
    ecs_task_image: Annotated[Name | None, Setting(default_text="Python's own", metavar="IMAGE")] = None
    """Image of the container, with this version of scaler in it; without one, tasks install it from s3_bucket."""
    s3_bucket: Annotated[str, Setting(default_text="none", metavar="BUCKET"), BUCKET_NAME] = ""
    """Where `setup` puts this version of scaler for tasks without an image; it makes the bucket."""
    ecs_task_cpu: Annotated[int, Setting(metavar="COUNT")] = 4
    """CPUs of a task, and workers in it."""
    ecs_task_memory: Annotated[int, Setting(metavar="GB")] = 30
    """Memory of a task in GB; Fargate has ranges for every number of CPUs."""
    ecs_cpu_architecture: Annotated[Literal["X86_64", "ARM64"], Setting(metavar="NAME")] = "X86_64"
    """CPUs of a task; ARM64 costs a fifth less, and an image must be for it."""
    ecs_capacity_provider: Literal["FARGATE", "FARGATE_SPOT"] = "FARGATE"
    """FARGATE_SPOT costs less; its tasks may be taken away with two minutes of notice."""

    def check(self) -> None:
        super().check()
        check_fargate("ecs_task_cpu", self.ecs_task_cpu, "ecs_task_memory", self.ecs_task_memory)
