"""Workers as ECS tasks on Fargate.

A unit is a task of one container, in which an agent runs with as many workers as the task has CPUs. Everything that it
needs to know travels as one JSON document in the overrides of its container; which unit it is it learns from ECS.

Tasks outlive their manager: they carry its mark in `startedBy`, by which a manager that comes later finds them.
"""

from __future__ import annotations

from scaler.worker_manager.aws_raw_ecs.backend import EcsBackend
from scaler.worker_manager.aws_raw_ecs.setup import provision

__all__ = ["EcsBackend", "provision"]
