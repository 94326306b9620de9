"""What the core wants done. The shell performs commands in their order."""

from __future__ import annotations

from dataclasses import dataclass

from scaler.protocol.messages import Goodbye, Message, Refused


@dataclass(slots=True)
class Send:
    """Send a message to a peer; via is the worker that relays to a nested client, None for a direct peer.

    Not frozen as its kin are: it is made for every message, and frozen ones take three times as long to make.
    """

    peer: bytes
    message: Message
    via: bytes | None = None


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
class Stop:
    """End the scheduler: a client was allowed to ask for it."""

    text: str


Command = Send | Expel | ForgetStored | ForgetOwned | Stop
