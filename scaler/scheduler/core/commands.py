"""What the core wants done, and the inputs that do not come from the network.

`SchedulerCore.step` takes the events of a listener (`net.connection`) and the inputs below. The shell performs the
commands that it returns in their order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from scaler.net.connection import ListenerEvent
from scaler.net.identity import Identity
from scaler.policy.view import ClusterView, Wanted
from scaler.protocol.messages import Finished, Goodbye, Hello, Message, Refused, Submit
from scaler.scheduler.core.changes import Change, Journaled, Observed
from scaler.scheduler.core.durable import Label


class JournalChanged(NamedTuple):
    """New tasks cannot be journaled, and are refused for this reason; empty: they can again.

    is_stuck: nothing else can be journaled either, so all work waits.
    """

    failure: str
    is_stuck: bool = False


class PolicyAnswered(NamedTuple):
    """The scaling policy answered the last AskPolicy. complaint: what was wrong with the policy; mostly empty."""

    wanted: Mapping[str, Wanted]
    complaint: str


class MonitoringChanged(NamedTuple):
    """Monitors connected, or the last one left: changes of single tasks are published while is_watched."""

    is_watched: bool


class ObjectLinked(NamedTuple):
    """The storage answered a LinkObject. size_bytes: of the object, 0 when it was not there."""

    number: int
    size_bytes: int


class StorageConnected(NamedTuple):
    """The storage has opened a new session: what was on the way to it may be lost."""


class StorageSaid(NamedTuple):
    """The object storage says which objects it has or wants."""

    message: Message


class ClockRead(NamedTuple):
    """The wall clock shows this many unix seconds when the monotonic clock shows 0."""

    unix_at_zero: float


class ShellObserved(NamedTuple):
    """The shell has seen this, for extensions."""

    observed: list[Observed]


class Recovered(NamedTuple):
    """Input: what the journal has of one client. results: of tasks that ended. submits: the tasks that did not.

    values and failed_inputs: by task, as in `ValueRetained` and `FailedInput`. dispatched: workers by task. labels: of
    the tasks of a durable session, in the order of their submission.
    """

    client: bytes
    hello: Hello
    identity: Identity
    submits: list[Submit]
    results: list[Finished]
    values: dict[bytes, bytes]
    failed_inputs: dict[bytes, tuple[str, bytes]]
    dispatched: dict[bytes, bytes]
    labels: dict[bytes, Label]


class ClientsGone(NamedTuple):
    """Input: clients that had left before the scheduler ended. It may not have told the storage."""

    ids: list[bytes]


ShellInput = (
    PolicyAnswered
    | MonitoringChanged
    | ObjectLinked
    | StorageConnected
    | StorageSaid
    | Recovered
    | ClientsGone
    | JournalChanged
    | ClockRead
    | ShellObserved
)
Input = ListenerEvent | ShellInput


@dataclass(slots=True)
class Send:
    """Send a message to a peer. Faster to make than the others, as one is made for every message."""

    peer: bytes
    message: Message


class SendAnswer(Send):
    """A Send that says nothing of which the journal must know before: a refusal, or the answer to a question."""

    __slots__ = ()


class Expel(NamedTuple):
    """End the session of a peer whose lease is over or that may not stay."""

    peer: bytes
    reason: Refused | Goodbye


class SendToStorage(NamedTuple):
    """Send a message to the object storage."""

    message: Message


class AskPolicy(NamedTuple):
    """Ask the scaling policy; its answer is a PolicyAnswered, however long it takes. Asked again only after that."""

    view: ClusterView


class Publish(NamedTuple):
    """Log these changes and pass them to monitors."""

    changes: list[Change]


class WriteJournal(NamedTuple):
    """Write this to the journal, and perform the other commands of the step when the disk has it. The last command."""

    changes: list[Journaled]


class AddRows(NamedTuple):
    """Add rows to a `LogTable`, in the order of their times."""

    table: str
    rows: list[Any]


class Perform(NamedTuple):
    """Have the shell of an extension do this."""

    extension: str
    work: Any


class Stop(NamedTuple):
    """End the scheduler: a client was allowed to ask for it."""

    text: str


Command = Send | Expel | SendToStorage | AskPolicy | Publish | WriteJournal | AddRows | Perform | Stop
