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
