"""What happens to the core. `Said` carries a message; the others tell of connections."""

from __future__ import annotations

from dataclasses import dataclass

from scaler.protocol.messages import Hello, Message


@dataclass(frozen=True, slots=True)
class Joined:
    """A client, worker or manager opened a new session; whatever an earlier session of it said is void."""

    peer: bytes
    hello: Hello


@dataclass(frozen=True, slots=True)
class NestedJoined:
    """A client inside a task spoke for the first time, through this worker."""

    peer: bytes
    via: bytes


@dataclass(frozen=True, slots=True)
class Said:
    peer: bytes
    message: Message


@dataclass(frozen=True, slots=True)
class Broke:
    """The connection of a peer is gone; it may come back."""

    peer: bytes


@dataclass(frozen=True, slots=True)
class Returned:
    """A peer whose connection had broken is back, with its session."""

    peer: bytes


@dataclass(frozen=True, slots=True)
class Left:
    """The session of a peer is over."""

    peer: bytes
    text: str


Input = Joined | NestedJoined | Said | Broke | Returned | Left
