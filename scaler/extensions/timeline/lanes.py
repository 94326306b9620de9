"""Task bars by worker lane. Pure.

A lane is a processor of a worker, or its replacement, and runs one task at a time. A task that waits for subtasks
keeps its lane until it ends, and tasks that use its slot run on another lane.
"""

from __future__ import annotations

from itertools import pairwise
from math import inf
from typing import NamedTuple

from scaler.monitor.model import Model
from scaler.protocol.monitor_rows import RUNNING

LaneKey = tuple[str, int]
"""Worker name and lane number, from 1."""


class Bar(NamedTuple):
    """A task, from start to end (unix seconds). A running task ends now."""

    start: float
    end: float
    task: str
    function: str
    state: str
    inputs: float = 0.0
    """Seconds from the start until the stored inputs were loaded."""
    inputs_bytes: int = 0
    failed: float = 0.0
    """Failed share of the task, 0 to 1."""


def lanes(model: Model, since: float = -inf, until: float = inf) -> dict[LaneKey, list[Bar]]:
    """Return the model's tasks that ran between two times, by start. Includes the idle lanes of workers."""
    now = model.now
    found: dict[LaneKey, list[Bar]] = {
        (worker.name, lane): [] for worker in model.status.workers for lane in range(1, worker.slots + 1)
    }
    for task in model.reported():
        start = min(task.started_at, now)
        end = now if task.ended_at is None else min(task.ended_at, now)
        if task.lane and end >= since and start <= until:
            inputs = min(task.inputs_us / 1e6, end - start), task.inputs_bytes
            bar = Bar(start, end, task.id, task.function, task.state, *inputs, task.failed_share)
            found.setdefault((task.worker, task.lane), []).append(bar)
    for bars in found.values():
        bars.sort()
        for place, (bar, after) in enumerate(pairwise(bars)):
            if bar.state == RUNNING and bar.end > after.start:  # its end is not reported yet
                bars[place] = bar._replace(end=after.start)
    return found


def oldest_end(model: Model) -> float | None:
    """Return the end (unix seconds) of the earliest ended task of the model, or None."""
    return min((task.ended_at for task in model.reported() if task.ended_at is not None), default=None)
