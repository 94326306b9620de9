"""The extensions inside the core: each hook is resolved once, and called only for changes that it takes. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from scaler.scheduler.core.commands import Command


class Now(NamedTuple):
    """The time of a step. clock: seconds by the monotonic clock. unix: unix seconds."""

    clock: float
    unix: float


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
