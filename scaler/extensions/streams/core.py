"""The scheduler part: passes values of streams to clients, and the answers to the tasks. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from scaler.extensions.interface import SchedulerPart, sent_to
from scaler.extensions.streams.messages import StreamTaken, StreamValue
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.commands import Command
from scaler.scheduler.core.state import ClientRecord, PeerRecord

FEW_STREAMS = 1_000


class Streams(SchedulerPart):
    messages = (StreamValue, StreamTaken)

    def __init__(self, _config: object = None) -> None:
        self._producers: dict[bytes, bytes] = {}
        """The peer that sends the values of a task."""
        self._forget_at = FEW_STREAMS

    def on_message(
        self, peer: PeerRecord, message: StreamValue | StreamTaken, state: ClusterState
    ) -> Iterable[Command]:
        if not isinstance(peer, ClientRecord):
            return ()
        if isinstance(message, StreamTaken):
            producer = state.clients.get(self._producers.get(message.task, b""))
            return sent_to(producer, message) if producer is not None and message.task in peer.tasks else ()
        task = peer.via.tasks.get(message.task) if peer.via is not None else None
        if task is None or task.group.client.account is not peer.account:
            return ()  # an ended task, or another key's
        self._producers[task.id] = peer.id
        if len(self._producers) > self._forget_at:
            self._producers = {each: sender for each, sender in self._producers.items() if sender in state.clients}
            self._forget_at = FEW_STREAMS + 2 * len(self._producers)
        return sent_to(task.group.client, message)
