"""A peer that sends arbitrary bytes over a real local connection."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

from scaler.net.local import local_name
from scaler.protocol.codec import decode
from scaler.protocol.messages import Hello, Message
from scaler.protocol.session import Header
from tests.fuzz.conversations import HEAD, Spoken, pack

ANSWER_SECONDS = 10.0
IMPATIENT_SECONDS = 0.5
"""Maximum wait for the answer to a Hello."""


class LivePeer:
    """One connection to the server at an address. Leaving the context closes it."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(ANSWER_SECONDS)
        name = local_name(address)
        assert name is not None
        self._socket.connect(name)
        self._unread = b""
        self.session = b""
        """Session id of the last answer."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._socket.close()

    def say(self, envelopes: Sequence[Spoken]) -> None:
        """Send envelopes, after replacing the recorded session id with this session's. Raises OSError after a cut."""
        theirs = envelopes[0].header[8:24]
        said = [
            each._replace(header=each.header[:8] + self.session + each.header[24:])
            if self.session and each.header[8:24] == theirs
            else each
            for each in envelopes
        ]
        self._socket.sendall(pack(said))

    def answer(self) -> Message | None:
        """Return the server's next message, or None after it has cut the connection. Raises TimeoutError."""
        while True:
            if len(self._unread) >= HEAD.size:
                size, count, _, header = HEAD.unpack_from(self._unread)
                at = HEAD.size + 4 * count
                end = at + size + sum(struct.unpack_from(f"={count}I", self._unread, HEAD.size)) if count else at + size
                if len(self._unread) >= end:
                    body, self._unread = self._unread[at : at + size], self._unread[end:]
                    self.session = Header.read(header).session
                    return decode(body)
            data = b""
            with suppress(ConnectionError):
                data = self._socket.recv(65_536)
            if not data:
                return None
            self._unread += data

    def converse(self, conversation: Sequence[Spoken]) -> None:
        """Send the Hello, wait for the answer, and send all other envelopes until the server cuts the connection."""
        self._socket.settimeout(IMPATIENT_SECONDS)
        with suppress(OSError):
            self.say(conversation[:1])
            if isinstance(_decoded(conversation[0].body), Hello):
                self.answer()
            self.say(conversation[1:] or conversation[:1])


def _decoded(body: bytes) -> Message | None:
    with suppress(Exception):
        return decode(body)
    return None
