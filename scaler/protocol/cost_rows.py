"""Monitor rows of the cost of units. Pure."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from scaler.protocol.monitor_columns import Column

_PERCENT = Column("Share", "percent", 1, "Of what units cost in this run", volatile=True)


class CostRow(NamedTuple):
    """Cost of a client's function in this run. function: (idle) for idle slots, (others) for all small ones."""

    id: str = ""
    function: Annotated[str, Column("Function")] = ""
    client: Annotated[str, Column("Client")] = ""
    key: Annotated[str, Column("Key", rank=2, help="Name of the client's key")] = ""
    cost: Annotated[float, Column("Cost", "money", 1, "In this run, in the currency of unit_price")] = 0.0
    percent: Annotated[float, _PERCENT] = 0.0


_END = Column("Ends in", "seconds", 1, "The tasks that it can run, with its present units", volatile=True)
_WANTED_END = Column("With those", "seconds", 2, "The same with the units that are wanted", volatile=True)
_MORE_END = Column("One more", "seconds", 2, "The same with one unit more than that", volatile=True)
_MORE_COST = Column(
    "Costs", "money", 2, "What one more costs, less what the others save; below 0: it saves", volatile=True
)


class ScalingRow(NamedTuple):
    """Reasons for a manager's number of units, and forecasts. Times are None while unknown; see note."""

    id: Annotated[str, Column("Manager")] = ""
    units: Annotated[int, Column("Units", "count", 1, "Running and pending")] = 0
    wanted: Annotated[int, Column("Wanted", "count", 1, "By the scaling policy")] = 0
    present_seconds: Annotated[float | None, _END] = None
    wanted_seconds: Annotated[float | None, _WANTED_END] = None
    more_seconds: Annotated[float | None, _MORE_END] = None
    more_cost: Annotated[float | None, _MORE_COST] = None
    reason: Annotated[str, Column("Why", help="Why the scaling policy wants this many units")] = ""
    note: Annotated[str, Column("Why no figure", rank=3, help="Why one more unit has no figures")] = ""
