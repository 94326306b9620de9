"""How far the tasks of each function and call are, and how long they will take, from one state to the next. Pure.

The job of a function are its tasks since it last had none that were alive; for a monitor that connects meanwhile, all
since the scheduler's start. Memory is bounded by the rows of the last state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from math import hypot, sqrt
from typing import Generic, TypeVar

from scaler.protocol.call_rows import CallRow
from scaler.protocol.monitor_rows import FunctionRow

MAX_POINTS = 32
"""States in which tasks had ended, over which the rate is measured: half a minute, or longer where tasks are long."""
MIN_ENDED = 3
"""Tasks that must have ended in that time before it says how long the others will take."""
STALL_SECONDS = 10.0
"""A function of which nothing has ended for this long, and for twice its longest task, has no known rate. Without a
queue, its last tasks are unusual ones when nothing has ended for as long as most of its tasks take."""
MANY_RUNNING = 20
"""Of this many running tasks, the last one takes longer than nineteen of twenty."""

Row = TypeVar("Row", FunctionRow, CallRow)
Point = tuple[float, int]
"""A time in unix seconds, and how many tasks had ended by then."""


@dataclass(slots=True)
class ProgressOfJob(Generic[Row]):
    """The present or last job of one function or call. ended, failed, cancelled: what it had before the job."""

    last_at: float
    last: Row
    points: deque[Point]
    ended: int = 0
    failed: int = 0
    cancelled: int = 0

    def take_in(self, at: float, row: Row) -> Row:
        """Take in the next state of the function, and return it with what is known of its job."""
        if not self.last.live and (row.live or row.ended > self.last.ended):
            self.ended, self.failed, self.cancelled = self.last.ended, self.last.failed, self.last.cancelled
            self.points = deque([(self.last_at, worked(self.last))], MAX_POINTS)
        if worked(row) > self.points[-1][1]:
            self.points.append((at, worked(row)))
        self.last_at, self.last = at, row
        rate = max(0.0, slope(self.points[0], (at, worked(row)))) if row.live else 0.0
        left, error = time_left(row, at, self.points, rate) or (None, None)
        return row._replace(
            job_ended=row.ended - self.ended,
            job_failed=row.failed - self.failed,
            job_cancelled=row.cancelled - self.cancelled,
            tasks_per_second=rate,
            left_seconds=left,
            left_error_seconds=error,
        )


class JobProgress(Generic[Row]):
    """The jobs of all functions, or of all calls, of one scheduler."""

    def __init__(self) -> None:
        self._jobs: dict[str, ProgressOfJob[Row]] = {}

    def follow(self, at: float, rows: Iterable[Row]) -> tuple[Row, ...]:
        """Return the rows of the next state with what is known of their jobs. at: unix seconds."""
        known, self._jobs = self._jobs, {}
        found = []
        for row in rows:
            key = row.name if isinstance(row, FunctionRow) else row.id
            job = known.get(key)
            if job is None or row.ended < job.last.ended:  # the scheduler had forgotten it, and counts from zero
                job = ProgressOfJob(at, row, deque([(at, worked(row))], MAX_POINTS))
            self._jobs[key] = job
            found.append(job.take_in(at, row))
        return tuple(found)


def worked(row: FunctionRow | CallRow) -> int:
    """Return how many have ended, without the cancelled ones: those say nothing of how fast the others go."""
    return row.ended - row.cancelled


def time_left(row: FunctionRow | CallRow, at: float, points: deque[Point], rate: float) -> tuple[float, float] | None:
    """Return in how many seconds the tasks of a function will have ended, and how wrong that may be; None: unknown.

    points: states in which some had ended. rate: tasks that ended per second since the first of these.
    """
    ended = worked(row) - points[0][1]
    p50, p95, longest = row.p50_seconds, row.p95_seconds, row.max_seconds
    if row.has_chunks and rate > 0:
        p50 = p95 = longest = row.running / rate  # a call's share of the time, all that is known of it
    is_stalled = at - points[-1][0] > max(STALL_SECONDS, 2 * longest if row.queued else p95)
    if not row.live or ended < MIN_ENDED or rate <= 0 or not p95 or is_stalled:
        return None
    # The durations of those that ended vary, and those of the queue: 95 % are below the median and 1.645 deviations.
    # And the rate changes on, as much as it did between the halves of the measured time.
    deviation_seconds = (p95 - p50) / 1.645
    variation = deviation_seconds * rate / max(1, row.running)
    share = hypot(max(1.0, variation) / sqrt(ended), variation / sqrt(max(1, row.queued)))
    if len(points) > MIN_ENDED:
        middle = points[len(points) // 2]
        change = slope(middle, (at, worked(row))) - slope(points[0], middle)
        share = max(share, abs(change) / (2 * rate))
    queue_seconds = row.queued / rate
    # The last tasks begin when the queue is empty; without a queue, they have run for an unknown time already.
    least = p50 if row.queued else 0.0
    most = p95 if row.running < MANY_RUNNING else longest
    tail, tail_error = (least + most) / 2, (most - least) / 2
    return queue_seconds + tail, hypot(queue_seconds * share, tail_error)


def slope(first: Point, last: Point) -> float:
    """Return how many tasks ended per second between two points; 0 where there is no time between them."""
    seconds = last[0] - first[0]
    return (last[1] - first[1]) / seconds if seconds > 0 else 0.0
