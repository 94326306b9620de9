"""Commands of the core, and inputs that do not come from the network.

`SchedulerCore.step` takes listener events (`net.connection`) and the inputs below. The shell performs the returned
commands in order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from scaler.net.connection import Identity, ListenerEvent
from scaler.protocol.messages import Finished, Goodbye, Hello, Message, Refused, Submit
from scaler.scheduler.core.changes import Change, Journaled, Observed
from scaler.scheduler.core.state import Label


class JournalChanged(NamedTuple):
    """New tasks cannot be journaled and are rejected for this reason; empty: they can again.

    is_stuck: nothing can be journaled, so all work waits.
    """

    failure: str
    is_stuck: bool = False


class PolicyAnswered(NamedTuple):
    """Answer of the scaling policy to the last AskPolicy. complaint: an error of the policy, normally empty.

    wanted: a `scaler.policy.view.Wanted` for each manager.
    """

    wanted: Mapping[str, Any]
    complaint: str


class MonitoringChanged(NamedTuple):
    """The first monitor connected, or the last one left. Changes of single tasks are published while is_watched."""

    is_watched: bool


class Relayed(NamedTuple):
    """A message of a client inside a task of a worker. task: see `Relay`. problem: why the message is unreadable."""

    worker: bytes
    client: bytes
    task: bytes
    message: Message | None
    problem: str = ""


class StorageConnected(NamedTuple):
    """The storage opened a new session; messages on the way to it may be lost."""


class StorageSaid(NamedTuple):
    """A message of the object storage about objects."""

    message: Message


class ClockRead(NamedTuple):
    """Unix seconds at which the monotonic clock was 0."""

    unix_at_zero: float


class ShellObserved(NamedTuple):
    """Observations of the shell, for extensions."""

    observed: list[Observed]


class Recovered(NamedTuple):
    """One client from the journal. results: of ended tasks. submits: unfinished tasks.

    values, failed_inputs: by task, as in `ValueRetained` and `FailedInput`. dispatched: worker by task. labels: labels
    of a durable session, in order of submission.
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
    """Clients that left before the scheduler ended. The storage may not have been notified."""

    ids: list[bytes]


ShellInput = (
    PolicyAnswered
    | MonitoringChanged
    | StorageConnected
    | StorageSaid
    | Recovered
    | ClientsGone
    | JournalChanged
    | ClockRead
    | ShellObserved
    | Relayed
)
Input = ListenerEvent | ShellInput


@dataclass(slots=True)
class Send:
    """Send a message to a peer. Not a NamedTuple because one is made per message, and this is faster."""

    peer: bytes
    message: Message
    nested: bytes = b""
    """The client inside a task of this worker to which the worker relays the message."""


class SendAnswer(Send):
    """A Send that does not depend on the journal, such as a refusal or an answer."""

    __slots__ = ()


class Expel(NamedTuple):
    """End the session of a peer whose lease has expired or that is not allowed to stay."""

    peer: bytes
    reason: Refused | Goodbye


class SendToStorage(NamedTuple):
    message: Message


class AskPolicy(NamedTuple):
    """Ask the scaling policy, which answers with PolicyAnswered after any time. Not repeated before the answer.

    view: a `scaler.policy.view.ClusterView`.
    """

    view: Any


class Publish(NamedTuple):
    changes: list[Change]


class WriteJournal(NamedTuple):
    """Write to the journal, and perform the step's other commands after the write. Always the last command."""

    changes: list[Journaled]


class AddRows(NamedTuple):
    """Add rows to a `LogTable`, in order of time."""

    table: str
    rows: list[Any]


class Perform(NamedTuple):
    extension: str
    work: Any


class HoldObjects(NamedTuple):
    """From an extension: keep stored objects, also ones that this step would forget, and let others go.

    A held object goes with its owner all the same.
    """

    held: list[bytes]
    released: list[bytes]


class Stop(NamedTuple):
    """Stop the scheduler, at the request of an authorized client."""

    text: str


Command = Send | Expel | SendToStorage | AskPolicy | Publish | WriteJournal | AddRows | Perform | HoldObjects | Stop
