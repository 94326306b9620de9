"""The rows of the table of limits."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from scaler.monitor.columns import Column


class LimitRow(NamedTuple):
    """A limit of the cluster, and its use."""

    limit: Annotated[str, Column("Limit")] = ""
    used: Annotated[float, Column("Used")] = 0.0
    total: Annotated[float, Column("Total")] = 0.0
    ready: Annotated[int, Column("Ready", "count", help="Tasks that wait for the limit or for a slot")] = 0
    used_by: Annotated[str, Column("Used by", help="Number of tasks by function")] = ""
