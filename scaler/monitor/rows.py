"""What a monitor is told, as typed rows. Pure.

The documents are JSON of a scheduler that may be older or newer: what is missing or of a wrong type has its default,
and what is unknown is passed over.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, get_type_hints

Document = Mapping[str, Any]
R = TypeVar("R")

RUNNING = "running"
RETRYING = "retrying"
"""An attempt failed, and another one follows."""
DONE = "done"
CANCELLED = "cancelled"
LIVING = (RUNNING, RETRYING)
NO_FAILURE = (*LIVING, DONE, CANCELLED)
"""States of a task that are no failure; all others are names of outcomes."""
MAX_NUMBER = 1e30
"""Larger ones are no figures of a machine."""


@dataclass(frozen=True, slots=True)
class TaskRow:
    """One task as it was last heard of. Times are unix seconds; ended_at is None while it runs."""

    id: str
    state: str = RUNNING
    function: str = ""
    client: str = ""
    worker: str = ""
    attempt: int = 0
    ended_at: float | None = None
    duration_us: int = 0
    cpu_us: int = 0
    peak_bytes: int = 0
    text: str = ""
    """Of a failure: what it was, on one line."""
    traceback: str = ""
    told_at: float = 0.0

    @property
    def started_at(self) -> float:
        """When it began, in unix seconds."""
        return (self.told_at if self.ended_at is None else self.ended_at) - self.duration_us / 1e6

    @property
    def failed(self) -> bool:
        return self.state not in NO_FAILURE


@dataclass(frozen=True, slots=True)
class ProcessorRow:
    """A processor of a worker. running is a task's id, empty when it has none."""

    pid: int = 0
    cpu_percent: float = 0.0
    rss_bytes: int = 0
    initialized: bool = False
    suspended: bool = False
    running: str = ""
    running_seconds: float = 0.0
    function: str = ""


@dataclass(frozen=True, slots=True)
class WorkerRow:
    id: str = ""
    name: str = ""
    manager: str = ""
    unit: str = ""
    capabilities: str = ""
    slots: int = 0
    assigned: int = 0
    suspended: int = 0
    free: int = 0
    sent: int = 0
    queued: int = 0
    draining: bool = False
    quarantined: bool = False
    connected: bool = True
    agent_cpu_percent: float = 0.0
    agent_rss_bytes: int = 0
    latency_seconds: float = 0.0
    processors: tuple[ProcessorRow, ...] = ()

    @property
    def cpu_percent(self) -> float:
        """Of all its processors."""
        return sum(processor.cpu_percent for processor in self.processors)

    @property
    def rss_bytes(self) -> int:
        """Of all its processors; pages that they share are counted for each."""
        return sum(processor.rss_bytes for processor in self.processors)


@dataclass(frozen=True, slots=True)
class ManagerRow:
    """A worker manager. desired is None until the scheduler has told it something."""

    id: str = ""
    kind: str = ""
    desired: int | None = None
    running: int = 0
    pending: int = 0
    failed: int = 0
    units: int = 0
    unit_slots: int = 0
    max_slots: int = 0
    capabilities: str = ""
    trouble: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ClientRow:
    id: str = ""
    name: str = ""
    tasks: int = 0
    queued: int = 0
    running: int = 0
    ended: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class FunctionRow:
    """Tasks of one function. seconds_total is the time that its ended tasks took."""

    name: str = ""
    queued: int = 0
    running: int = 0
    ended: int = 0
    failed: int = 0
    seconds_total: float = 0.0

    @property
    def mean_seconds(self) -> float:
        """Time of one task; 0 until one has ended."""
        return self.seconds_total / self.ended if self.ended else 0.0


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision of the scaling policy about one manager."""

    at: float = 0.0
    manager: str = ""
    units: int = 0
    draining: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Incident:
    """Something that people may want to know: a peer came or went, a task was retried, a worker got quarantined."""

    at: float = 0.0
    kind: str = ""
    subject: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class SchedulerRow:
    cpu_percent: float = 0.0
    rss_bytes: int = 0
    uptime_seconds: float = 0.0
    step_seconds_max: float = 0.0


@dataclass(frozen=True, slots=True)
class StorageRow:
    address: str = ""
    objects: int = 0
    bytes: int = 0
    limit_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Counts:
    """Tasks by what they are doing now, and by how they have ended since the scheduler's start."""

    waiting: int = 0
    ready: int = 0
    assigned: int = 0
    running: int = 0
    suspended: int = 0
    ended: Mapping[str, int] = field(default_factory=dict)

    @property
    def queued(self) -> int:
        """Tasks that could run or will, and do not yet."""
        return self.waiting + self.ready + max(0, self.assigned - self.running)

    @property
    def all_ended(self) -> int:
        return sum(self.ended.values())

    @property
    def failed(self) -> int:
        return sum(count for state, count in self.ended.items() if state not in NO_FAILURE)


@dataclass(frozen=True, slots=True)
class Totals:
    workers: int = 0
    slots: int = 0
    draining: int = 0
    disconnected: int = 0
    clients: int = 0
    managers: int = 0
    functions: int = 0


@dataclass(frozen=True, slots=True)
class Status:
    """The whole state at one time. Lists may hold fewer rows than there are: `totals` says how many there are."""

    at: float = 0.0
    incarnation: int = 0
    scheduler: SchedulerRow = field(default_factory=SchedulerRow)
    storage: StorageRow = field(default_factory=StorageRow)
    tasks: Counts = field(default_factory=Counts)
    totals: Totals = field(default_factory=Totals)
    sent: Mapping[str, int] = field(default_factory=dict)
    received: Mapping[str, int] = field(default_factory=dict)
    workers: tuple[WorkerRow, ...] = ()
    clients: tuple[ClientRow, ...] = ()
    managers: tuple[ManagerRow, ...] = ()
    functions: tuple[FunctionRow, ...] = ()


def status_of(document: Document) -> Status:
    """Return a MonitorStatus document as rows."""
    messages, incarnation = _mapping(document.get("messages")), document.get("incarnation")
    return Status(
        at=_number(document.get("at")),
        incarnation=incarnation if isinstance(incarnation, int) else 0,
        scheduler=row(SchedulerRow, document.get("scheduler")),
        storage=row(StorageRow, document.get("storage")),
        tasks=row(Counts, document.get("tasks")),
        totals=row(Totals, document.get("totals")),
        sent=_counts(messages.get("sent")),
        received=_counts(messages.get("received")),
        workers=tuple(_worker(each) for each in _list(document.get("workers"))),
        clients=rows(ClientRow, document.get("clients")),
        managers=rows(ManagerRow, document.get("managers")),
        functions=rows(FunctionRow, document.get("functions")),
    )


def row(kind: type[R], values: object) -> R:
    """Return one row of a dataclass from a JSON object: what does not fit has its default."""
    hints = _HINTS[kind]
    known = {
        key: taken
        for key, value in _mapping(values).items()
        if key in hints and (taken := _taken(value, hints[key])) is not None
    }
    return kind(**known)


def rows(kind: type[R], values: object) -> tuple[R, ...]:
    return tuple(row(kind, each) for each in _list(values))


def _worker(values: object) -> WorkerRow:
    known = _mapping(values)
    return dataclasses.replace(row(WorkerRow, known), processors=rows(ProcessorRow, known.get("processors")))


def _taken(value: object, hint: object) -> object | None:
    """Return a value as its field wants it; None when it does not fit."""
    if hint is bool:
        return value if isinstance(value, bool) else None
    if isinstance(value, bool):
        return None
    if hint is int or hint == int | None:
        return value if isinstance(value, int) else None
    if hint is float or hint == float | None:
        return _finite(value)
    if hint is str:
        return value if isinstance(value, str) else None
    if hint == Mapping[str, int]:
        return _counts(value)
    return None


def _mapping(value: object) -> Document:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _counts(value: object) -> dict[str, int]:
    return {
        key: count for key, count in _mapping(value).items() if isinstance(count, int) and not isinstance(count, bool)
    }


def _number(value: object) -> float:
    return (_finite(value) or 0.0) if not isinstance(value, bool) else 0.0


def _finite(value: object) -> float | None:
    """Return a number, which no NaN is: JSON has none, and neither has it what sums of too large ones would be."""
    return float(value) if isinstance(value, int | float) and -MAX_NUMBER < value < MAX_NUMBER else None


_HINTS: Mapping[Any, Mapping[str, object]] = {
    kind: get_type_hints(kind)
    for kind in (
        TaskRow,
        ProcessorRow,
        WorkerRow,
        ManagerRow,
        ClientRow,
        FunctionRow,
        Decision,
        Incident,
        SchedulerRow,
        StorageRow,
        Counts,
        Totals,
    )
}
"""Types of the fields of every kind of row."""
