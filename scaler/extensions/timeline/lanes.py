"""Task bars by worker lane, and their trace for Chrome's and Perfetto's viewers. Pure.

A lane is a processor of a worker, or its replacement, and runs one task at a time. A task that waits for subtasks
keeps its lane until it ends, and tasks that use its slot run on another lane.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import inf
from typing import Any, NamedTuple

from scaler.monitor.model import Model
from scaler.monitor.rows import natural
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


_COLOURS = {"done": "good", "running": "thread_state_running", "cancelled": "grey"}
_FAILED = "terrible"


def trace(model: Model, seconds: float = inf) -> dict[str, Any]:
    """Return the tasks of the last seconds as JSON for Chrome's and Perfetto's viewers.

    Uses the JSON object format of the Trace Event Format: a process per worker manager, a thread per worker lane, and
    a complete event (`"ph": "X"`, times in microseconds) per task.
    """
    workers = {worker.name: worker for worker in model.status.workers}
    processes: dict[str, int] = {}
    events: list[dict[str, Any]] = []
    found = sorted(lanes(model, model.now - seconds).items(), key=lambda lane: (natural(lane[0][0]), lane[0][1]))
    for thread, ((worker, number), bars) in enumerate(found, 1):
        row = workers.get(worker)
        manager = row.manager if row else "terminated workers"
        name = f"{worker} ({row.host}, pid {row.pid}), lane {number}" if row else f"{worker}, lane {number}"
        if manager not in processes:
            processes[manager] = len(processes) + 1
            events.append({"ph": "M", "name": "process_name", "pid": processes[manager], "args": {"name": manager}})
        process = processes[manager]
        events.append({"ph": "M", "name": "thread_name", "pid": process, "tid": thread, "args": {"name": name}})
        for bar in bars:
            events += _events_of(bar, model, process, thread)
    return {"displayTimeUnit": "ms", "traceEvents": events}


def _events_of(bar: Bar, model: Model, process: int, thread: int) -> Iterator[dict[str, Any]]:
    task = model.task(bar.task)
    arguments: dict[str, Any] = {"task": bar.task, "state": bar.state}
    if task is not None:
        arguments |= {"client": task.client, "attempt": task.attempt}
        arguments |= {"cpu_us": task.cpu_us, "peak_bytes": task.peak_bytes} if task.peak_bytes else {}
        arguments |= {"failure": task.text} if task.text else {}
    start = round(bar.start * 1e6)
    where = {"pid": process, "tid": thread, "ts": start}
    if bar.inputs:
        inputs = {"dur": round(bar.inputs * 1e6), "args": {"task": bar.task, "bytes": bar.inputs_bytes}}
        yield {"ph": "X", "name": "inputs", "cat": "inputs", **where, **inputs}
    yield {
        "ph": "X",
        "name": bar.function or "task",
        "cat": bar.state,
        "cname": _COLOURS.get(bar.state, _FAILED),
        **where,
        "dur": round(bar.end * 1e6) - start,
        "args": arguments,
    }
