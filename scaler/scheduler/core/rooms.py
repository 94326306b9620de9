"""The extensions inside the core: each hook is resolved once, and called only for changes that it takes. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from scaler.scheduler.core.commands import Command
    from scaler.scheduler.core.facts import TasksEnded


class Now(NamedTuple):
    """The time of a step. clock: seconds by the monotonic clock. unix: unix seconds."""

    clock: float
    unix: float


class Reader(NamedTuple):
    """Who reads the status of the cluster. at: unix seconds. sees: whether it may know what a key owns.

    sees_all: it may know of everything. seconds_today: since midnight, local time.
    """

    at: float
    sees: Callable[[str], bool]
    sees_all: bool
    seconds_today: float


class Additions(NamedTuple):
    """What an extension adds to the status of the cluster.

    head: values by key. tables: JSON of whole tables by name. columns: values by table, id of the row, and column.
    totals: counts by name. ranks: how much a worker matters, by id, where a table has no room for all.
    """

    head: Mapping[str, object] = {}
    tables: Mapping[str, str] = {}
    columns: Mapping[str, Mapping[str, Mapping[str, Any]]] = {}
    totals: Mapping[str, int] = {}
    ranks: Mapping[str, int] = {}


class Remembered(Protocol):
    """Tasks that ended, which an extension remembers."""

    def find(self, task: bytes) -> tuple[TasksEnded, int] | None:
        """Return the batch with the last end of this task, and its index there."""

    def latest(self, limit: int) -> Iterable[tuple[TasksEnded, int]]:
        """Return the last ends, up to limit, the oldest of them first."""


class Rooms:
    """The scheduler parts of all extensions: see `scaler.extensions.interface.SchedulerPart`."""

    def __init__(self, parts: Sequence[Any] = ()) -> None:
        self._parts = parts
        self._takers: tuple[tuple[frozenset[type], Callable[[list[Any], Now], Iterable[Command]]], ...] = tuple(
            (frozenset(part.changes), part.on_changes) for part in parts if part.changes
        )
        self.wanted = frozenset(kind for kinds, _ in self._takers for kind in kinds)
        self.takers = {kind: part.on_message for part in parts for kind in part.messages}
        self.answerers = {kind: part.on_question for part in parts for kind in part.questions}
        self.next_at = min((part.next_at for part in parts), default=math.inf)

    def bind(self, cluster: Any) -> tuple[Remembered, ...]:
        """Give the parts the `ClusterState` to read, and return what they remember of ended tasks."""
        for part in self._parts:
            part.cluster = cluster
        return tuple(found for part in self._parts if (found := part.remembered()) is not None)

    def add_to_status(self, reader: Reader) -> Additions:
        """Return what all parts add together."""
        head, tables, totals, ranks = dict[str, object](), dict[str, str](), dict[str, int](), dict[str, int]()
        columns: defaultdict[str, defaultdict[str, dict[str, Any]]] = defaultdict(lambda: defaultdict(dict))
        for part in self._parts:
            added = part.add_to_status(reader)
            head |= added.head
            tables |= added.tables
            totals |= added.totals
            ranks |= added.ranks
            for table, rows in added.columns.items():
                for row, values in rows.items():
                    columns[table][row] |= values
        return Additions(head, tables, columns, totals, ranks)

    def on_changes(self, changes: Sequence[Any], now: Now) -> list[Command]:
        commands: list[Command] = []
        for kinds, take in self._takers:
            taken = [change for change in changes if type(change) in kinds]
            if taken:
                commands += take(taken, now)
        self.next_at = min((part.next_at for part in self._parts), default=math.inf)
        return commands

    def on_time(self, now: Now) -> list[Command]:
        commands = [command for part in self._parts if part.next_at <= now.clock for command in part.on_time(now)]
        self.next_at = min((part.next_at for part in self._parts), default=math.inf)
        return commands
