"""Reports workers' deviating packages to clients and the log. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from scaler.config.setting import SettingsModel
from scaler.extensions.interface import SchedulerPart, sent_to
from scaler.ids import owner_of
from scaler.protocol.messages import Notice, PackagesDiffer
from scaler.scheduler.core.changes import peer_incident
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.commands import Command, Publish
from scaler.scheduler.core.state import PeerRecord

MAX_TOLD = 100
"""Reports per client."""


class Packages(SchedulerPart):
    messages = (PackagesDiffer,)

    def __init__(self, _config: SettingsModel | None = None) -> None:
        self._told: dict[bytes, set[tuple[str, str]]] = {}
        """Functions and versions, by client."""

    def on_message(self, peer: PeerRecord, message: PackagesDiffer, state: ClusterState) -> Iterable[Command]:
        client = state.clients.get(owner_of(message.task))
        self._told = {known: told for known, told in self._told.items() if known in state.clients}
        about = message.function, message.text
        if client is None or about in (told := self._told.setdefault(client.id, set())) or len(told) >= MAX_TOLD:
            return []
        told.add(about)
        why = f"{message.function} may behave differently there, which has {message.text}"
        text = f"worker {peer.title}: {why}; install the same versions on both sides"
        return [*sent_to(client, Notice(text)), Publish([peer_incident("packages", peer, why)])]
