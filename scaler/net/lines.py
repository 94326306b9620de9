"""What a connector speaks over: one connection, or an attempt at one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from scaler.net.connection import Buffer
from scaler.net.connector_core import ConnectorCore
from scaler.net.envelopes import Taken


class Line(Protocol):
    """The descriptors of a line are watched from its beginning to its end; `turn` is called when there is news."""

    broken: str
    """Why it is over, or empty."""

    def drain(self, core: ConnectorCore, now: float) -> bool:
        """Give the core what has come; False when this turn's share was used up before the end of it."""

    def transmit(self, peer: bytes, header: bytes, body: bytes, attachments: Sequence[Buffer]) -> Taken: ...

    def rest(self, is_blocked: bool) -> bool:
        """The last word of a turn: tell whether another one is due, and see to it that news brings one.

        is_blocked: there is more to send than it took.
        """

    def wait_writable(self, seconds: float) -> bool:
        """Wait until it takes more, or for so long; False when it is known to take nothing any more."""

    def finish(self, linger_seconds: float) -> None:
        """Deliver what it took, for no longer than this, and close."""

    def drop(self) -> None:
        """Close it without another word."""
