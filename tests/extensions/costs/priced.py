"""A cluster whose units have prices."""

from __future__ import annotations

from typing import Any

from scaler.extensions.costs import CostSettings
from scaler.extensions.costs.core import Costs, SpendingLedger, kept_per_hour
from scaler.policy.view import ScalingPolicy
from tests.unit.scheduler.driver import Cluster


class Priced(Cluster):
    def __init__(self, policy: ScalingPolicy | None = None, **settings: Any) -> None:
        self.costs = Costs(CostSettings(spend_limit=settings.pop("spend_limit", "")))
        self.parts = (lambda: self.costs,)
        super().__init__(policy, **settings)

    @property
    def ledger(self) -> SpendingLedger:
        return self.costs.ledger

    def kept_per_hour(self) -> float:
        return sum(map(kept_per_hour, self.state.rooms.scaling.managers.values()))
