"""Cost and scaling rows of the MonitorStatus document. Pure."""

from __future__ import annotations

from collections.abc import Callable
from heapq import nlargest

from scaler.extensions.costs.ledger import SpendingLedger
from scaler.extensions.costs.prospect import prospects
from scaler.extensions.costs.shares import Payer
from scaler.protocol.cost_rows import CostRow, ScalingRow
from scaler.scheduler.core.cluster import ClusterState

MAX_TEXT = 200
IDLE = Payer("", "", "(idle)")


def cost_rows(ledger: SpendingLedger, most: int, sees: Callable[[str], bool]) -> list[CostRow]:
    shares = ledger.shares
    sums = [(amount, payer) for payer, amount in shares.by_payer.items() if sees(payer.key)]
    if shares.idle > 0:
        sums.append((shares.idle, IDLE))
    total = shares.total
    return [
        CostRow(
            "\n".join(payer), payer.function, payer.client, payer.key, round(amount, 6), round(100 * amount / total, 3)
        )
        for amount, payer in nlargest(most, sums)
    ]


def count_costs(ledger: SpendingLedger, sees: Callable[[str], bool]) -> int:
    return sum(sees(payer.key) for payer in ledger.shares.by_payer) + (ledger.shares.idle > 0)


def scaling_rows(state: ClusterState) -> list[ScalingRow]:
    if state.view is None:
        return []
    wanted = {record.name: record.wanted for record in state.managers.values() if record.wanted is not None}
    rows = []
    for each in prospects(state.view, wanted):
        reason = wanted[each.manager_id].reason if each.manager_id in wanted else ""
        row = ScalingRow(
            each.manager_id[:MAX_TEXT],
            each.units,
            each.wanted_units,
            present_seconds=_rounded(each.present_seconds, 1),
            wanted_seconds=_rounded(each.wanted_seconds, 1),
            more_seconds=_rounded(each.more_seconds, 1),
            more_cost=_rounded(each.more_cost, 6),
            reason=reason[:MAX_TEXT],
            note=each.note[:MAX_TEXT],
        )
        rows.append(row)
    return rows


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
