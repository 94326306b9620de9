"""The cluster at one time, as users read it: tables of the rows that the page and its API show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:  # processors import this module, and no rows
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
    """Rows of one kind: a tuple, which pandas can take."""

    __slots__ = ()

    def to_pandas(self) -> pandas.DataFrame:
        """Return a data frame with a row for each. Raises ImportError where pandas is not installed."""
        import pandas  # noqa: PLC0415 (users need not have it)

        from scaler.monitor.rows import view  # noqa: PLC0415 (see the head of this module)

        return pandas.DataFrame([view(row) for row in self])


if TYPE_CHECKING:
    TaskTable = RowTable[TaskRow]
    LogTable = RowTable[Any]
else:
    TaskTable = LogTable = RowTable


@dataclass(frozen=True, slots=True)
class HistorySnapshot:
    """What is known of a time. since, until, oldest: unix seconds; before `oldest` nothing is kept.

    points: figures of each minute, or of several, at most 1,500; between two of them may be a time without a scheduler.
    events: starts and ends of the scheduler, decisions and incidents, at most 500, with left_out further ones.
    failures: failed tasks by function and text. functions: one row each.
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
    """A cluster at one time. tasks: those that were reported last, the newest first.

    waiting: the tasks that no worker has yet, by function and needs, and why the oldest of each waits.
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
