"""The table of failures."""

from __future__ import annotations

from scaler.extensions.failures.monitor import FailedTasks
from scaler.monitor.cluster_rows import FailureRow
from scaler.monitor.model import MAX_FAILURES, Model
from scaler.monitor.tables import Table, limit


def _groups(model: Model) -> list[FailureRow]:
    return model.part(FailedTasks).groups()


TABLES = (
    Table(
        "failures",
        "Recently failed tasks by function and message",
        FailureRow,
        lambda asking, limit: _groups(asking.model)[:limit],
        (limit(MAX_FAILURES),),
        ("kept", lambda model: sum(each.times for each in _groups(model))),
    ),
)
