"""Monitor rows of clients' calls. Pure."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from scaler.protocol.monitor_columns import INTERNAL, Column

_PROGRESS = Column(
    "Progress",
    "percent",
    1,
    "Finished items out of all; bar: done, failed, cancelled, running, queued",
    after="client",
    volatile=True,
)
_CALL = "Client method; submit: all single submits of a function, tag: all tasks with a tag"
_LEFT = Column("Time left", "seconds", 1, "Estimated time until it ends", after="client", volatile=True)
LEFT_ERROR = Column(unit="seconds", help="Uncertainty of the estimate", volatile=True)
_RATE = Column("Items/s", "count", 2, "That ended lately", volatile=True, zero_is_none=True)


class CallRow(NamedTuple):
    """A client's call: a map, a graph, all single submits of a function, or all tasks with a tag.

    Items are tasks, except in maps. queued: includes items that the client has not sent. ended: includes failed and
    cancelled items. cancelled: includes items never sent because the call ended. reason: why the oldest waiting task
    waits. has_chunks: some tasks were chunks, so durations of items are unknown.
    """

    id: str = ""
    call: Annotated[str, Column("Call", help=_CALL)] = ""
    name: Annotated[str, Column("Function")] = ""
    client: Annotated[str, Column("Client", rank=3)] = ""
    queued: Annotated[int, Column("Queued", "count", 2)] = 0
    running: Annotated[int, Column("Running", "count", 2)] = 0
    ended: Annotated[int, Column("Ended", "count", 2)] = 0
    failed: Annotated[int, Column("Failed", "count")] = 0
    cancelled: Annotated[int, Column("Cancelled", "count", 2, "Includes unsent items", zero_is_none=True)] = 0
    began_at: Annotated[float, Column("Began", "time", 3)] = 0.0
    has_chunks: Annotated[bool, INTERNAL] = False
    p50_seconds: Annotated[float, INTERNAL] = 0.0
    p95_seconds: Annotated[float, INTERNAL] = 0.0
    max_seconds: Annotated[float, INTERNAL] = 0.0
    reason: Annotated[str, Column("Why it waits", help="Why its oldest waiting task waits")] = ""
    oldest: Annotated[str, Column(help="The affected task")] = ""
    job_ended: Annotated[int, Column(help="Ended items; for single submits, since there were last none")] = 0
    job_failed: Annotated[int, Column(help="Failed items in job_ended")] = 0
    job_cancelled: Annotated[int, Column(help="Cancelled items in job_ended")] = 0
    tasks_per_second: Annotated[float, _RATE] = 0.0
    left_seconds: Annotated[float | None, _LEFT] = None
    left_error_seconds: Annotated[float | None, LEFT_ERROR] = None

    @property
    def live(self) -> int:
        return self.queued + self.running

    @property
    def progress_percent(self) -> Annotated[float | None, _PROGRESS]:
        return done_percent(self.job_ended, self.job_failed, self.job_cancelled, self.live)


def done_percent(ended: int, failed: int, cancelled: int, live: int) -> float | None:
    """Return the percentage of a job's items that finished with a result; None for a job without items."""
    items = ended + live
    return 100.0 * (ended - failed - cancelled) / items if items else None


CALL_COLUMNS = CallRow._fields[:-6]
"""Columns sent by the scheduler; the receiver computes the rest."""
