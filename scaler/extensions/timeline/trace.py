"""The timeline as a trace for Chrome's and Perfetto's viewers. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Any

from scaler.extensions.timeline.lanes import Bar, lanes
from scaler.monitor.model import Model
from scaler.monitor.rows import natural

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
