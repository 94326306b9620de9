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
    """Maximum cost of the units of all worker managers together: amounts per hour, day, and run, such as 5/hour,
    40/day, 100/run, in the currency of unit_price. Warns at 80 %. At 100 %, no paid unit starts and running paid
    units drain.
    """
