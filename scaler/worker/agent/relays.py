"""Channels of clients that live inside tasks: streams from and to processors, relayed in the agent's own session."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass, field
from functools import partial

from scaler.errors import ProtocolError
from scaler.protocol.messages import MAX_BATCH_BYTES, Relay, RelayClosed
from scaler.worker.agent.events import ProcessorEvent, ProcessorReported
from scaler.worker.agent.shell import Agent
from scaler.worker.frames import BodyReader, pack_body_head

MAX_CHANNELS = 10_000
MAX_UNREAD_BYTES = 256 * 1024 * 1024
"""What waits for a nested client that does not read; beyond it the channel ends."""
_READ_BYTES = 256 * 1024
_READS_PER_WAKEUP = 16


@dataclass(slots=True)
class _Channel:
    end: socket.socket
    number: int
    reader: BodyReader = field(default_factory=lambda: BodyReader(MAX_BATCH_BYTES))
    unsent: bytearray = field(default_factory=bytearray)


class Relays:
    """All channels of an agent, by the peer id of their client."""

    def __init__(self, loop: asyncio.AbstractEventLoop, agent: Agent) -> None:
        self._loop = loop
        self._agent = agent
        self._channels: dict[bytes, _Channel] = {}

    def open(self, client: bytes, number: int, descriptor: int) -> None:
        """Take over a new channel of a processor."""
        end = socket.socket(fileno=descriptor)
        if client in self._channels or len(self._channels) >= MAX_CHANNELS:
            end.close()  # the client sees the end of its channel
            return
        end.setblocking(False)
        self._channels[client] = _Channel(end, number)
        self._loop.add_reader(end, partial(self._read, client))

    def deliver(self, client: bytes, body: bytes) -> int | None:
        """Pass a message to a client. Returns its processor's number, None when there is no such client."""
        channel = self._channels.get(client)
        if channel is None:
            return None
        is_waiting = bool(channel.unsent)
        channel.unsent += pack_body_head(len(body)) + body
        if not is_waiting:
            self._write(client)
        elif len(channel.unsent) > MAX_UNREAD_BYTES:
            self.close(client)
        return channel.number

    def close(self, client: bytes) -> None:
        """End a channel."""
        channel = self._channels.pop(client, None)
        if channel is not None:
            self._loop.remove_reader(channel.end)
            self._loop.remove_writer(channel.end)
            channel.end.close()
            self._agent.send(RelayClosed(client))

    def close_all(self) -> None:
        for client in list(self._channels):
            self.close(client)

    def _read(self, client: bytes) -> None:
        for _ in range(_READS_PER_WAKEUP):
            channel = self._channels.get(client)
            if channel is None:
                return
            try:
                data = channel.end.recv(_READ_BYTES)
            except BlockingIOError:
                return
            except ConnectionError:
                data = b""
            if not data:
                self.close(client)
                return
            self._agent.take_soon(ProcessorReported(channel.number, ProcessorEvent.NESTED_TRAFFIC))
            try:
                for body in channel.reader.feed(data):
                    self._agent.send(Relay(client, body))
            except ProtocolError:
                self.close(client)
                return

    def _write(self, client: bytes) -> None:
        channel = self._channels.get(client)
        if channel is None:
            return
        try:
            sent = channel.end.send(channel.unsent)
        except BlockingIOError:
            sent = 0
        except ConnectionError:
            self.close(client)
            return
        del channel.unsent[:sent]
        if channel.unsent:
            self._loop.add_writer(channel.end, partial(self._write, client))
        else:
            self._loop.remove_writer(channel.end)
