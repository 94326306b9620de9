"""On-demand prices of AWS, from the tables in prices.toml."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources

FARGATE_MINIMUM_SECONDS = EC2_MINIMUM_SECONDS = 60.0  # minimum charge of a unit
FARGATE_SPOT_SHARE = 0.3136  # share of the on-demand price, in us-east-1; spot prices vary and seldom exceed this
EC2_SPOT_SHARE = 0.5  # share of the on-demand price; upper estimate for most zones and types
FARGATE_ARM_SHARE = 0.8

_TABLES = tomllib.loads(resources.files(__package__).joinpath("prices.toml").read_text())
_REGIONS: Mapping[str, Sequence[float]] = _TABLES["regions"]
_LARGE: Mapping[str, float] = _TABLES["large"]
_WITH_GPU: Mapping[str, Mapping[str, float]] = _TABLES["with_gpu"]
_BELOW_LARGE = {"nano": 1 / 16, "micro": 1 / 8, "small": 1 / 4, "medium": 1 / 2, "large": 1.0}


def fargate_price(
    region: str, cpus: float, memory_gb: float, architecture: str = "X86_64", capacity: str = "FARGATE"
) -> float | None:
    """Return a Fargate task's price in USD per hour; None for an unknown region."""
    if region not in _REGIONS:
        return None
    cpu, memory, _ = _REGIONS[region]
    price = cpus * cpu + memory_gb * memory
    price *= FARGATE_ARM_SHARE if architecture == "ARM64" else 1.0
    return price * (FARGATE_SPOT_SHARE if capacity == "FARGATE_SPOT" else 1.0)


def ec2_price(region: str, instance_type: str, *, spot: bool = False) -> float | None:
    """Return an instance's price in USD per hour; None for an unknown region or type."""
    family, _, size = instance_type.partition(".")
    price = _price_in_us_east_1(family, size)
    if price is None or region not in _REGIONS:
        return None
    return price * _REGIONS[region][2] * (EC2_SPOT_SHARE if spot else 1.0)


def _price_in_us_east_1(family: str, size: str) -> float | None:
    count = size.removesuffix("xlarge") or "1"
    times = int(count) if size.endswith("xlarge") and count.isdecimal() else None
    if family in _WITH_GPU:
        return _WITH_GPU[family].get(str(times))
    share = _BELOW_LARGE.get(size, math.nan) if times is None else 2.0 * times
    return None if family not in _LARGE or math.isnan(share) else _LARGE[family] * share
