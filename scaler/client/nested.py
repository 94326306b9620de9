"""The connection of a client that lives inside a task: its messages go through the worker, in the worker's session."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from scaler.net.connection import Broken, ConnectorEvent, Received, Welcomed
from scaler.protocol.codec import decode, encode
from scaler.protocol.messages import Goodbye, Message, Welcome
from scaler.protocol.session import Buffer, Descriptor
from scaler.worker.processor.context import NestedChannel, ProcessorContext

NESTED_LEASE_SECONDS = 0.0
"""A channel that has ended does not come back: it ends with its processor or with the agent."""


class NestedConnector:
    """Speaks for a client inside a task; the counterpart of a connector over a socket. Belongs to the running loop."""

    passes_descriptors = False

    def __init__(
        self, context: ProcessorContext, peer: bytes, on_events: Callable[[list[ConnectorEvent]], None]
    ) -> None:
        self._peer = peer
        self._on_events = on_events
        self._loop = asyncio.get_running_loop()
        self._channel: NestedChannel | None = context.open_channel(peer)
        self._loop.add_reader(self._channel.fileno(), self._read)
        welcome = Welcome(
            resumed=False,
            incarnation=0,
            lease_seconds=NESTED_LEASE_SECONDS,
            heartbeat_seconds=0.0,
            object_storage_address=context.object_storage_address,
        )
        first: list[ConnectorEvent] = [Welcomed(welcome)]
        self._loop.call_soon(on_events, first)

    @property
    def peer(self) -> bytes:
        return self._peer

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
            self._channel.send(encode(message))

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
        bodies = self._channel.receive_ready()
        if bodies is None:
            self._end()
            self._on_events([Broken(self._peer)])
            return
        self._on_events([Received(self._peer, decode(body)) for body in bodies])

    def _end(self) -> None:
        if self._channel is not None:
            self._loop.remove_reader(self._channel.fileno())
            self._channel.close()
            self._channel = None
