"""What the model holds as JSON-able documents, as docs/web-api.md describes them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, fields
from typing import Any

from scaler.monitor.model import Model
from scaler.monitor.rows import (
    ClientRow,
    Decision,
    FunctionRow,
    Incident,
    ManagerRow,
    ProcessorRow,
    Status,
    TaskRow,
    WorkerRow,
)

MAX_LISTED_TEXT = 300
"""Characters of a task's failure in a list."""
DIGITS = 3
"""Of numbers that change all the time: more would only be bytes."""

View = dict[str, Any]
_PROCESSOR = tuple(item.name for item in fields(ProcessorRow))
_WORKER = tuple(item.name for item in fields(WorkerRow) if item.name != "processors")
_TASK = tuple(item.name for item in fields(TaskRow) if item.name not in ("traceback", "told_at"))


def status_view(model: Model) -> View:
    """Return all counts and sums."""
    status = model.status
    rates = {name: model.series.last(name) for name in ("tasks_per_second", "failed_per_second")}
    return {
        "at": status.at,
        "scheduler": asdict(status.scheduler),
        "storage": asdict(status.storage),
        "tasks": {
            **asdict(status.tasks),
            "queued": status.tasks.queued,
            "ended_total": status.tasks.all_ended,
            "failed_total": status.tasks.failed,
        },
        "totals": asdict(status.totals),
        "sent": dict(status.sent),
        "received": dict(status.received),
        **rates,
        "tasks_left_out": model.dropped,
    }


def worker_view(worker: WorkerRow) -> View:
    view = {name: _short(getattr(worker, name)) for name in _WORKER}
    view["cpu_percent"] = _short(worker.cpu_percent)
    view["rss_bytes"] = worker.rss_bytes
    view["processors"] = [
        {name: _short(getattr(processor, name)) for name in _PROCESSOR} for processor in worker.processors
    ]
    return view


def manager_view(manager: ManagerRow) -> View:
    return asdict(manager)


def client_view(client: ClientRow) -> View:
    return asdict(client)


def function_view(function: FunctionRow) -> View:
    return {**asdict(function), "mean_seconds": function.mean_seconds}


def task_view(task: TaskRow) -> View:
    """Return a task as it stands in lists."""
    view = {name: getattr(task, name) for name in _TASK}
    view["failed"] = task.failed
    view["started_at"] = task.started_at
    view["text"] = task.text[:MAX_LISTED_TEXT]
    return view


def whole_task_view(task: TaskRow) -> View:
    """Return a task with everything that is known of it."""
    return {**task_view(task), "text": task.text, "traceback": task.traceback}


def decision_view(decision: Decision) -> View:
    return asdict(decision)


def incident_view(incident: Incident) -> View:
    return asdict(incident)


Row = tuple[str, Callable[[Status], Iterable[Any]], Callable[[Any], View]]
TABLES: Mapping[str, Row] = {
    "workers": ("id", lambda status: status.workers, worker_view),
    "clients": ("id", lambda status: status.clients, client_view),
    "managers": ("id", lambda status: status.managers, manager_view),
    "functions": ("name", lambda status: status.functions, function_view),
}
"""Lists that are told row by row: the key of their rows, where they are, and how a row is shown."""


def table_view(status: Status, name: str) -> list[View]:
    """Return one of `TABLES`."""
    _, rows, view = TABLES[name]
    return [view(row) for row in rows(status)]


def timeline_view(model: Model, seconds: float) -> View:
    """Return what each worker did in the last seconds."""
    now = model.status.at
    since = now - seconds
    managers = {worker.name: worker.manager for worker in model.status.workers}
    functions: dict[str, int] = {}
    states: dict[str, int] = {}
    lanes = [
        {
            "worker": worker,
            "manager": managers.get(worker, ""),
            "gone": worker not in managers,
            "bars": [
                [
                    round(bar.start, 6),
                    round(bar.end, 6),
                    bar.task,
                    functions.setdefault(bar.function, len(functions)),
                    states.setdefault(bar.state, len(states)),
                ]
                for bar in bars
            ],
        }
        for worker, bars in model.lanes(since).items()
    ]
    return {
        "at": now,
        "since": since,
        "oldest": model.oldest_end(),
        "functions": list(functions),
        "states": list(states),
        "lanes": lanes,
    }


def _short(value: object) -> object:
    return round(value, DIGITS) if isinstance(value, float) else value
