"""Prices of AWS capacity, and of jobs in mode offload: published prices are found, unknown ones not invented."""

from __future__ import annotations

from typing import Any

import pytest

from scaler.config.load import model_of
from scaler.worker_manager.aws.prices import FARGATE_MINIMUM_SECONDS, ec2_price, fargate_price
from scaler.worker_manager.aws_hpc import AwsHpcConfig
from scaler.worker_manager.aws_hpc.executor import make_backend
from scaler.worker_manager.backend import Capacity


def test_fargate_task_costs_its_cpus_and_memory() -> None:
    assert fargate_price("us-east-1", 1, 0) == pytest.approx(0.04048)
    assert fargate_price("us-east-1", 4, 30) == pytest.approx(4 * 0.04048 + 30 * 0.004445)
    assert fargate_price("us-east-1", 1, 2, "ARM64") == pytest.approx(0.03238 + 2 * 0.00356, rel=0.01)


def test_spot_capacity_costs_a_share_of_the_on_demand_price() -> None:
    assert fargate_price("us-east-1", 1, 0, capacity="FARGATE_SPOT") == pytest.approx(0.0127, rel=0.01)
    on_demand, spot = (ec2_price("us-east-1", "c7i.large", spot=spot) or 0.0 for spot in (False, True))
    assert 0 < spot < on_demand


@pytest.mark.parametrize(
    ("region", "instance_type", "price"),
    [("us-east-1", "t3.micro", 0.0104), ("us-east-1", "g5.16xlarge", 4.096), ("ap-northeast-1", "m7g.xlarge", 0.2108)],
)
def test_instance_price_follows_family_and_size(region: str, instance_type: str, price: float) -> None:
    assert ec2_price(region, instance_type) == pytest.approx(price, rel=0.002)


@pytest.mark.parametrize(
    "instance_type", ["p9.large", "m7g", "m7g.huge", "m7g.metal", "g5.large", "g5.3xlarge", ".large"]
)
def test_unknown_type_or_region_has_no_price(instance_type: str) -> None:
    assert ec2_price("us-east-1", instance_type) is None
    assert ec2_price("moon-1", "m7g.large") is None
    assert fargate_price("moon-1", 1, 2) is None


def capacity(**values: Any) -> Capacity:
    place = {"job_queue": "q", "job_definition": "d", "s3_bucket": "calls-and-results", "aws_region": "eu-west-1"}
    told = {"scheduler_address": "tcp://127.0.0.1:1", "worker_manager_id": "cloud", **place, **values}
    return make_backend(model_of(AwsHpcConfig, told)).capacity


@pytest.mark.parametrize(("cpus", "memory"), [(1, 2), (4, 16)])
def test_task_costs_as_much_as_a_fargate_task_of_its_size(cpus: int, memory: int) -> None:
    found = capacity(batch_cpu=cpus, batch_memory=memory)
    assert found.unit_price == fargate_price("eu-west-1", cpus, memory)
    assert found.charges_tasks
    assert found.unit_minimum_seconds == FARGATE_MINIMUM_SECONDS


def test_job_price_on_instances_is_unknown() -> None:
    found = capacity(batch_capacity="EC2")
    assert (found.unit_price, found.unit_minimum_seconds, found.charges_tasks) == (0.0, 0.0, True)
