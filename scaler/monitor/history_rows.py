"""Rows of the history: figures over time, events, and task durations of each function. Pure."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from scaler.monitor.cluster_rows import FailureRow
from scaler.monitor.columns import Column


def _most(title: str) -> Column:
    return Column(title, "count", help="Largest share in use")


_BYTES = Column("Memory", "bytes", help="Peak memory of the scheduler and the listed workers")


class PointRow(NamedTuple):
    """Figures of a period in which a scheduler ran: a minute, or several if the answer would be too long.

    seconds: length of the period. done, failed, cancelled, and cost are sums over the period. All other figures are the
    maximum over its minutes, or with suffix `_least` the minimum. A minute contributes its maximum, or its mean for
    tasks_per_second.
    """

    at: Annotated[float, Column("From", "time")] = 0.0
    seconds: Annotated[float, Column("For", "seconds")] = 0.0
    done: Annotated[int, Column("Done", "count")] = 0
    failed: Annotated[int, Column("Failed", "count")] = 0
    cancelled: Annotated[int, Column("Cancelled", "count")] = 0
    cost: Annotated[float, Column("Cost", "money")] = 0.0
    tasks_per_second: Annotated[float, Column("Tasks/s", "count", help="Ended tasks, with any outcome")] = 0.0
    tasks_per_second_least: float = 0.0
    failed_per_second: float = 0.0
    living: Annotated[int, Column(help="Unfinished tasks")] = 0
    queued: Annotated[int, _most("Queued")] = 0
    queued_least: int = 0
    running: Annotated[int, _most("Busy slots")] = 0
    running_least: int = 0
    slots: Annotated[int, _most("Slots")] = 0
    slots_least: int = 0
    workers: Annotated[int, _most("Workers")] = 0
    workers_least: int = 0
    managers: int = 0
    memory_bytes: Annotated[int, _BYTES] = 0
    memory_bytes_least: int = 0
    lag_seconds: Annotated[float, Column("Lag", "seconds", help="Maximum delay of the scheduler's event loop")] = 0.0


class EventRow(NamedTuple):
    """An event. kind: started, ended, scaling, or the kind of an incident. times: count in its minute."""

    at: Annotated[float, Column("When", "time")] = 0.0
    kind: Annotated[str, Column("What")] = ""
    subject: Annotated[str, Column("Subject")] = ""
    text: Annotated[str, Column("Text")] = ""
    times: Annotated[int, Column("Times", "count")] = 1


class FunctionTimesRow(NamedTuple):
    """Tasks of one function that finished in a period. Quantiles are 0 if no task ran."""

    at: Annotated[float, Column(unit="time", help="Start of the period")] = 0.0
    seconds: Annotated[float, Column(unit="seconds", help="Length of the period")] = 0.0
    function: Annotated[str, Column("Function")] = ""
    ended: Annotated[int, Column("Ended", "count")] = 0
    failed: Annotated[int, Column("Failed", "count")] = 0
    p50_seconds: Annotated[float, Column("p50", "seconds", help="Median task duration", zero_is_none=True)] = 0.0
    p95_seconds: Annotated[float, Column("p95", "seconds", 2, "95 % took less", zero_is_none=True)] = 0.0


class ClusterHistory(NamedTuple):
    """History from `since` to `until`. oldest: start of the recorded history; 0: none.

    points: in chronological order. No scheduler ran in a gap between two points. events: the most important events, in
    chronological order; left_out: number of omitted events. failures: failed tasks by function and text. functions: one
    row each, ordered by total time, descending.
    """

    since: float = 0.0
    until: float = 0.0
    oldest: float = 0.0
    left_out: int = 0
    points: tuple[PointRow, ...] = ()
    events: tuple[EventRow, ...] = ()
    failures: tuple[FailureRow, ...] = ()
    functions: tuple[FunctionTimesRow, ...] = ()
