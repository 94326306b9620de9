"""The connector of clients inside tasks."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from scaler.errors import ClientClosedError, ProtocolError
from scaler.net.connection import Broken, ConnectorEvent, Received, Welcomed
from scaler.protocol import codec
from scaler.protocol.codec import decode, encode
from scaler.protocol.messages import (
    Acknowledge,
    AcknowledgeResults,
    Finished,
    Goodbye,
    Message,
    Started,
    Submit,
    Welcome,
)
from scaler.protocol.session import Buffer, Descriptor
from scaler.serialization.packages import version_of
from scaler.worker import frames

if TYPE_CHECKING:
    from scaler.client.loop import OnEvents
    from scaler.worker.processor.context import ProcessorContext

NESTED_LEASE_SECONDS = 0.0
"""A channel that has ended does not come back: it ends with its processor or with the agent."""


def prepare() -> None:
    """Do in a process what each process forked from it would do for its first client."""
    codec.prepare(Submit, Started, Finished, Acknowledge, AcknowledgeResults, Goodbye)
    version_of("scaler")  # lists the installed packages


class NestedConnector:
    """The connector of a client inside a task: its messages go through the worker, in the worker's session.

    Belongs to the running loop.
    """

    passes_descriptors = False

    def __init__(self, context: ProcessorContext, peer: bytes, on_events: OnEvents) -> None:
        self._peer = peer
        self._on_events = on_events
        self._loop = asyncio.get_running_loop()
        self._channel: socket.socket | None = context.open_channel(peer)
        self._loop.add_reader(self._channel.fileno(), self._read)  # a socket would be formatted for an exception
        self._welcome = Welcome(
            resumed=False,
            incarnation=0,
            lease_seconds=NESTED_LEASE_SECONDS,
            heartbeat_seconds=0.0,
            object_storage_address=context.object_storage_address,
        )
        first: list[ConnectorEvent] = [Welcomed(self._welcome)]
        self._loop.call_soon(on_events, first)

    @property
    def connected(self) -> bool:
        return self._channel is not None

    @property
    def last_error(self) -> str:
        return "" if self.connected else "the task's worker has ended the channel"

    def send(
        self, message: Message, attachments: Sequence[Buffer] = (), descriptors: Sequence[Descriptor] = ()
    ) -> None:
        """Send a message now. Raises ClientClosedError when the channel has ended."""
        assert not [*attachments, *descriptors], "a client's messages to a scheduler have none"
        if self._channel is not None:
            try:
                frames.send(self._channel, encode(message))
            except OSError as error:
                raise ClientClosedError("the channel of a client inside a task has ended") from error

    def together(self, work: Callable[[], object]) -> None:
        """Call this: every message is sent at once."""
        work()

    def outbox_bytes(self) -> int:
        """Return 0: the channel keeps nothing, and the worker's session does the repeating."""
        return 0

    def close(self, reason: str = "") -> None:
        """Say goodbye and end the channel. Harmless when repeated."""
        if self._channel is not None:
            self.send(Goodbye(reason))
            self._end()

    def _read(self) -> None:
        assert self._channel is not None, "the reader is removed with the channel"
        events: list[ConnectorEvent] = []
        is_open = False
        with contextlib.suppress(ConnectionError, ProtocolError):
            try:
                while body := frames.receive(self._channel, socket.MSG_DONTWAIT)[0]:
                    message = decode(body)
                    if isinstance(message, Welcome):
                        events.append(self._restarted(message))
                    else:
                        events.append(Received(self._peer, message))
            except BlockingIOError:
                is_open = True
        if not is_open:
            self._end()
            events.append(Broken(self._peer))
        self._on_events(events)

    def _restarted(self, welcome: Welcome) -> Welcomed:
        """Answer the worker, whose scheduler was restarted: it drops what this client has sent before."""
        with contextlib.suppress(ClientClosedError):  # the next read finds that out
            self.send(Acknowledge())
        storage_address = welcome.object_storage_address or self._welcome.object_storage_address
        self._welcome = replace(self._welcome, incarnation=welcome.incarnation, object_storage_address=storage_address)
        return Welcomed(self._welcome)

    def _end(self) -> None:
        if self._channel is not None:
            self._loop.remove_reader(self._channel)
            self._channel.close()
            self._channel = None
