"""Costs of units, and the spend limit.

policy step -> core.py: ledger and its limits for units -> file.py: state_directory
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from scaler.config.setting import Setting, SettingsModel
from scaler.config.values import taken_by
from scaler.plugins import Extension

PERIODS = ("hour", "day", "run")
_EXAMPLE = "write amounts per hour, day or run, such as 5/hour, 40/day, 100/run"


def parse_spend_limit(text: str) -> dict[str, float]:
    """Return the limits by period. Raises ValueError, quoting the invalid part."""
    limits: dict[str, float] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        amount_text, slash, period = (part.strip() for part in entry.partition("/"))
        try:
            amount = float(amount_text)
        except ValueError:
            raise ValueError(f"{entry!r} has no amount: {_EXAMPLE}") from None
        if not slash or period not in PERIODS:
            raise ValueError(f"{entry!r} has no period: {_EXAMPLE}")
        if not (math.isfinite(amount) and amount > 0):
            raise ValueError(f"{entry!r} must be above 0; omit it for no limit")
        if period in limits:
            raise ValueError(f"{entry!r} duplicates the limit per {period}")
        limits[period] = amount
    return limits


@dataclass(frozen=True, kw_only=True)
class CostSettings(SettingsModel):
    """Costs."""

    spend_limit: Annotated[str, taken_by(parse_spend_limit), Setting(default_text="none", metavar="AMOUNTS")] = ""
    """Maximum cost of all worker managers' units together: amounts per hour, day, and run, such as 5/hour,
    40/day, 100/run, in the currency of unit_price. Warns at 80 %. At 100 %, no paid unit starts and running paid units
    drain."""


EXTENSION = Extension(
    "costs",
    settings="scaler.extensions.costs:CostSettings",
    scheduler="scaler.extensions.costs.core:Costs",
    performer="scaler.extensions.costs.file:spending_file",
    page="scaler.extensions.costs:costs",
    requires=("scaling",),
)
