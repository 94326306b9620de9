"""Computes the progress and remaining time of functions and calls from successive states. Pure.

A function's job consists of its tasks since the function last had no live tasks, as far as the monitor can tell."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from math import hypot, sqrt
from typing import Generic, TypeVar

from scaler.monitor.cluster_rows import FunctionRow, Status
from scaler.monitor.data_rows import CallRow

MAX_POINTS = 32
"""Number of states with newly ended tasks over which the rate is measured: half a minute, or longer for long tasks."""
MIN_ENDED = 3
"""Minimum tasks that ended in that time before the remaining time is estimated."""
STALL_SECONDS = 10.0
"""Time without an ended task after which the rate is unknown, if it also exceeds twice the longest task. Without a
queue, the p95 of the durations replaces twice the longest task, because the last tasks are unusual by then."""
MANY_RUNNING = 20
"""Number of running tasks above which the last one is expected to exceed the 95th percentile."""

Row = TypeVar("Row", FunctionRow, CallRow)
Point = tuple[float, int]
"""A time (unix seconds) and the number of tasks ended by then."""


@dataclass(slots=True)
class ProgressOfJob(Generic[Row]):
    """The current or last job of one function or call. ended, failed, cancelled: counts before the job."""

    last_at: float
    last: Row
    points: deque[Point]
    ended: int = 0
    failed: int = 0
    cancelled: int = 0

    def take_in(self, at: float, row: Row) -> Row:
        """Apply the next state of the function. Return the row with the figures of its job."""
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
    def __init__(self) -> None:
        self._jobs: dict[str, ProgressOfJob[Row]] = {}
        self._incarnation = 0

    def follow(self, status: Status, rows: Iterable[Row]) -> tuple[Row, ...]:
        """Return the rows of the next state, with the progress of their jobs. A restarted scheduler starts new jobs."""
        known = self._jobs if status.incarnation == self._incarnation else {}
        self._jobs, self._incarnation, at = {}, status.incarnation, status.at
        found = []
        for row in rows:
            key = row.name if isinstance(row, FunctionRow) else row.id
            job = known.get(key)
            if job is None or row.ended < job.last.ended:  # the scheduler dropped the row and counts from zero
                job = ProgressOfJob(at, row, deque([(at, worked(row))], MAX_POINTS))
            self._jobs[key] = job
            found.append(job.take_in(at, row))
        return tuple(found)


def worked(row: FunctionRow | CallRow) -> int:
    """Return the number of ended tasks, except cancelled tasks, which would distort the rate."""
    return row.ended - row.cancelled


def time_left(row: FunctionRow | CallRow, at: float, points: deque[Point], rate: float) -> tuple[float, float] | None:
    """Estimate the seconds until a function's tasks have ended, with the error of the estimate. None if unknown.
    points: states in which tasks had ended. rate: ended tasks per second since the first point."""
    ended = worked(row) - points[0][1]
    p50, p95, longest = row.p50_seconds, row.p95_seconds, row.max_seconds
    if row.has_chunks and rate > 0:
        p50 = p95 = longest = row.running / rate  # share of a call, the only known duration
    is_stalled = at - points[-1][0] > max(STALL_SECONDS, 2 * longest if row.queued else p95)
    if not row.live or ended < MIN_ENDED or rate <= 0 or not p95 or is_stalled:
        return None
    # Durations of ended and queued tasks vary: the 95th percentile is 1.645 deviations above the median. The rate may
    # also keep changing by as much as between the halves of the measured time.
    deviation_seconds = (p95 - p50) / 1.645
    variation = deviation_seconds * rate / max(1, row.running)
    share = hypot(max(1.0, variation) / sqrt(ended), variation / sqrt(max(1, row.queued)))
    if len(points) > MIN_ENDED:
        middle = points[len(points) // 2]
        change = slope(middle, (at, worked(row))) - slope(points[0], middle)
        share = max(share, abs(change) / (2 * rate))
    queue_seconds = row.queued / rate
    # The last tasks start when the queue is empty. Without a queue, they started at an unknown time.
    least = p50 if row.queued else 0.0
    most = p95 if row.running < MANY_RUNNING else longest
    tail, tail_error = (least + most) / 2, (most - least) / 2
    return queue_seconds + tail, hypot(queue_seconds * share, tail_error)


def slope(first: Point, last: Point) -> float:
    seconds = last[0] - first[0]
    return (last[1] - first[1]) / seconds if seconds > 0 else 0.0
