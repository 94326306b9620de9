"""Answers to the questions of a client: outputs and profiles of tasks, and tables of the rows of the web page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:  # processors import this module, but need no rows
    import pandas

    from scaler.monitor import cluster_rows as rows
    from scaler.monitor.data_rows import CallRow

_R = TypeVar("_R", bound=NamedTuple)
_LISTED = 20


class RowTable(tuple[_R, ...]):
    """Rows of one kind: a tuple that converts to pandas."""

    __slots__ = ()

    def to_pandas(self) -> pandas.DataFrame:
        """Return a data frame with one row per item. Raises ImportError if pandas is not installed."""
        import pandas  # noqa: PLC0415 (optional)

        from scaler.monitor.rows import view  # noqa: PLC0415 (see the imports of this module)

        return pandas.DataFrame([view(row) for row in self])


if TYPE_CHECKING:
    TaskTable = RowTable[rows.TaskRow]
    LogTable = RowTable[Any]
else:
    TaskTable = LogTable = RowTable


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """A cluster at one time. tasks: the most recently reported tasks, newest first.

    waiting: tasks without a worker, by function and needs, with the reason why the oldest task of each is waiting.
    """

    scheduler: rows.SchedulerRow
    storage: rows.StorageRow
    workers: RowTable[rows.WorkerRow]
    managers: RowTable[rows.ManagerRow]
    clients: RowTable[rows.ClientRow]
    functions: RowTable[rows.FunctionRow]
    calls: RowTable[CallRow]
    waiting: RowTable[rows.WaitingRow]
    tasks: TaskTable


@dataclass(frozen=True, slots=True)
class Holder:
    """A host that stores a value, or `object storage`. size_bytes: size of the value; 0 if unknown."""

    host: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class LargeObject:
    """A large object. function, task_id: the task that created it; empty if a client sent the object.

    client: name of its client, or id of a disconnected client. hosts: hosts that store the object, or `object storage`.
    """

    id: str
    size_bytes: int
    function: str
    task_id: str
    client: str
    hosts: tuple[str, ...]
