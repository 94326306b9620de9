"""The rows of the table."""

from typing import Annotated, NamedTuple

from scaler.monitor.columns import Column


class SlowTaskRow(NamedTuple):
    function: Annotated[str, Column("Function")] = ""
    tasks: Annotated[int, Column("Slow tasks", "count", help="Longer than slow_seconds")] = 0
    longest_seconds: Annotated[float, Column("Longest", "seconds", metric="slow_tasks_longest_seconds")] = 0.0
