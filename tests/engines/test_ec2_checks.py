"""`setup --check` of aws_ec2 reports incompatible images, types, and subnets, and `show` lists resources and costs."""

from __future__ import annotations

from typing import Any

import pytest

from scaler.config.commands import Verb
from scaler.testing.aws import AwsEmulator
from scaler.worker_manager.aws import AwsSettings
from scaler.worker_manager.aws.calls import AwsClient
from scaler.worker_manager.aws.prices import ec2_price
from scaler.worker_manager.aws_ec2.backend import Ec2Backend
from scaler.worker_manager.aws_ec2.setup import provision
from tests.engines.clouds_rig import ec2_config, open_subnets

LINUX = "ami-1e749f67"
"""A Linux image that moto offers, for x86_64."""


@pytest.fixture
def aws(aws: AwsEmulator) -> AwsEmulator:
    aws.quotas.values["L-1216C47A"] = 1000
    return aws


def do(verb: Verb, **settings: Any) -> tuple[int, list[str]]:
    lines: list[str] = []
    config = ec2_config(**{"ec2_image": LINUX, "ec2_setup": "exec sleep 3600", "max_task_concurrency": 8, **settings})
    return provision(config, verb, False, lines.append), lines


def problems(**settings: Any) -> list[str]:
    code, lines = do("check", **settings)
    found = [line[14:] for line in lines if line.startswith("problem")]
    assert code == (1 if found else 0)
    return found


def public_subnet(*, public_ip: bool) -> str:
    """Return a subnet of the default VPC with internet access. public_ip: it assigns public addresses."""
    ec2 = AwsClient(AwsSettings(), "ec2")
    subnet = open_subnets()[0]
    ec2.call("ModifySubnetAttribute", SubnetId=subnet, MapPublicIpOnLaunch={"Value": public_ip})
    ec2.close()
    return subnet


def test_finds_subnets_without_internet_access(aws: AwsEmulator) -> None:
    ec2 = AwsClient(AwsSettings(), "ec2")
    closed = str(ec2.call("DescribeSubnets")["Subnets"][0]["SubnetId"])
    ec2.close()
    [text] = problems(ec2_subnets=(closed,))
    assert f"subnet {closed} has no route to the internet" in text
    subnet = public_subnet(public_ip=False)
    [text] = problems(ec2_subnets=(subnet,))
    assert "without a public address: enable auto-assign public" in text
    [text] = problems(ec2_subnets=("subnet-0123456789abcdef0",))
    assert text.startswith("subnets: The subnet ID 'subnet-0123456789abcdef0' does not exist")
    assert text.endswith(": correct ec2_subnets")


def test_finds_a_missing_or_incompatible_image(aws: AwsEmulator) -> None:
    place = {"ec2_subnets": (public_subnet(public_ip=True),)}
    [text] = problems(ec2_image="ami-0123456789abcdef0", **place)
    assert text.startswith("image ami-0123456789abcdef0: The image id ")
    assert text.endswith(": correct ec2_image: ids differ by region")
    [text] = problems(ec2_instance_types=("m6g.large",), **place)
    assert text.endswith("is for x86_64, and m6g.large is not: choose another image, or other ec2_instance_types")


def test_finds_unknown_types_and_types_missing_in_the_subnets_zones(aws: AwsEmulator) -> None:
    subnet = public_subnet(public_ip=True)
    texts = problems(ec2_instance_types=("m5.large", "m99.large"), ec2_subnets=(subnet,))
    assert texts[0].startswith("instance types m5.large, m99.large: ")
    assert texts[0].endswith(": correct ec2_instance_types")
    assert texts[1].startswith("m99.large is not offered in us-east-1")
    assert len(texts) == 2


def test_show_lists_the_running_instances_and_their_price(aws: AwsEmulator) -> None:
    do("setup")
    assert "runs          no instances" in do("show")[1]
    backend = Ec2Backend(ec2_config(ec2_image=LINUX, ec2_setup="exec sleep 3600", max_task_concurrency=8))
    started = backend.start(3)
    price = ec2_price("us-east-1", "m5.large")
    assert price is not None
    [line] = [line for line in do("show")[1] if line.startswith("runs")]
    assert line.startswith(f"runs          3 instances: 6 vCPUs, about {3 * price:.2f} USD an hour (prices of 20")
    backend.stop(started)
    backend.close()
    assert "runs          no instances" in do("show")[1]
