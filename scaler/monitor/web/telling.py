"""What browsers have been told, and what has changed since: whole pictures first, then differences. Pure.

Law: a browser that takes in a picture and the differences after it has the rows that a new picture would have.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from math import inf, nextafter
from typing import Literal, TypeVar

from scaler.monitor.model import Model
from scaler.monitor.rows import Decision, Incident, TaskRow
from scaler.monitor.series import FINE_SECONDS
from scaler.monitor.web.views import (
    TABLES,
    View,
    decision_view,
    incident_view,
    status_view,
    table_view,
    task_view,
)

MAX_TASKS_TOLD = 100
"""Rows of tasks in one difference: those of failures before others, then the newest."""
MAX_TASKS_LOOKED_AT = 2000
"""Of the tasks that are new, for a difference: the newest."""
MAX_LISTED = 100
"""Decisions and incidents in a picture or a difference: the newest."""

Kind = Literal["snapshot", "delta"]
Told = tuple[Kind, View]
R = TypeVar("R", Decision, Incident)


class Teller:
    """Tells all browsers the same. connection: what is to be said about the connection to the scheduler.

    Parts of the connection in `restless` change all the time, and are no reason to tell anything by themselves.
    """

    restless = frozenset({"age_seconds"})

    def __init__(self, model: Model, connection: Callable[[], View], task_rows: int) -> None:
        """task_rows: how many of the last tasks are in a picture."""
        self._model = model
        self._connection = connection
        self._task_rows = task_rows
        self._tables: dict[str, dict[str, View]] = {}
        self._decision: Decision | None = None
        self._incident: Incident | None = None
        self._told_connection: View = {}
        self._mark()

    def snapshot(self) -> View:
        """Return the picture as it is now, and take it for told."""
        model = self._model
        self._mark()
        return {
            "connection": self._connection(),
            "status": self._status_view,
            **{name: list(rows.values()) for name, rows in self._tables.items()},
            "tasks": [task_view(task) for task in model.tasks(limit=self._task_rows)],
            "decisions": [decision_view(decision) for decision in _last(model.decisions, MAX_LISTED)],
            "incidents": [incident_view(incident) for incident in _last(model.incidents, MAX_LISTED)],
            "series": model.series.columns(model.status.at - FINE_SECONDS),
        }

    def news(self, *, anyway: bool = False) -> Told | None:
        """Return what to tell since the last time, None for nothing. anyway: then at least the connection.

        After a new scheduler's first state it is a whole picture.
        """
        model = self._model
        if model.status.incarnation != self._status.incarnation:
            return "snapshot", self.snapshot()
        connection = self._connection()
        delta: View = {}
        if model.status is not self._status:
            delta |= self._new_state()
        delta |= self._new_tasks()
        if decisions := _since(model.decisions, self._decision):
            delta["decisions"] = [decision_view(decision) for decision in decisions]
            self._decision = decisions[-1]
        if incidents := _since(model.incidents, self._incident):
            delta["incidents"] = [incident_view(incident) for incident in incidents]
            self._incident = incidents[-1]
        calm = self._calm(connection)
        if not delta and calm == self._told_connection and not anyway:
            return None
        self._told_connection = calm
        return "delta", {"connection": connection, **delta}

    def _mark(self) -> None:
        """Take everything for told."""
        model = self._model
        self._status = model.status
        self._status_view = status_view(model)
        self._tables = {name: _keyed(model, name) for name in TABLES}
        self._heard = model.heard
        self._decision = model.decisions[-1] if model.decisions else None
        self._incident = model.incidents[-1] if model.incidents else None
        self._told_connection = self._calm(self._connection())

    def _calm(self, connection: View) -> View:
        return {key: value for key, value in connection.items() if key not in self.restless}

    def _new_state(self) -> View:
        model = self._model
        points = model.series.columns(_after(self._status.at))
        self._status = model.status
        self._status_view = status_view(model)
        delta: View = {"status": self._status_view}
        if points["at"]:
            delta["series"] = points
        for name, (key, _, _) in TABLES.items():
            rows = _keyed(model, name)
            if changes := _changes(self._tables[name], rows, key):
                delta[name] = changes
            self._tables[name] = rows
        return delta

    def _new_tasks(self) -> View:
        new, self._heard = self._model.heard - self._heard, self._model.heard
        if not new:
            return {}
        found = self._model.tasks(limit=min(new, MAX_TASKS_LOOKED_AT))
        told = _chosen(found, MAX_TASKS_TOLD)
        return {"tasks": {"rows": [task_view(task) for task in reversed(told)], "left_out": new - len(told)}}


def _keyed(model: Model, name: str) -> dict[str, View]:
    key = TABLES[name][0]
    return {row[key]: row for row in table_view(model.status, name)}


def _changes(before: Mapping[str, View], after: Mapping[str, View], key: str) -> View:
    """Return what a browser that has the rows before needs for those after; empty when they are equal."""
    changed: list[View] = []
    for name, row in after.items():
        known = before.get(name)
        if known is None:
            changed.append(row)
        elif known != row:
            differs = {field: value for field, value in row.items() if known[field] != value}
            changed.append({key: name, **differs})
    gone = [name for name in before if name not in after]
    return {"changed": changed, "gone": gone} if changed or gone else {}


def _chosen(tasks: list[TaskRow], limit: int) -> list[TaskRow]:
    """Return at most so many, failures before others, in the order in which they are."""
    if len(tasks) <= limit:
        return tasks
    failures = [place for place, task in enumerate(tasks) if task.failed][:limit]
    others = [place for place, task in enumerate(tasks) if not task.failed][: limit - len(failures)]
    return [tasks[place] for place in sorted(failures + others)]


def _last(items: deque[R], count: int) -> list[R]:
    """Return the newest, the newest first."""
    return [items[-place] for place in range(1, min(count, len(items)) + 1)]


def _since(items: deque[R], last: R | None) -> list[R]:
    """Return what was added behind one (by identity), oldest first, at most `MAX_LISTED`."""
    found: list[R] = []
    for item in reversed(items):
        if item is last or len(found) == MAX_LISTED:
            break
        found.append(item)
    return found[::-1]


def _after(at: float) -> float:
    """Return the first time that is later."""
    return nextafter(at, inf)
