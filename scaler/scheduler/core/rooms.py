"""Subscribers to changes, and the core's extensions. Looks up the extensions' hooks once. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, ParamSpec, Protocol

from scaler.needs import Needs
from scaler.protocol.messages import Inquiry
from scaler.scheduler.core.changes import OF_TASKS, Change, Incident, ScalingDecided, TasksEnded
from scaler.scheduler.core.commands import Command, Publish
from scaler.scheduler.core.durability import Durability
from scaler.scheduler.core.placing import Environments, GangRules, Nearness
from scaler.scheduler.core.resources import ResourceRules
from scaler.scheduler.core.state import Timing
from scaler.scheduler.core.stores import Stores

P = ParamSpec("P")
UNKNOWN = "no such task: it ended too long ago or was never submitted"


class Now(NamedTuple):
    """Time of a step. clock: monotonic seconds. unix: Unix seconds."""

    clock: float
    unix: float


class Timed:
    next_at: float = math.inf
    """Monotonic time (seconds) of the next `on_time` call. Infinite: never."""

    def on_time(self, now: Now) -> Iterable[Command]:
        """Called when `next_at` is reached. Must set `next_at` to a later time. Returns commands."""
        raise NotImplementedError


class Remembered(Protocol):
    """Ended tasks, retained by an extension."""

    def find(self, task: bytes) -> tuple[TasksEnded, int] | None:
        """Return the batch in which this task last ended, and the task's index in the batch."""

    def latest(self, limit: int) -> Iterable[tuple[TasksEnded, int]]:
        """Return the last tasks that ended, at most `limit`, oldest first."""


class Explainer:
    """Texts about waiting tasks, provided by an extension. Empty without the extension."""

    def why(self, _task: bytes, /) -> str:
        """Return why a task waits, where it runs, or how it ended."""
        return ""

    def outlook(self, _needs: Needs, /) -> str:
        """Return what ready tasks with these needs wait for."""
        return ""

    def without_workers(self) -> str:
        """Return why no worker is connected and how to start one, as `TITLE: TEXT`; empty if there are workers."""
        return ""


class Paced:
    """Receives worker measurements for the `health` extension. The default ignores them."""

    def measured(self, worker: bytes, timing: Timing, tasks: float, ran_us: float, usual_us: float) -> None:
        """Process the measurements of one batch; see `Timing.refresh`."""

    def failed(self, worker: bytes, timing: Timing, *, has_run: bool) -> None:
        """Count a failed task. has_run: whether the task raised an exception, and its duration was measured."""

    def left(self, worker: bytes) -> None:
        """Forget a worker."""


class Publisher:
    """Publishes changes to the shell, for the log and for any monitors."""

    changes: Collection[type] = (ScalingDecided, Incident)

    def on_changes(self, changes: Sequence[Any], _now: Now) -> Iterable[Command]:
        return [Publish([*changes])]


class Changes:
    """Collects the changes of a step for their subscribers; see `SchedulerPart.changes` and `on_changes`. Changes
    without subscribers are not built."""

    def __init__(self, subscribers: Sequence[Any]) -> None:
        self._subscribers = subscribers
        self.collected: list[Change] = []
        self.taken: dict[Any, list[Any]] = {}
        self.resolve()

    def resolve(self) -> None:
        self.taken = {}
        for subscriber in self._subscribers:
            for kind in subscriber.changes:
                self.taken.setdefault(kind, []).append(subscriber)

    def add(self, kind: Callable[P, Change], *parts: P.args, **named_parts: P.kwargs) -> None:
        """Build and record a change, if it has subscribers."""
        if kind in self.taken:
            self.collected.append(kind(*parts, **named_parts))

    def pass_on(self, change: Change) -> None:
        if type(change) in self.taken:
            self.collected.append(change)


class Rooms:
    """Scheduler parts of all extensions; see `scaler.extensions.interface.SchedulerPart`."""

    def __init__(
        self,
        parts: Sequence[Any] = (),
        answerers: Mapping[type[Inquiry], Callable[[Any, Any, Any], Any]] | None = None,
        failed: list[Incident] | None = None,
    ) -> None:
        """answerers: objects that answer queries about the core. failed: incidents to publish in the next step."""
        self.parts = parts
        self.durability: Durability = next(self._provided("durability"), None) or Durability()
        self._failed: list[Incident] = [] if failed is None else failed
        self._publisher = Publisher()
        self.changes = Changes([self._publisher, *parts, self.durability])
        self._timed = [part for part in parts if type(part).on_time is not Timed.on_time]
        self.takers: dict[type, list[Callable[[Any, Any, Any], Iterable[Command]]]] = {}
        for part in (*parts, self.durability):
            for kind in part.messages:
                self.takers.setdefault(kind, []).append(part.on_message)
        self.stores: Stores = next(self._provided("stores"), None) or Stores()
        self.answerers = {**(answerers or {}), **{kind: part.on_question for part in parts for kind in part.questions}}

    remembered: tuple[Remembered, ...] = ()
    explainer: Any = Explainer()
    resources: Any = ResourceRules()
    near: Nearness = Nearness()
    environments: Environments = Environments()
    gangs: Any = GangRules()
    paces: Paced = Paced()
    spending: Any = None
    scaling: Any = None
    """The cluster's `Scaling`, set by the core."""
    unix_at_zero = 0.0
    """Unix seconds at which the monotonic clock was 0."""

    def bind(self, cluster: Any) -> None:
        for part in self.parts:
            part.bound(cluster)
        self.remembered = tuple(self._provided("remembered"))
        for hook in ("explainer", "resources", "gangs", "paces", "near", "environments", "spending"):
            setattr(self, hook, next(self._provided(hook), getattr(self, hook)))

    def _provided(self, hook: str) -> Iterator[Any]:
        """Yield the objects that the parts return from a hook."""
        return (found for part in self.parts if (found := getattr(part, hook)()) is not None)

    def watch(self, is_watched: bool) -> None:
        self._publisher.changes = {*Publisher.changes, *(OF_TASKS if is_watched else ())}
        self.changes.resolve()

    def deliver(self, clock: float) -> tuple[list[Command], list[Command]]:
        """Deliver the changes of a step to their subscribers, and run parts that are due. Returns their commands, and
        the last commands of the step."""
        commands: list[Command] = []
        last: list[Command] = []
        now = Now(clock, self.unix_at_zero + clock)
        collected, self.changes.collected = self.changes.collected, []
        by_subscriber: defaultdict[Any, list[Change]] = defaultdict(list)
        for change in collected:
            for subscriber in self.changes.taken.get(type(change), ()):
                by_subscriber[subscriber].append(change)
        for subscriber, changes in by_subscriber.items():
            try:
                found = [*subscriber.on_changes(changes, now)]
                if subscriber is self.durability:
                    last += found
                else:
                    commands += found
            except Exception as error:
                if (switch_off := getattr(subscriber, "switch_off", None)) is None:
                    raise
                switch_off("on_changes", error)
        for part in self._timed:
            if part.next_at <= clock:
                commands += part.on_time(now)
        if self._failed:
            commands.append(Publish([*self._failed]))
            self._failed.clear()
        return commands, last
