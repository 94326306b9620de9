"""Messages of clients inside tasks, which their workers relay."""

from __future__ import annotations

from scaler.errors import ProtocolError
from scaler.protocol.codec import decode, encode
from scaler.protocol.messages import Message, Relay
from scaler.scheduler.core.commands import Relayed, Send


def unwrapped(worker: bytes, relay: Relay) -> Relayed:
    try:
        return Relayed(worker, relay.client, relay.task, decode(relay.body))
    except ProtocolError as error:
        return Relayed(worker, relay.client, relay.task, None, str(error))


def wrapped(send: Send) -> Message:
    return Relay(send.nested, encode(send.message))
