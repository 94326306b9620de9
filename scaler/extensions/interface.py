"""The parts of an extension in the scheduler. Built-in and installed extensions use this interface and nothing else.
The part in monitors is `scaler.monitor.model.MonitorPart`, which schedulers need not load.

An extension is a folder that nothing outside imports. `scaler.plugins.EXTENSIONS` names the built-in ones, an entry
point in the group `scaler.extensions` an installed one; both lead to a `scaler.plugins.Extension`, whose parts are
references that each process loads where it uses them.

    step of the scheduler core -> changes -> on_changes -> commands -> AddRows: monitors
                                                                    -> Perform: the extension's performer
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

from scaler.protocol.messages import Inquiry, Message, Reply
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.commands import Command, Perform
from scaler.scheduler.core.rooms import Additions, Now, Reader, Remembered
from scaler.scheduler.core.spending import Spending
from scaler.scheduler.core.state import ClientRecord, PeerRecord


class SchedulerPart:
    """The part of an extension inside the scheduler core. Pure: no sockets, clock, randomness, logging, or await.

    Its hooks run at the end of a step. State that the extension needs is in the part, by the ids of tasks and peers.
    """

    changes: ClassVar[tuple[type, ...]] = ()
    """Kinds of changes that `on_changes` takes. The scheduler makes no change that nobody takes."""
    messages: ClassVar[tuple[type[Message], ...]] = ()
    """Kinds of messages that `on_message` takes."""
    questions: ClassVar[tuple[type[Inquiry], ...]] = ()
    """Kinds of questions that `on_question` answers."""
    next_at: float = math.inf
    """When `on_time` is due, by the monotonic clock (seconds)."""
    cluster: ClusterState
    """What the scheduler knows, to read. Set before the first step."""

    def on_changes(self, changes: Sequence[Any], now: Now) -> Iterable[Command]:
        """Take in the changes of one step, in order, and return commands."""
        raise NotImplementedError

    def on_message(self, peer: PeerRecord, message: Any, state: ClusterState) -> Iterable[Command]:
        """Take in a message of a peer that the protocol lets send it, and return commands. state: to read."""
        raise NotImplementedError

    def on_question(self, question: Any, client: ClientRecord, state: ClusterState) -> Reply | Perform:
        """Return the answer, or the question for the performer. Neither has anything that the client may not see."""
        raise NotImplementedError

    def rows(
        self, table: str, search: str, most: int, client: ClientRecord, state: ClusterState
    ) -> Iterable[NamedTuple]:
        """Return the newest rows of a `FoundTable`, with nothing that the client may not see. state: to read."""
        raise NotImplementedError

    def on_time(self, now: Now) -> Iterable[Command]:
        """Called once `next_at` has come. Sets it anew."""
        raise NotImplementedError

    def bound(self, cluster: ClusterState) -> None:
        """Called once, before the first step."""
        self.cluster = cluster

    def spending(self) -> Spending | None:
        """Return what limits the units that cost money. The scheduler asks the first extension that has such a part."""
        return None

    def remembered(self) -> Remembered | None:
        """Return the tasks that ended and that this extension remembers."""
        return None

    def add_to_status(self, _reader: Reader) -> Additions:
        """Return what the status has of this extension, and the reader may see. Called for each status that is made."""
        return Additions()


class Performer:
    """The part of an extension that does what its scheduler part may not: it has files, sockets, and threads."""

    def perform(self, work: Any) -> None:
        """Do what the scheduler part returned in a `Perform`. Never waits and never fails."""
        raise NotImplementedError

    def answer(self, work: Any, send: Callable[[Reply], None]) -> None:
        """Have the answer to a question sent, now or later: `on_question` returned a `Perform`. Never waits."""
        raise NotImplementedError

    def close(self) -> None:
        """Called once, when the scheduler ends, before its files are closed."""
