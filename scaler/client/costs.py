"""What tasks of clients have cost, as the scheduler knows it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scaler.client.options import check_integer
from scaler.protocol.messages import CostsFound, FindCosts

if TYPE_CHECKING:
    from scaler.client.loop import ClientLoop

MAX_COSTS = 1_000


@dataclass(frozen=True, slots=True)
class FunctionCost:
    """What the tasks of a function of a client have cost in this run, in the currency of unit_price. key: its name."""

    function: str
    client: str
    key: str
    cost: float


def costs(loop: ClientLoop, limit: int) -> list[FunctionCost]:
    """Return the largest costs. Raises UsageError for a bad limit, and UnreachableError."""
    check_integer("limit", limit, 1, MAX_COSTS)
    return [FunctionCost(*row) for row in json.loads(loop.ask(FindCosts(limit), CostsFound).json)]
