"""Task bars by worker lane, and their trace for the Chrome and Perfetto viewers. Pure. A lane is a processor of a
worker, including its replacements, and runs one task at a time. A task that waits for subtasks keeps its lane until it
ends, and tasks that use its slot run on another lane."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import inf
from typing import Any, NamedTuple

from scaler.monitor.model import Model
from scaler.monitor.rows import View, natural
from scaler.monitor.tables import number
from scaler.monitor.web.routes import MAX_TIMELINE_SECONDS, ApiRoute, seconds

LaneKey = tuple[str, int]
"""Worker name and lane number, from 1."""


class Bar(NamedTuple):
    """A task with its start and end (unix seconds). The end of a running task is the current time."""

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
    """Return the model's tasks that ran between two times, ordered by start. Includes idle lanes."""
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
            # The end of a running task may not be reported yet, and estimates of the worker's clock differ.
            if bar.end > after.start:
                bars[place] = bar._replace(end=after.start)
    return found


def oldest_end(model: Model) -> float | None:
    """Return the end (unix seconds) of the earliest ended task of the model, or None."""
    return min((task.ended_at for task in model.reported() if task.ended_at is not None), default=None)


_COLOURS = {"done": "good", "running": "thread_state_running", "cancelled": "grey"}
_FAILED = "terrible"


def trace(model: Model, seconds: float = inf) -> dict[str, Any]:
    """Return the tasks of the last seconds as JSON for the Chrome and Perfetto viewers. Uses the JSON object format of
    the Trace Event Format: a process per worker manager, a thread per worker lane, and a complete event (`"ph": "X"`,
    times in microseconds) per task."""
    workers = {worker.name: worker for worker in model.status.workers}
    processes: dict[str, int] = {}
    events: list[dict[str, Any]] = []
    found = sorted(lanes(model, model.now - seconds).items(), key=lambda item: (natural(item[0][0]), item[0][1]))
    for thread, ((worker, lane), bars) in enumerate(found, 1):
        row = workers.get(worker)
        manager = row.manager if row else "terminated workers"
        name = f"{worker} ({row.host}, pid {row.pid}), lane {lane}" if row else f"{worker}, lane {lane}"
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
    what = {"ph": "X", "name": bar.function or "task", "cat": bar.state, "cname": _COLOURS.get(bar.state, _FAILED)}
    yield {**what, **where, "dur": round(bar.end * 1e6) - start, "args": arguments}


_TIMES = (
    seconds(300),
    number("since", "Start time (Unix seconds), instead of `seconds`.", "number", 0, 1e15, 0.0),
    number("until", "End time (Unix seconds); 0: now.", "number", 0, 1e15, 0.0),
)
_BAR = (float, float, str, int, int, float, int, float)
_LANE = {"worker": str, "lane": int, "manager": str, "gone": bool, "bars": [_BAR]}
_TIMELINE = {
    "at": float,
    "since": float,
    "until": float,
    "oldest": float | None,
    "functions": [str],
    "states": [str],
    "lanes": [_LANE],
}
_DOWNLOAD = {"Content-Disposition": 'attachment; filename="scaler-trace.json"'}


def timeline_view(model: Model, seconds: float, since: float, until: float) -> View:
    at = model.now
    since, until = since or at - seconds, until or at
    managers = {worker.name: worker.manager for worker in model.status.workers}
    functions: dict[str, int] = {}
    states: dict[str, int] = {}

    def shown(bar: Bar) -> list[object]:
        """Return the values, with names replaced by indexes in the lists."""
        function = functions.setdefault(bar.function, len(functions))
        values = (*bar[:3], function, states.setdefault(bar.state, len(states)), *bar[5:])
        return [round(value, 6) if isinstance(value, float) else value for value in values]

    found: list[View] = []
    for (worker, lane), bars in lanes(model, since, until).items():
        place = {"worker": worker, "lane": lane, "manager": managers.get(worker, ""), "gone": worker not in managers}
        found.append({**place, "bars": list(map(shown, bars))})
    times = {"at": at, "since": since, "until": until, "oldest": oldest_end(model)}
    return {**times, "functions": list(functions), "states": list(states), "lanes": found}


ROUTES = (
    ApiRoute(
        "/api/timeline",
        "Tasks on each lane of each worker",
        _TIMELINE,
        lambda source, query: timeline_view(source.monitor.model, **query),
        _TIMES,
    ),
    ApiRoute(
        "/api/trace",
        "The timeline for the Chrome and Perfetto viewers",
        {"displayTimeUnit": str, "traceEvents": [{}]},
        lambda source, query: trace(source.monitor.model, query["seconds"]),
        (seconds(MAX_TIMELINE_SECONDS),),
        _DOWNLOAD,
    ),
)
