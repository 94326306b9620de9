"""The subscribers to changes, and the extensions inside the core: each hook is resolved once. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, ParamSpec, Protocol

from scaler.net.connection import LinkFigures
from scaler.protocol.messages import Inquiry
from scaler.scheduler.core.changes import OF_TASKS, Change, Incident, TasksEnded
from scaler.scheduler.core.commands import Command, Publish
from scaler.scheduler.core.spending import Spending
from scaler.scheduler.core.state import Group, ScalingDecided

P = ParamSpec("P")


class Now(NamedTuple):
    """The time of a step. clock: seconds by the monotonic clock. unix: unix seconds."""

    clock: float
    unix: float


class Reader(NamedTuple):
    """Who reads the status of the cluster. at: unix seconds. sees: whether it may know what a key owns.

    sees_all: it may know of everything. seconds_today: since midnight, local time. figures: returns those of a peer's
    connection. running: how many tasks of each group run.
    """

    at: float
    sees: Callable[[str], bool]
    sees_all: bool
    seconds_today: float
    figures: Callable[[bytes], LinkFigures]
    running: Mapping[Group, int] = {}


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


class Subscriber(Protocol):
    """Takes kinds of changes, all of a step together at its end."""

    @property
    def changes(self) -> Collection[type]: ...
    def on_changes(self, changes: Sequence[Any], now: Now) -> Iterable[Command]: ...


class Publisher:
    """Passes changes to the shell: for the log, and for monitors while there are any."""

    changes: Collection[type] = (ScalingDecided, Incident)

    def on_changes(self, changes: Sequence[Any], _now: Now) -> Iterable[Command]:
        return [Publish([*changes])]


class Changes:
    """Collects the changes of a step for the subscribers that take them. A kind without subscribers is not built."""

    def __init__(self, subscribers: Iterable[Subscriber]) -> None:
        self.collected: list[tuple[Subscriber, list[Change]]] = [(each, []) for each in subscribers]
        self.taken: dict[Any, tuple[list[Change], ...]] = {}
        """Of each kind that a subscriber takes, where its changes are collected."""
        self.resolve()

    def resolve(self) -> None:
        """Read which kinds the subscribers take from now on."""
        self.taken = {}
        for subscriber, collected in self.collected:
            for kind in subscriber.changes:
                self.taken[kind] = (*self.taken.get(kind, ()), collected)

    def add(self, kind: Callable[P, Change], *parts: P.args, **named_parts: P.kwargs) -> None:
        """Build a change of this kind, if a subscriber takes it."""
        if kind in self.taken:
            self.pass_on(kind(*parts, **named_parts))

    def pass_on(self, change: Change) -> None:
        for collected in self.taken.get(type(change), ()):
            collected.append(change)


class Rooms:
    """The scheduler parts of all extensions: see `scaler.extensions.interface.SchedulerPart`."""

    def __init__(
        self,
        parts: Sequence[Any] = (),
        subscribers: Sequence[Subscriber] = (),
        answerers: Mapping[type[Inquiry], Callable[[Any, Any, Any], Any]] | None = None,
    ) -> None:
        """subscribers: take changes only; their commands come last. answerers: of questions about the core."""
        self._parts = parts
        self._subscribers = subscribers
        self._publisher = Publisher()
        self.changes = Changes([self._publisher, *parts, *subscribers])
        self.takers = {kind: part.on_message for part in parts for kind in part.messages}
        self.answerers = {**(answerers or {}), **{kind: part.on_question for part in parts for kind in part.questions}}

    def bind(self, cluster: Any) -> None:
        """Give the parts the `ClusterState`, to read."""
        for part in self._parts:
            part.bound(cluster)

    def remembered(self) -> tuple[Remembered, ...]:
        """Return what the parts remember of ended tasks."""
        return tuple(found for part in self._parts if (found := part.remembered()) is not None)

    def spending(self) -> Spending:
        """Return the first part that knows what units cost."""
        return next((found for part in self._parts if (found := part.spending()) is not None), Spending())

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

    def watch(self, is_watched: bool) -> None:
        """Note whether there are monitors, which take changes of single tasks."""
        self._publisher.changes = {*Publisher.changes, *(OF_TASKS if is_watched else ())}
        self.changes.resolve()

    def deliver(self, clock: float, unix_at_zero: float) -> list[Command]:
        """Hand the changes of a step to their subscribers, and let time pass for extensions."""
        commands: list[Command] = []
        last: list[Command] = []
        now = Now(clock, unix_at_zero + clock)
        for subscriber, collected in self.changes.collected:
            if collected:
                found = subscriber.on_changes(collected.copy(), now)
                collected.clear()
                if subscriber in self._subscribers:
                    last += found
                else:
                    commands += found
        for part in self._parts:
            if part.next_at <= clock:
                commands += part.on_time(now)
        return commands + last if last else commands
