"""What the core wants done, and the inputs that do not come from the network.

`SchedulerCore.step` takes the events of a listener (`net.connection`) and the inputs below. The shell performs the
commands that it returns in their order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scaler.net.connection import ListenerEvent
from scaler.policy.view import ClusterView, Wanted
from scaler.protocol.messages import Goodbye, Message, Refused
from scaler.scheduler.core.facts import Fact


@dataclass(frozen=True, slots=True)
class PolicyAnswered:
    """The scaling policy answered the last AskPolicy. complaint: what was wrong with the policy; mostly empty."""

    wanted: Mapping[str, Wanted]
    complaint: str


@dataclass(frozen=True, slots=True)
class MonitoringChanged:
    """Monitors connected, or the last one left: facts about single tasks are published while is_watched."""

    is_watched: bool


Input = ListenerEvent | PolicyAnswered | MonitoringChanged


@dataclass(slots=True)
class Send:
    """Send a message to a peer.

    Not frozen, unlike the others: one is made for every message, and making a frozen one takes three times as long.
    """

    peer: bytes
    message: Message


@dataclass(frozen=True, slots=True)
class Expel:
    """End the session of a peer whose lease is over or that may not stay."""

    peer: bytes
    reason: Refused | Goodbye


@dataclass(frozen=True, slots=True)
class ForgetStored:
    """Tell the object storage to forget these objects."""

    ids: list[bytes]


@dataclass(frozen=True, slots=True)
class ForgetOwned:
    """Tell the object storage to forget everything of this client."""

    owner: bytes


@dataclass(frozen=True, slots=True)
class AskPolicy:
    """Ask the scaling policy; its answer is a PolicyAnswered, however long it takes. Asked again only after that."""

    view: ClusterView


@dataclass(frozen=True, slots=True)
class Publish:
    """Log these facts and pass them to monitors."""

    facts: list[Fact]


@dataclass(frozen=True, slots=True)
class Stop:
    """End the scheduler: a client was allowed to ask for it."""

    text: str


Command = Send | Expel | ForgetStored | ForgetOwned | AskPolicy | Publish | Stop
