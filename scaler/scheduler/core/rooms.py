"""Subscribers to changes, and extensions inside the core, with hooks resolved once. An extension whose hook raises is
switched off. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, ParamSpec, Protocol

from scaler.needs import Needs
from scaler.net.connection import LinkFigures
from scaler.protocol.messages import Inquiry, Unanswered
from scaler.scheduler.core.changes import OF_TASKS, Change, Incident, ScalingDecided, TasksEnded
from scaler.scheduler.core.commands import Command, Publish
from scaler.scheduler.core.durability import Durability
from scaler.scheduler.core.resources import ResourceRules
from scaler.scheduler.core.state import Group, Timing
from scaler.scheduler.core.stores import Stores

P = ParamSpec("P")
UNKNOWN = "no such task: it ended too long ago or was never submitted"
_MAX_TEXT = 500


class Now(NamedTuple):
    """Time of a step. clock: monotonic seconds. unix: Unix seconds."""

    clock: float
    unix: float


class Reader(NamedTuple):
    """The reader of a status. at: Unix seconds. sees: whether the reader may see objects of a key.

    sees_all: whether the reader may see everything. seconds_today: seconds since local midnight. figures: returns the
    figures of a peer's connection. running: number of running tasks by group. storage: a
    `scaler.protocol.monitor_rows.StorageRow`.
    """

    at: float
    sees: Callable[[str], bool]
    sees_all: bool
    seconds_today: float
    figures: Callable[[bytes], LinkFigures]
    running: Mapping[Group, int] = {}
    storage: Any = None


class Additions(NamedTuple):
    """An extension's additions to the cluster's status.

    head: values by key. tables: JSON of whole tables by name. columns: values by table, row id, and column. totals:
    counts by name. ranks: importance of workers by id, for tables without room for all.
    """

    head: Mapping[str, object] = {}
    tables: Mapping[str, str] = {}
    columns: Mapping[str, Mapping[str, Mapping[str, Any]]] = {}
    totals: Mapping[str, int] = {}
    ranks: Mapping[str, int] = {}


class Remembered(Protocol):
    """Ended tasks that an extension remembers."""

    def find(self, task: bytes) -> tuple[TasksEnded, int] | None:
        """Return the batch with the last end of this task, and its index there."""

    def latest(self, limit: int) -> Iterable[tuple[TasksEnded, int]]:
        """Return up to `limit` last ends, oldest first."""


class Explainer:
    """Texts about waiting tasks, which an extension provides. Without it, they are empty."""

    def why(self, _task: bytes, /) -> str:
        """Return why a task waits, where it runs, or how it ended."""
        return ""

    def outlook(self, _needs: Needs, /) -> str:
        """Return what ready tasks with these needs wait for."""
        return ""

    def without_workers(self) -> str:
        """Return why no worker is connected and what starts one, as `TITLE: TEXT`; empty if there are workers."""
        return ""


class Paced:
    """Receives measurements of workers, for the extension `health`. The default ignores them."""

    def measured(self, worker: bytes, timing: Timing, tasks: float, ran_us: float, usual_us: float) -> None:
        """Take the measurements of one batch; see `Timing.refresh`."""

    def failed(self, worker: bytes, timing: Timing, *, has_run: bool) -> None:
        """Count a failed task. has_run: it raised an exception, so its duration is measured."""

    def left(self, worker: bytes) -> None:
        """Forget a worker."""


class Subscriber(Protocol):
    """Receives all changes of its types at the end of each step."""

    @property
    def changes(self) -> Collection[type]: ...
    def on_changes(self, changes: Sequence[Any], now: Now) -> Iterable[Command]: ...


class Publisher:
    """Publishes changes to the shell: for the log, and for monitors if there are any."""

    changes: Collection[type] = (ScalingDecided, Incident)

    def on_changes(self, changes: Sequence[Any], _now: Now) -> Iterable[Command]:
        return [Publish([*changes])]


class Changes:
    """Collects the changes of a step for their subscribers. Changes without subscribers are not built."""

    def __init__(self, subscribers: Iterable[Subscriber]) -> None:
        self.collected: list[tuple[Subscriber, list[Change]]] = [(each, []) for each in subscribers]
        self.taken: dict[Any, tuple[list[Change], ...]] = {}
        self.resolve()

    def resolve(self) -> None:
        self.taken = {}
        for subscriber, collected in self.collected:
            for kind in subscriber.changes:
                self.taken[kind] = (*self.taken.get(kind, ()), collected)

    def add(self, kind: Callable[P, Change], *parts: P.args, **named_parts: P.kwargs) -> None:
        """Build and collect a change, if it has subscribers."""
        if kind in self.taken:
            self.pass_on(kind(*parts, **named_parts))

    def pass_on(self, change: Change) -> None:
        for collected in self.taken.get(type(change), ()):
            collected.append(change)


class Rooms:
    """Scheduler parts of all extensions; see `scaler.extensions.interface.SchedulerPart`."""

    def __init__(
        self,
        parts: Sequence[Any] = (),
        answerers: Mapping[type[Inquiry], Callable[[Any, Any, Any], Any]] | None = None,
    ) -> None:
        """answerers: for questions about the core."""
        self._parts = parts
        self.durability: Durability = next(self._provided("durability"), None) or Durability()
        self._publisher = Publisher()
        self.changes = Changes([self._publisher, *parts, self.durability])
        self.takers: dict[type, list[Callable[[Any, Any, Any], Iterable[Command]]]] = {}
        for part in (*parts, self.durability):
            for kind in part.messages:
                self.takers.setdefault(kind, []).append(part.on_message)
        self.stores: Stores = next(self._provided("stores"), None) or Stores()
        self.answerers = {**(answerers or {}), **{kind: part.on_question for part in parts for kind in part.questions}}

    remembered: tuple[Remembered, ...] = ()
    explainer: Any = Explainer()
    resources: Any = ResourceRules()
    paces: Paced = Paced()
    scaling: Any = None
    """The cluster's `Scaling`, set by the core."""
    unix_at_zero = 0.0
    """Unix seconds at which the monotonic clock was 0."""

    def bind(self, cluster: Any) -> None:
        for part in self._parts:
            part.bound(cluster)
        self.remembered = tuple(self._provided("remembered"))
        self.explainer = next(self._provided("explainer"), self.explainer)
        self.resources = next(self._provided("resources"), self.resources)
        self.paces = next(self._provided("paces"), self.paces)

    def spending(self) -> Any:
        return next(self._provided("spending"), None)

    def _provided(self, hook: str) -> Iterator[Any]:
        """Yield the objects that parts return from a hook."""
        return (found for part in self._parts if (found := getattr(part, hook)()) is not None)

    def add_to_status(self, reader: Reader) -> Additions:
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
        self._publisher.changes = {*Publisher.changes, *(OF_TASKS if is_watched else ())}
        self.changes.resolve()

    def deliver(self, clock: float) -> tuple[list[Command], list[Command]]:
        """Deliver the changes of a step to their subscribers, and run due parts. Returns their commands, and the last
        commands of the step."""
        commands: list[Command] = []
        last: list[Command] = []
        now = Now(clock, self.unix_at_zero + clock)
        for subscriber, collected in self.changes.collected:
            if collected:
                found = subscriber.on_changes(collected.copy(), now)
                collected.clear()
                if subscriber is self.durability:
                    last += found
                else:
                    commands += found
        for part in self._parts:
            if part.next_at <= clock:
                commands += part.on_time(now)
        return commands, last


def switched_off(name: str, hook: str, error: Exception) -> Incident:
    """Return the incident for an extension that was switched off because of an exception."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = f" ({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})" if trace is not None else ""
    text = f"{hook} raised {type(error).__name__}: {error}"[:_MAX_TEXT]
    return Incident("extension", f"the extension {name}", f"{text}{where}", {})


def guard(name: str, part: Any) -> Any:
    """Wrap all hooks of a part so that the first exception switches it off. Returns the part."""
    incidents: list[Incident] = []
    unpublished: list[Incident] = []

    def failed(hook: str, error: Exception) -> None:
        part.next_at = -math.inf  # the next step publishes the incident of a question
        for each in incidents, unpublished:
            each.append(switched_off(name, hook, error))

    def of_commands(hook: str, call: Callable[..., Iterable[Command]]) -> Callable[..., Iterable[Command]]:
        def guarded(*args: Any) -> Iterable[Command]:
            if not incidents:
                try:
                    return [*call(*args)]
                except Exception as error:  # noqa: BLE001 (the cluster continues without the extension)
                    failed(hook, error)
            part.next_at = math.inf
            published = [Publish([*unpublished])] if unpublished else []
            unpublished.clear()
            return published

        return guarded

    def of_values(hook: str, call: Callable[..., Any], otherwise: Callable[[], object]) -> Callable[..., Any]:
        def guarded(*args: Any) -> Any:
            if not incidents:
                try:
                    return call(*args)
                except Exception as error:  # noqa: BLE001 (as above)
                    failed(hook, error)
            return otherwise()

        return guarded

    def refused() -> Unanswered:
        return Unanswered(f"{incidents[0].subject} is switched off: {incidents[0].text}")

    for hook in ("on_changes", "on_message", "on_time"):
        setattr(part, hook, of_commands(hook, getattr(part, hook)))
    part.rows = of_values("rows", part.rows, refused)
    part.on_question = of_values("on_question", part.on_question, refused)
    part.add_to_status = of_values("add_to_status", part.add_to_status, Additions)
    return part
