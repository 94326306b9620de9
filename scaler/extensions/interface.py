"""Interface of an extension inside the scheduler, for built-in and installed extensions.

A `scaler.plugins.Extension` declares an extension's parts as references, which each process loads on first use.
`scaler.plugins.EXTENSIONS` lists the built-in extensions. Installed extensions register an entry point in the group
`scaler.extensions`. The part for monitors is `scaler.monitor.model.MonitorPart`, which schedulers need not load.

    scheduler core step -> changes -> on_changes -> Perform -> the extension's performer
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

from scaler.protocol.messages import Inquiry, Message, Reply
from scaler.scheduler.additions import Additions, Reader
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.commands import Command, Perform, Send
from scaler.scheduler.core.durability import Durability
from scaler.scheduler.core.placing import Environments, GangRules, Nearness
from scaler.scheduler.core.resources import ResourceRules
from scaler.scheduler.core.rooms import Explainer, Now, Paced, Remembered, Timed
from scaler.scheduler.core.state import ClientRecord, PeerRecord
from scaler.scheduler.core.stores import Stores


class SchedulerPart(Timed):
    """The part of an extension inside the scheduler core. Pure: no sockets, clock, randomness, logging, or await.

    Implement `on_changes`, `on_message`, and `on_question` if the class names `changes`, `messages`, and `questions`.
    The scheduler calls all hooks in its own thread, `on_changes` and `on_time` at the end of a step. Keep state in the
    part, bounded, and keyed by ids of tasks and peers. Arguments are read-only. The first exception in a hook disables
    the extension until the scheduler restarts."""

    changes: ClassVar[tuple[type, ...]] = ()
    """Change types that `on_changes` receives. The scheduler builds only changes that a part subscribes to."""
    messages: ClassVar[tuple[type[Message], ...]] = ()
    """Message types that `on_message` receives."""
    questions: ClassVar[tuple[type[Inquiry], ...]] = ()
    """Question types that `on_question` answers."""
    cluster: ClusterState
    """The scheduler's state, read-only. Set before the first step."""
    switch_off: Callable[[str, Exception], object]
    """Set by the scheduler, which calls this function with a hook's name and exception."""

    def on_changes(self, changes: Sequence[Any], now: Now) -> Iterable[Command]:
        """Process the changes of one step, in order, and return commands."""
        raise NotImplementedError

    def on_message(self, peer: PeerRecord, message: Any, state: ClusterState) -> Iterable[Command]:
        """Process a message and return commands. peer: the sender, whose role permits this message."""
        raise NotImplementedError

    def on_question(self, question: Any, client: ClientRecord, state: ClusterState) -> Reply | Perform:
        """Return the answer, or a `Perform` that makes `Performer.answer` send it. Include only data that the client
        may see."""
        raise NotImplementedError

    def rows(
        self, table: str, search: str, most: int, client: ClientRecord, state: ClusterState
    ) -> Iterable[NamedTuple]:
        """Return at most `most` of the newest rows of a `FoundTable` that match search and that the client may see."""
        raise NotImplementedError

    def bound(self, cluster: ClusterState) -> None:
        """Called once, before the first step. Sets `cluster`."""
        self.cluster = cluster

    def stores(self) -> Stores | None:
        """Return a locator of stored objects, or None. The core uses the first one returned by an extension, and calls
        it directly, so its exceptions end the scheduler."""
        return None

    def spending(self) -> Any:
        """Return a `scaler.extensions.scaling.units.Spending`, which limits paid units, or None. The first object
        returned by an extension is used."""
        return None

    def remembered(self) -> Remembered | None:
        """Return the ended tasks that this extension remembers, or None."""
        return None

    def explainer(self) -> Explainer | None:
        """Return a source of texts on waiting tasks, or None. The first object returned by an extension is used."""
        return None

    def paces(self) -> Paced | None:
        """Return a receiver of worker measurements, or None. The first object returned by an extension is used."""
        return None

    def resources(self) -> ResourceRules | None:
        """Return the rules for counted resources, or None. The first object returned by an extension is used."""
        return None

    def near(self) -> Nearness | None:
        """Return the placement of tasks with the option `near`, or None. See `stores`."""
        return None

    def environments(self) -> Environments | None:
        """Return the record of workers that are preparing environments, or None. See `stores`."""
        return None

    def gangs(self) -> GangRules | None:
        """Return the placement of gangs, or None. See `resources`."""
        return None

    def durability(self) -> Durability | None:
        """Return the recovery of a restarted scheduler, or None. See `stores`."""
        return None

    def add_to_status(self, _reader: Reader) -> Additions:
        """Return additions to a status, limited to data that the reader may see. Called for each status."""
        return Additions()


def sent_to(client: ClientRecord, message: Message) -> list[Command]:
    """Return commands that send a message to a client, through the worker if the client runs inside a task. Empty if
    the client is absent."""
    if client.is_absent:
        return []
    return [Send(client.id, message) if client.via is None else Send(client.via.id, message, client.id)]


class Performer:
    """The part of an extension that does I/O for its scheduler part. May use files, sockets, and threads. The
    scheduler calls all methods in its own thread. After the first exception of `perform`, the performer is dropped."""

    def perform(self, work: Any) -> None:
        """Process the work of a `Perform` command. Must not block or raise."""
        raise NotImplementedError

    def answer(self, work: Any, send: Callable[[Reply], None]) -> None:
        """Answer a question for which `on_question` returned `Perform`: call `send` now or later. Must not block."""
        raise NotImplementedError

    def close(self) -> None:
        """Called once when the scheduler stops, before its files are closed."""
