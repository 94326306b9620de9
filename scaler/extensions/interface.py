"""The parts of an extension. Built-in and installed extensions use this interface and nothing else.

An extension is a folder that nothing outside imports. `scaler.plugins.EXTENSIONS` names the built-in ones, an entry
point in the group `scaler.extensions` an installed one; both lead to a `scaler.plugins.Extension`, whose parts are
references that each process loads where it uses them.

    step of the scheduler core -> changes -> on_changes -> commands -> AddRows: monitors
                                                                    -> Perform: the extension's performer
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from scaler.protocol.messages import Inquiry, Message, Reply
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.commands import Command
from scaler.scheduler.core.rooms import Now
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

    def on_changes(self, changes: Sequence[Any], now: Now) -> Iterable[Command]:
        """Take in the changes of one step, in order, and return commands."""
        raise NotImplementedError

    def on_message(self, peer: PeerRecord, message: Any, state: ClusterState) -> Iterable[Command]:
        """Take in a message of a peer that the protocol lets send it, and return commands. state: to read."""
        raise NotImplementedError

    def on_question(self, question: Any, client: ClientRecord, state: ClusterState) -> Reply:
        """Return the answer, with nothing that the client may not see. state: to read."""
        raise NotImplementedError

    def on_time(self, now: Now) -> Iterable[Command]:
        """Called once `next_at` has come. Sets it anew."""
        raise NotImplementedError


class Performer:
    """The part of an extension that does what its scheduler part may not: it has files, sockets, and threads."""

    def perform(self, work: Any) -> None:
        """Do what the scheduler part returned in a `Perform`. Never waits and never fails."""
        raise NotImplementedError

    def close(self) -> None:
        """Called once, when the scheduler ends, before its files are closed."""
