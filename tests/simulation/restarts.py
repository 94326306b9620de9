"""The whole world with a scheduler that is killed and started again, without a journal.

What is on the way is lost. A new core knows nothing; living peers come back one after the other.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from scaler.net.connection import Opened
from scaler.policy.view import Allocation
from scaler.scheduler.core.commands import Input
from scaler.scheduler.core.core import SchedulerCore
from scaler.testing.simulation.actors import SimulatedClient
from scaler.testing.simulation.world import Actor
from tests.simulation.whole import WholeWorld

RETURN_SECONDS = 0.02, 0.9
LAST_KILL_SECONDS = 60.0
"""What waits for the lease of a worker that is gone ends only when a scheduler lives for that long."""


class RestartingWorld(WholeWorld):
    """scheduler_restarts_per_second: how often the scheduler is killed. `starts` counts those of each task."""

    def __init__(self, *, scheduler_restarts_per_second: float, **others: Any) -> None:
        self._given_up: set[bytes] = set()
        """Clients that the scheduler has given up and that have not come back."""
        self.restarts = 0
        super().__init__(**others)
        self.starts = self._starts
        self._sometimes(scheduler_restarts_per_second, self._kill_scheduler)

    def _arrive(self, item: Input) -> None:
        if isinstance(item, Opened):
            item.hello.resume = self._incarnation > 1
        super()._arrive(item)

    def _expelled(self, peer: bytes) -> None:
        self._given_up.add(peer)
        super()._expelled(peer)

    def _client_returns(self, client: SimulatedClient) -> None:
        super()._client_returns(client)
        self._given_up.discard(client.id)

    def _kill_scheduler(self) -> None:
        if self.now > LAST_KILL_SECONDS:
            return
        self.restarts += 1
        self._incarnation += 1
        self.core = SchedulerCore(self._config, Allocation(), self.now)
        self._inbox.clear()
        self._wake_core(self.now)
        for peer, actor in self._actors.items():
            self._links[peer].drop()  # also one that is broken: its session does not resume
            if actor.alive:
                self._return_later(actor)

    def _return_later(self, actor: Actor) -> None:
        seconds = self._random.uniform(*RETURN_SECONDS)
        self.later(self.now + seconds, partial(self._return, actor, self._incarnation))

    def _return(self, actor: Actor, incarnation: int) -> None:
        if not actor.alive or incarnation != self._incarnation or self._links[actor.id].up:
            return
        if actor.id in self._frozen:
            self._return_later(actor)
            return
        if isinstance(actor, SimulatedClient):
            self._said_again.update(actor.expected)
        self._connect(actor)
        if isinstance(actor, SimulatedClient):
            actor.restart(expired=actor.id in self._given_up)
        self._given_up.discard(actor.id)
