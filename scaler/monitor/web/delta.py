"""Encodes the model for browsers as a snapshot followed by deltas. Pure.

Invariant: applying a snapshot and all later deltas yields the rows of a new snapshot."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf, nextafter
from typing import Literal

from scaler.monitor.cluster_rows import ConnectionRow
from scaler.monitor.model import Model
from scaler.monitor.rows import KEYS, View, view
from scaler.monitor.tables import task_view
from scaler.monitor.web.routes import status_view

MAX_TASKS_SENT = 100
"""Maximum task rows in one delta: failures first, then the newest tasks."""
MAX_TASKS_READ = 2000
"""Maximum number of newest tasks that are considered for one delta."""

Update = tuple[Literal["snapshot", "delta"], View]


class DeltaEncoder:
    """Encodes updates that all browsers share."""

    def __init__(self, model: Model, connection: Callable[[], ConnectionRow], task_rows: int) -> None:
        """connection: returns the state of the connection to the scheduler. task_rows: latest tasks in a snapshot."""
        self._model = model
        self._connection = connection
        self._task_rows = task_rows
        self._mark()

    def snapshot(self) -> View:
        """Return the full state. The next delta starts here."""
        model = self._model
        self._mark()
        return {
            "connection": view(self._connection()),
            "status": status_view(model),
            **{name: list(rows.values()) for name, rows in self._tables.items()},
            "tasks": [task_view(task) for task in model.tasks(limit=self._task_rows)],
            "series": model.series.columns(),
        }

    def update(self) -> Update:
        """Return the connection, and the changes since the last call. After a change of scheduler, the first update is
        a snapshot."""
        model = self._model
        if model.status.incarnation != self._status.incarnation:
            return "snapshot", self.snapshot()
        delta: View = {"connection": view(self._connection())}
        if model.status is not self._status:
            delta |= self._changed_state()
        delta |= self._new_tasks()
        return "delta", delta

    def _mark(self) -> None:
        model = self._model
        self._status = model.status
        self._tables = {name: _keyed(model, name) for name in KEYS}
        self._updates = model.updates

    def _changed_state(self) -> View:
        model = self._model
        points = model.series.columns(nextafter(self._status.at, inf))
        self._status = model.status
        delta: View = {"status": status_view(model)}
        if points["at"]:
            delta["series"] = points
        for name, key in KEYS.items():
            rows = _keyed(model, name)
            if changes := _changes(self._tables[name], rows, key):
                delta[name] = changes
            self._tables[name] = rows
        return delta

    def _new_tasks(self) -> View:
        new, self._updates = self._model.updates - self._updates, self._model.updates
        if not new:
            return {}
        found = self._model.tasks(limit=min(new, MAX_TASKS_READ))
        chosen = sorted(range(len(found)), key=lambda index: not found[index].failed)[:MAX_TASKS_SENT]
        rows = [task_view(found[index]) for index in sorted(chosen, reverse=True)]
        return {"tasks": {"rows": rows, "left_out": new - len(rows)}}


def _keyed(model: Model, name: str) -> dict[str, View]:
    views = map(view, getattr(model.status, name))
    return {row[KEYS[name]]: row for row in views}


def _changes(before: Mapping[str, View], after: Mapping[str, View], key: str) -> View:
    """Return the difference between two sets of rows. Empty if they are equal."""
    changed: list[View] = []
    for name, row in after.items():
        known = before.get(name)
        if known is None:
            changed.append(row)
        elif known != row:
            differing = {field: value for field, value in row.items() if known[field] != value}
            changed.append({key: name, **differing})
    gone = [name for name in before if name not in after]
    return {"changed": changed, "gone": gone} if changed or gone else {}
