"""Units and their costs as text. Pure."""

from __future__ import annotations

from scaler.monitor.top import formats
from scaler.monitor.top.data import table_of
from scaler.protocol.cost_rows import CostRow
from scaler.protocol.monitor_rows import ManagerRow, SpendingRow, Status

NO_MANAGERS = "no worker manager is connected"
NOTHING = "units have cost nothing in this run: their worker managers know no price, or none has run"


def cost_lines(status: Status, width: int | None) -> list[str]:
    row = status.spending
    if not (row.run or row.per_hour):
        return [NOTHING]
    lines = [sums(row), *limits(row)]
    if status.costs:
        lines += [*table_of(CostRow, status.costs, width)]
        if len(status.costs) < status.totals.costs:
            lines.append(f"the largest {len(status.costs)} of {status.totals.costs}")
    return [formats.cut(line, width) for line in lines]


def units_lines(status: Status, width: int | None) -> list[str]:
    """Return the worker managers with the reasons for their units, then the costs. width: None for no limit."""
    managers = table_of(ManagerRow, status.managers, width) if status.managers else [NO_MANAGERS]
    return [*(formats.cut(line, width) for line in managers), "", *cost_lines(status, width)]


def sums(row: SpendingRow) -> str:
    known = {"per hour now": row.per_hour, "in the last hour": row.hour, "today": row.today, "in this run": row.run}
    text = ", ".join(f"{formats.money(amount)} {name}" for name, amount in known.items())
    return text if not row.forecast else f"{text}; to come for the present tasks: {formats.money(row.forecast)}"


def limits(row: SpendingRow) -> list[str]:
    periods = (("hour", row.hour, row.hour_limit), ("day", row.day, row.day_limit), ("run", row.run, row.run_limit))
    known = [
        f"{formats.money(spent)} of {formats.money(limit)} per {period}" for period, spent, limit in periods if limit
    ]
    if not known:
        return ["no spend_limit"]
    text = f"spend_limit: {', '.join(known)}"
    if row.reached:
        return [text, row.reached]
    if row.limit_seconds is None:
        return [f"{text}; none is reached at the present cost"]
    return [
        f"{text}; at the present cost that per {row.next_limit} is reached in {formats.duration(row.limit_seconds)}"
    ]
