"""The state of the cluster at one time, as tables of the rows that the web page and its API show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:  # processors import this module, but need no rows
    import pandas

    from scaler.protocol.call_rows import CallRow
    from scaler.protocol.history_rows import EventRow, FunctionTimesRow, PointRow
    from scaler.protocol.monitor_rows import (
        ClientRow,
        FailureRow,
        FunctionRow,
        ManagerRow,
        SchedulerRow,
        StorageRow,
        TaskRow,
        WaitingRow,
        WorkerRow,
    )

_R = TypeVar("_R", bound=NamedTuple)


class RowTable(tuple[_R, ...]):
    """Rows of one kind: a tuple that converts to pandas."""

    __slots__ = ()

    def to_pandas(self) -> pandas.DataFrame:
        """Return a data frame with one row per item. Raises ImportError if pandas is not installed."""
        import pandas  # noqa: PLC0415 (optional)

        from scaler.monitor.rows import view  # noqa: PLC0415 (see the imports of this module)

        return pandas.DataFrame([view(row) for row in self])


if TYPE_CHECKING:
    TaskTable = RowTable[TaskRow]
    LogTable = RowTable[Any]
else:
    TaskTable = LogTable = RowTable


@dataclass(frozen=True, slots=True)
class HistorySnapshot:
    """The history between two times. since, until, oldest: unix seconds; nothing is kept before `oldest`.

    points: figures per minute, or per several minutes, at most 1,500; gaps are times without a scheduler. events:
    starts and ends of the scheduler, decisions, and incidents, at most 500; left_out: number of omitted events.
    failures: failed tasks by function and text. functions: one row per function.
    """

    since: float
    until: float
    oldest: float
    left_out: int
    points: RowTable[PointRow]
    events: RowTable[EventRow]
    failures: RowTable[FailureRow]
    functions: RowTable[FunctionTimesRow]


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """A cluster at one time. tasks: the most recently reported tasks, newest first.

    waiting: tasks without a worker, by function and needs, with the reason why the oldest of each waits.
    """

    scheduler: SchedulerRow
    storage: StorageRow
    workers: RowTable[WorkerRow]
    managers: RowTable[ManagerRow]
    clients: RowTable[ClientRow]
    functions: RowTable[FunctionRow]
    calls: RowTable[CallRow]
    waiting: RowTable[WaitingRow]
    tasks: TaskTable
