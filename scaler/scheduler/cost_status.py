"""The part of the MonitorStatus document about what units cost. Pure."""

from __future__ import annotations

from heapq import nlargest

from scaler.policy.costs import Payer
from scaler.policy.spending import SpendingLedger
from scaler.protocol.cost_rows import CostRow

IDLE = Payer("", "", "(idle)")


def cost_rows(ledger: SpendingLedger, most: int) -> list[CostRow]:
    """Return the largest shares of what units have cost in the run, and what was idle, the largest first."""
    shares = ledger.shares
    sums = [(amount, payer) for payer, amount in shares.by_payer.items()]
    if shares.idle > 0:
        sums.append((shares.idle, IDLE))
    total = shares.total
    return [
        CostRow(
            "\n".join(payer), payer.function, payer.client, payer.key, round(amount, 6), round(100 * amount / total, 3)
        )
        for amount, payer in nlargest(most, sums)
    ]


def count_costs(ledger: SpendingLedger) -> int:
    return len(ledger.shares.by_payer) + (ledger.shares.idle > 0)
