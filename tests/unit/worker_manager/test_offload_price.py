"""What the jobs of mode offload cost, by the settings of their job definition."""

from __future__ import annotations

from typing import Any

import pytest

from scaler.config.load import model_of
from scaler.worker_manager.aws.prices import FARGATE_MINIMUM_SECONDS, fargate_price
from scaler.worker_manager.aws_hpc import AwsHpcConfig
from scaler.worker_manager.aws_hpc.executor import offload_backend
from scaler.worker_manager.backend import Capacity


def capacity(**values: Any) -> Capacity:
    place = {"job_queue": "q", "job_definition": "d", "s3_bucket": "calls-and-results", "aws_region": "eu-west-1"}
    told = {"scheduler_address": "tcp://127.0.0.1:1", "worker_manager_id": "cloud", **place, **values}
    return offload_backend(model_of(AwsHpcConfig, told)).capacity


@pytest.mark.parametrize(("cpus", "memory"), [(1, 2), (4, 16)])
def test_a_task_costs_what_a_fargate_task_of_its_size_does(cpus: int, memory: int) -> None:
    found = capacity(batch_cpu=cpus, batch_memory=memory)
    assert found.unit_price == fargate_price("eu-west-1", cpus, memory)
    assert found.charges_tasks
    assert found.unit_minimum_seconds == FARGATE_MINIMUM_SECONDS


def test_on_instances_the_price_of_a_job_is_not_known() -> None:
    found = capacity(batch_capacity="EC2")
    assert (found.unit_price, found.unit_minimum_seconds, found.charges_tasks) == (0.0, 0.0, True)
