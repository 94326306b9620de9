"""Channels of clients inside tasks. The agent relays their messages in its own session."""

from __future__ import annotations

import asyncio
import os
import socket
from dataclasses import dataclass
from functools import partial

from scaler.errors import ProtocolError
from scaler.ids import PEER_ID_BYTES
from scaler.protocol.codec import encode
from scaler.protocol.messages import MAX_BATCH_BYTES, Relay, RelayClosed, Welcome
from scaler.protocol.session import ACKNOWLEDGE_BODY
from scaler.worker.agent.events import ProcessorEvent, ProcessorReported
from scaler.worker.agent.shell import Agent
from scaler.worker.frames import Note, Sender, ToAgent, receive

MAX_CHANNELS = 10_000
MAX_UNREAD_BYTES = 256 * 1024 * 1024
"""Maximum bytes queued for a nested client that does not read. Beyond this limit, the client's processor is killed."""
_READS_PER_WAKEUP = 64


@dataclass(slots=True)
class _Channel:
    sender: Sender
    number: int
    is_stale: bool = False
    """The scheduler has restarted, and the client has not acknowledged the Welcome yet. Its messages are outdated."""


def relay_clients(agent: Agent) -> None:
    relays = Relays(agent)
    agent.on_note[ToAgent.CHANNEL] = relays.open
    agent.on_session.append(relays.restart)
    agent.on_close.append(relays.close_all)
    agent.relay = relays.deliver


class Relays:
    def __init__(self, agent: Agent) -> None:
        self._loop = asyncio.get_running_loop()
        self._agent = agent
        self._channels: dict[bytes, _Channel] = {}

    def open(self, number: int, note: Note, descriptors: list[int]) -> None:
        client, descriptor = note.identifier[:PEER_ID_BYTES], descriptors.pop()
        end = socket.socket(fileno=descriptor)
        if client in self._channels or len(self._channels) >= MAX_CHANNELS:
            end.close()  # the client detects the closed channel
            return
        self._channels[client] = _Channel(Sender(self._loop, end), number)
        self._loop.add_reader(descriptor, partial(self._read, client))

    def deliver(self, relay: Relay) -> bool:
        channel = self._channels.get(relay.client)
        if channel is None:
            return False
        channel.sender.send([relay.body])
        if channel.sender.unsent_bytes > MAX_UNREAD_BYTES:
            self._ban(channel, f"its client does not read, and more than {MAX_UNREAD_BYTES} bytes are queued for it")
        return True

    def restart(self, welcome: Welcome, is_restarted: bool) -> None:
        """Make clients resend after a scheduler restart, or close them if the scheduler only dropped this worker."""
        if not is_restarted:
            self.close_all()
            return
        body = encode(welcome)
        for channel in self._channels.values():
            channel.is_stale = True
            channel.sender.send([body])

    def close(self, client: bytes) -> None:
        channel = self._channels.pop(client, None)
        if channel is not None:
            self._loop.remove_reader(channel.sender.end)
            channel.sender.close()
            self._agent.send(RelayClosed(client))

    def close_all(self) -> None:
        """Close all channels and mark their processors as worn, because a client cannot reopen its channel."""
        for client, channel in list(self._channels.items()):
            self.close(client)
            text = "the scheduler has dropped the client of its tasks"
            self._agent.take_soon(ProcessorReported(channel.number, ProcessorEvent.WORN, text))

    def _ban(self, channel: _Channel, text: str) -> None:
        """Kill the processor. Closing the channel instead would look like an error of the task."""
        self._agent.take_soon(ProcessorReported(channel.number, ProcessorEvent.INVALID_DATAGRAM, text))

    def _read(self, client: bytes) -> None:
        for _ in range(_READS_PER_WAKEUP):
            channel = self._channels.get(client)
            if channel is None:
                return
            try:
                body, descriptors = receive(channel.sender.end, socket.MSG_DONTWAIT)
                for descriptor in descriptors:  # unused descriptors
                    os.close(descriptor)
            except BlockingIOError:
                return
            except ConnectionError:
                body = b""
            except ProtocolError as error:
                self._ban(channel, str(error))
                return
            if not body:
                self.close(client)
                return
            if len(body) > MAX_BATCH_BYTES:
                self._ban(channel, f"its client sent a message of {len(body)} bytes, more than {MAX_BATCH_BYTES}")
                return
            if channel.is_stale:
                channel.is_stale = body != ACKNOWLEDGE_BODY
                continue
            self._agent.send(Relay(client, body, self._agent.running_task(channel.number)))
