"""The settings of costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from scaler.config.setting import Setting, SettingsModel
from scaler.config.values import SpendLimit


@dataclass(frozen=True, kw_only=True)
class CostSettings(SettingsModel):
    """Costs."""

    spend_limit: Annotated[SpendLimit, Setting(default_text="none", metavar="AMOUNTS")] = ""
    """The most that units of all worker managers together may cost: amounts per hour, day and run, such as
    5/hour, 40/day, 100/run, in the currency of unit_price. At 80 % users are warned, at 100 % only units that cost
    nothing start, and the others end when their tasks have."""
