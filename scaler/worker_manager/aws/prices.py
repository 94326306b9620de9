"""Prices of AWS on demand, Linux, without tax, by "AWS Fargate pricing" and "Amazon EC2 on-demand pricing". Pure."""

from __future__ import annotations

import math

PRICES_OF = "2026-06"
FARGATE_MINIMUM_SECONDS = EC2_MINIMUM_SECONDS = 60.0  # a unit that runs for less is charged for as long
FARGATE_SPOT_SHARE = 0.3136
"""Share of the on-demand price, from us-east-1. Spot prices vary during the day and seldom exceed this one."""
EC2_SPOT_SHARE = 0.5  # the same for instances, whose spot prices differ by zone and type: an upper estimate for most
FARGATE_ARM_SHARE = 0.8

_REGIONS = {
    "us-east-1": (0.04048, 0.004445, 1.0),
    "us-east-2": (0.04048, 0.004445, 1.0),
    "us-west-1": (0.04656, 0.00511, 1.167),
    "us-west-2": (0.04048, 0.004445, 1.0),
    "ca-central-1": (0.04456, 0.004865, 1.115),
    "eu-central-1": (0.04656, 0.00511, 1.199),
    "eu-north-1": (0.0445, 0.0049, 1.064),
    "eu-west-1": (0.04048, 0.004445, 1.115),
    "eu-west-2": (0.04656, 0.00511, 1.157),
    "eu-west-3": (0.0486, 0.0053, 1.167),
    "ap-northeast-1": (0.05056, 0.00553, 1.292),
    "ap-northeast-2": (0.04656, 0.00511, 1.229),
    "ap-south-1": (0.04256, 0.004655, 1.052),
    "ap-southeast-1": (0.05056, 0.00553, 1.25),
    "ap-southeast-2": (0.04856, 0.00532, 1.25),
    "sa-east-1": (0.0696, 0.0076, 1.594),
}
"""By region: Fargate on x86 per vCPU and per GB, and instance prices as a share of us-east-1 (within 5 % for most
families)."""
# fmt: off
_LARGE = {
    "c5": 0.085, "c5a": 0.077, "c5d": 0.096, "c5n": 0.108, "c6a": 0.0765, "c6g": 0.068, "c6gd": 0.0768,
    "c6gn": 0.0864, "c6i": 0.085, "c6id": 0.1008, "c6in": 0.1134, "c7a": 0.10264, "c7g": 0.0725, "c7gd": 0.0907,
    "c7gn": 0.1248, "c7i": 0.08925, "c7i-flex": 0.08479, "c8g": 0.07976,
    "m5": 0.096, "m5a": 0.086, "m5d": 0.113, "m6a": 0.0864, "m6g": 0.077, "m6gd": 0.0904, "m6i": 0.096,
    "m6id": 0.11865, "m7a": 0.11592, "m7g": 0.0816, "m7gd": 0.1068, "m7i": 0.1008, "m7i-flex": 0.09576,
    "m8g": 0.08976,
    "r5": 0.126, "r5a": 0.113, "r6a": 0.1134, "r6g": 0.1008, "r6i": 0.126, "r6id": 0.1512, "r7a": 0.15215,
    "r7g": 0.1071, "r7i": 0.1323, "r8g": 0.11782,
    "t2": 0.0928, "t3": 0.0832, "t3a": 0.0752, "t4g": 0.0672,
}
# fmt: on
"""Size large in us-east-1 by family. Other sizes cost in proportion."""
_BELOW_LARGE = {"nano": 1 / 16, "micro": 1 / 8, "small": 1 / 4, "medium": 1 / 2, "large": 1.0}
_WITH_GPU = {
    "g4dn": {1: 0.526, 2: 0.752, 4: 1.204, 8: 2.176, 12: 3.912, 16: 4.352},
    "g5": {1: 1.006, 2: 1.212, 4: 1.624, 8: 2.448, 12: 5.672, 16: 4.096, 24: 8.144, 48: 16.288},
    "g5g": {1: 0.42, 2: 0.556, 4: 0.828, 8: 1.372, 16: 2.744},
    "g6": {1: 0.8048, 2: 0.9776, 4: 1.3232, 8: 2.0144, 12: 4.6016, 16: 3.3968, 24: 6.6752, 48: 13.3504},
    "g6e": {1: 1.861, 2: 2.24208, 4: 3.00424, 8: 4.52856, 12: 10.49264, 16: 7.57719, 24: 15.06559, 48: 30.13118},
}
"""Sizes Nxlarge in us-east-1 by family; not in proportion."""


def fargate_price(
    region: str, cpus: float, memory_gb: float, architecture: str = "X86_64", capacity: str = "FARGATE"
) -> float | None:
    """Return USD per hour of a Fargate task; None for an unknown region."""
    if region not in _REGIONS:
        return None
    cpu, memory, _ = _REGIONS[region]
    price = cpus * cpu + memory_gb * memory
    price *= FARGATE_ARM_SHARE if architecture == "ARM64" else 1.0
    return price * (FARGATE_SPOT_SHARE if capacity == "FARGATE_SPOT" else 1.0)


def ec2_price(region: str, instance_type: str, *, spot: bool = False) -> float | None:
    """Return USD per hour of an instance; None for an unknown region or type."""
    family, _, size = instance_type.partition(".")
    price = _price_in_us_east_1(family, size)
    if price is None or region not in _REGIONS:
        return None
    return price * _REGIONS[region][2] * (EC2_SPOT_SHARE if spot else 1.0)


def _price_in_us_east_1(family: str, size: str) -> float | None:
    count = size.removesuffix("xlarge") or "1"
    times = int(count) if size.endswith("xlarge") and count.isdecimal() else None
    if family in _WITH_GPU:
        return _WITH_GPU[family].get(times or 0)
    share = _BELOW_LARGE.get(size, math.nan) if times is None else 2.0 * times
    return None if family not in _LARGE or math.isnan(share) else _LARGE[family] * share
