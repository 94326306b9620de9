"""A connector's connection through a door of its own host (see `local`)."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable, Sequence

from scaler.errors import ProtocolError
from scaler.net.connection import Buffer
from scaler.net.connector_core import ConnectorCore
from scaler.net.envelopes import Taken
from scaler.net.local import Parts, Stream


class LocalLine:
    """See `lines.Line`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, turn: Callable[[], None], stream: Stream) -> None:
        self._loop = loop
        self._turn = turn
        self._stream = stream
        self._awaits_room = False
        self.broken = ""
        loop.add_reader(stream.fileno(), turn)

    def drain(self, core: ConnectorCore, now: float) -> bool:
        arrived: list[Parts] = []
        try:
            if not self._stream.receive(arrived):
                self.broken = "the connection broke"
        except ProtocolError as error:
            self.broken = f"what answers there does not speak this protocol: {error}"
        for parts in arrived:
            core.receive(parts.header, parts.body, parts.attachments, now)
        return True  # as long as there is more, the descriptor says so

    def transmit(self, _peer: bytes, header: bytes, body: bytes, attachments: Sequence[Buffer]) -> Taken:
        return self._stream.transmit(header, body, attachments)

    def rest(self, is_blocked: bool) -> bool:
        awaits_room = is_blocked or self._stream.has_tail
        if awaits_room is not self._awaits_room:
            self._awaits_room = awaits_room
            if awaits_room:
                self._loop.add_writer(self._stream.fileno(), self._turn)
            else:
                self._loop.remove_writer(self._stream.fileno())
        return False

    def wait_writable(self, seconds: float) -> bool:
        poll = select.poll()
        poll.register(self._stream.fileno(), select.POLLOUT)
        return not any(event & select.POLLHUP for _, event in poll.poll(round(seconds * 1000)))

    def finish(self, linger_seconds: float) -> None:
        self._unwatch()
        self._stream.finish(linger_seconds)

    def drop(self) -> None:
        self._unwatch()
        self._stream.close()

    def _unwatch(self) -> None:
        self._loop.remove_reader(self._stream.fileno())
        self._loop.remove_writer(self._stream.fileno())
