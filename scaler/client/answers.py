"""Answers to the questions of a client: outputs and profiles of tasks, and tables of the rows of the web page."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from scaler.paths import local_path
from scaler.stack_profile import HotFrame, StackProfile

if TYPE_CHECKING:  # processors import this module, but need no rows
    import pandas

    from scaler.monitor import cluster_rows as rows
    from scaler.monitor.data_rows import CallRow
    from scaler.monitor.history_rows import EventRow, FunctionTimesRow, PointRow

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
class HistorySnapshot:
    """The history between two times. since, until, oldest: unix seconds; no data exists before `oldest`.

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
    failures: RowTable[rows.FailureRow]
    functions: RowTable[FunctionTimesRow]


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
class TaskOutput:
    """The output of a task, with control characters escaped. `str` of it is stdout followed by stderr."""

    stdout: str
    stderr: str
    cut_bytes: int = 0
    """Bytes dropped from the middle of a long output."""

    def __str__(self) -> str:
        if not self.stderr:
            return self.stdout
        before = self.stdout if not self.stdout or self.stdout.endswith("\n") else self.stdout + "\n"
        return f"{before}--- stderr ---\n{self.stderr}"


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


@dataclass(frozen=True, slots=True)
class TaskProfile:
    """Samples of the main thread during a task, or all tasks of a function. `of` is empty without samples."""

    name: str
    of: str
    stacks: StackProfile

    @property
    def samples(self) -> int:
        return self.stacks.samples

    @property
    def seconds(self) -> float:
        return self.stacks.total_us / 1e6

    def hottest(self, most: int = _LISTED) -> list[HotFrame]:
        """Return the frames with the longest self time, in microseconds."""
        return self.stacks.hottest(most)

    def save(self, path: str | Path) -> None:
        """Write a https://www.speedscope.app file if the name ends with .json, otherwise collapsed stacks."""
        target = local_path(path)
        is_json = target.suffix == ".json"
        text = json.dumps(self.stacks.speedscope(self.name)) if is_json else self.stacks.collapsed()
        target.write_text(text, encoding="utf-8")

    def __str__(self) -> str:
        return self.stacks.table(self.name, _LISTED)
