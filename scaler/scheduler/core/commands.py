"""Commands of the core, and inputs that do not come from the network.

`SchedulerCore.step` takes listener events (`net.connection`) and the inputs below. The shell performs the returned
commands in order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from scaler.net.connection import ListenerEvent
from scaler.protocol.messages import Goodbye, Message, Refused
from scaler.scheduler.core.changes import Change, Observed


class DurabilitySaid(NamedTuple):
    """An item from the shell of the `durability` extension. size_bytes: size of its contents in memory."""

    item: Any
    size_bytes: int = 0


class PolicyAnswered(NamedTuple):
    """The scaling policy's answer to the last AskPolicy. complaint: the policy's error; normally empty.

    wanted: a `scaler.policy.view.Wanted` for each manager.
    """

    wanted: Mapping[str, Any]
    complaint: str


class MonitoringChanged(NamedTuple):
    """The first monitor connected, or the last one disconnected. Per-task changes are published while is_watched."""

    is_watched: bool


class Relayed(NamedTuple):
    """A message from a client inside a task on a worker. task: see `Relay`. problem: why the message is unreadable."""

    worker: bytes
    client: bytes
    task: bytes
    message: Message | None
    problem: str = ""


class StorageConnected(NamedTuple):
    """The storage opened a new session; messages in transit to it may be lost."""


class StorageSaid(NamedTuple):
    """A message from the object storage about objects."""

    message: Message


class ClockRead(NamedTuple):
    """Unix seconds at which the monotonic clock was 0."""

    unix_at_zero: float


class ShellObserved(NamedTuple):
    """Observations by the shell, for extensions."""

    observed: list[Observed]


ShellInput = (
    PolicyAnswered
    | MonitoringChanged
    | StorageConnected
    | StorageSaid
    | DurabilitySaid
    | ClockRead
    | ShellObserved
    | Relayed
)
Input = ListenerEvent | ShellInput


@dataclass(slots=True)
class Send:
    """Send a message to a peer. Not a NamedTuple: an instance is created per message, and this class is faster."""

    peer: bytes
    message: Message
    nested: bytes = b""
    """The recipient, if it is a client inside a task: this worker relays the message to it."""


class SendAnswer(Send):
    """A Send that does not depend on the journal, such as a refusal or an answer."""

    __slots__ = ()


class Expel(NamedTuple):
    """End the session of a peer, because its lease has expired or it is no longer allowed."""

    peer: bytes
    reason: Refused | Goodbye


class SendToStorage(NamedTuple):
    message: Message


class AskPolicy(NamedTuple):
    """Query the scaling policy, which answers with PolicyAnswered. Not sent again before the answer.

    view: a `scaler.policy.view.ClusterView`.
    """

    view: Any


class Publish(NamedTuple):
    changes: list[Change]


class Perform(NamedTuple):
    extension: str
    work: Any


class HoldObjects(NamedTuple):
    """From an extension: hold stored objects, even if this step would drop them, and release other objects. Dropping an
    owner also drops its held objects."""

    held: list[bytes]
    released: list[bytes]


class Stop(NamedTuple):
    """Stop the scheduler, at the request of an authorized client."""

    text: str


Command = Send | Expel | SendToStorage | AskPolicy | Publish | Perform | HoldObjects | Stop
