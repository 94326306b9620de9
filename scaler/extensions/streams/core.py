"""The scheduler part: forwards stream values to clients and the clients' answers to tasks. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from scaler.extensions.interface import SchedulerPart, sent_to
from scaler.extensions.streams.messages import StreamTaken, StreamValue
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.commands import Command
from scaler.scheduler.core.state import ClientRecord, PeerRecord


class Streams(SchedulerPart):
    messages = (StreamValue, StreamTaken)

    def __init__(self, _config: object = None) -> None: ...

    def on_message(
        self, peer: PeerRecord, message: StreamValue | StreamTaken, state: ClusterState
    ) -> Iterable[Command]:
        if not isinstance(peer, ClientRecord):
            return ()
        if isinstance(message, StreamTaken):
            producer = state.clients.get(message.run)
            if producer is None or producer.account is not peer.account or message.task not in peer.tasks:
                return ()
            return sent_to(producer, message)
        task = peer.via.tasks.get(message.task) if peer.via is not None else None
        if task is None or task.group.client.account is not peer.account:
            return ()  # an ended task, or another key's
        return sent_to(task.group.client, message)
