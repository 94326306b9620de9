"""Workers as ECS tasks on Fargate.

A unit is a task of one container, in which an agent runs with as many workers as the task has CPUs. Everything that it
needs to know travels as one JSON document in the overrides of its container; which unit it is it learns from ECS.

Tasks outlive their manager: they carry its mark in `startedBy`, by which a manager that comes later finds them.
"""

from __future__ import annotations

from scaler.plugins import WorkerManagerType

TYPE = WorkerManagerType(
    backend="scaler.worker_manager.aws_raw_ecs.backend:EcsBackend",
    settings="scaler.worker_manager.aws_raw_ecs.settings:AwsRawEcsConfig",
    provision="scaler.worker_manager.aws_raw_ecs.setup:provision",
)
