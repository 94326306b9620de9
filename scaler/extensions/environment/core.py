"""Reports version differences of workers' packages to clients and the log, and holds tasks until their environment is
prepared. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from scaler.config.setting import SettingsModel
from scaler.extensions.environment.messages import EnvironmentState
from scaler.extensions.interface import SchedulerPart, sent_to
from scaler.grammar import counted
from scaler.ids import owner_of
from scaler.protocol.messages import Notice, PackagesDiffer
from scaler.scheduler.core.changes import peer_incident
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.commands import Command, Publish
from scaler.scheduler.core.placing import Environments
from scaler.scheduler.core.state import PeerRecord, Task, Worker

MAX_TOLD = 100
"""Reports per client."""
MAX_PREPARED = 1000
"""Environments per worker."""
MAX_TEXT = 300


class Packages(SchedulerPart, Environments):
    messages = (PackagesDiffer, EnvironmentState)
    refusal = ""

    def __init__(self, _config: SettingsModel | None = None) -> None:
        self._prepared: dict[bytes, dict[bytes, str]] = {}
        """Current step of each environment's preparation, by worker id and environment."""
        self._told: dict[bytes, set[tuple[str, str]]] = {}
        """Functions and differences already reported, by client."""

    def environments(self) -> Environments:
        return self

    def prepares(self, worker: Worker, environment: bytes) -> bool:
        return environment in self._prepared.get(worker.id, ())

    def left(self, worker: Worker) -> None:
        self._prepared.pop(worker.id, None)

    def why_waits(self, task: Task) -> str:
        found = [each[name] for each in self._prepared.values() if (name := task.needs.environment) in each]
        text = f": {max(found)}" if any(found) else ""
        return f"its environment is being installed on {counted(len(found), 'worker')}{text}" if found else ""

    def on_message(
        self, peer: PeerRecord, message: PackagesDiffer | EnvironmentState, state: ClusterState
    ) -> Iterable[Command]:
        if isinstance(message, EnvironmentState):
            found = self._prepared.setdefault(peer.id, {})
            if message.accepts:
                found.pop(message.environment, None)
            elif message.environment in found or len(found) < MAX_PREPARED:
                found[message.environment] = message.text[:MAX_TEXT]
            return []
        client = state.clients.get(owner_of(message.task))
        self._told = {known: told for known, told in self._told.items() if known in state.clients}
        about = message.function, message.text
        if client is None or about in (told := self._told.setdefault(client.id, set())) or len(told) >= MAX_TOLD:
            return []
        told.add(about)
        why = f"{message.function} may behave differently there: the worker has {message.text}"
        text = f"worker {peer.title}: {why}; install the same versions on both sides"
        return [*sent_to(client, Notice(text)), Publish([peer_incident("packages", peer, why)])]
