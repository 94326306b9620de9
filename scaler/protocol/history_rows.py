"""The rows of the history: figures of times, what happened, and how long tasks of each function took. Pure."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from scaler.protocol.monitor_columns import Column
from scaler.protocol.monitor_rows import FailureRow


def _most(title: str) -> Column:
    return Column(title, "count", help="The most of it")


_BYTES = Column("Memory", "bytes", help="Of the scheduler and the listed workers, the most of it")


class PointRow(NamedTuple):
    """Figures of a time in which a scheduler ran: of one minute, or of several where the answer has too many.

    seconds: how long it is. done, failed, cancelled and cost: in it. Of the other figures, the highest, and where there
    is one with `_least`, the lowest of its minutes: each minute has its highest, and its mean for tasks per second.
    """

    at: Annotated[float, Column("From", "time")] = 0.0
    seconds: Annotated[float, Column("For", "seconds")] = 0.0
    done: Annotated[int, Column("Done", "count")] = 0
    failed: Annotated[int, Column("Failed", "count")] = 0
    cancelled: Annotated[int, Column("Cancelled", "count")] = 0
    cost: Annotated[float, Column("Cost", "money")] = 0.0
    tasks_per_second: Annotated[float, Column("Tasks/s", "count", help="That ended, of any outcome")] = 0.0
    tasks_per_second_least: float = 0.0
    failed_per_second: float = 0.0
    living: Annotated[int, Column(help="Tasks that had not ended")] = 0
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
    lag_seconds: Annotated[float, Column("Lag", "seconds", help="How late the scheduler's loop was, at most")] = 0.0


class EventRow(NamedTuple):
    """Something that happened. kind: started and ended of the scheduler, scaling, or that of an incident.

    times: how often in its minute.
    """

    at: Annotated[float, Column("When", "time")] = 0.0
    kind: Annotated[str, Column("What")] = ""
    subject: Annotated[str, Column("Subject")] = ""
    text: Annotated[str, Column("Text")] = ""
    times: Annotated[int, Column("Times", "count")] = 1


class FunctionTimesRow(NamedTuple):
    """Tasks of one function that ended in a time. p50_seconds, p95_seconds: of them.

    0: none of them has a duration, because they never ran.
    """

    at: Annotated[float, Column(unit="time", help="When the time began")] = 0.0
    seconds: Annotated[float, Column(unit="seconds", help="How long it was")] = 0.0
    function: Annotated[str, Column("Function")] = ""
    ended: Annotated[int, Column("Ended", "count")] = 0
    failed: Annotated[int, Column("Failed", "count")] = 0
    p50_seconds: Annotated[float, Column("p50", "seconds", help="Half of its tasks took less", zero_is_none=True)] = 0.0
    p95_seconds: Annotated[float, Column("p95", "seconds", 2, "95 % took less", zero_is_none=True)] = 0.0


class ClusterHistory(NamedTuple):
    """What is known of the time from `since` to `until`. oldest: the first time of which anything is kept; 0: none.

    points: in the order of time; where one ends well before the next begins, no scheduler ran. events: the most
    important ones, in the order of time; left_out: how many others there were. failures: failed tasks by function and
    text. functions: one row for each, those that took the most time first.
    """

    since: float = 0.0
    until: float = 0.0
    oldest: float = 0.0
    left_out: int = 0
    points: tuple[PointRow, ...] = ()
    events: tuple[EventRow, ...] = ()
    failures: tuple[FailureRow, ...] = ()
    functions: tuple[FunctionTimesRow, ...] = ()
