"""The whole world with servers that exit and restart, after a kill or a power loss, with or without journals.

Messages in flight are lost. Living peers reconnect to the new scheduler one by one. Without journals, a new core has no
state. With journals, the servers run on a simulated machine, whose disk may tear writes, be full, or fail.
`DurableSteps` and `ObjectJournal` then decide when messages are sent.

    with Machine(Random(1)) as machine:
        RestartingWorld(faults=Faults(scheduler_kills=0.3), machine=machine, ...).run()
"""

from __future__ import annotations

import errno
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from random import Random
from typing import Any

from scaler.errors import UsageError
from scaler.extensions.durability.ledger import JournalChanged, Recovered
from scaler.extensions.durability.steps import DurableSteps
from scaler.net.connection import Closed, Opened
from scaler.protocol.messages import Role
from scaler.scheduler.core.commands import Command, DurabilitySaid, Input, Send
from scaler.scheduler.core.core import SchedulerCore
from scaler.scheduler.core.rooms import Rooms
from scaler.scheduler.rooms import make_scaling
from scaler.testing.simulation.actors import SimulatedClient
from scaler.testing.simulation.stepping import built_in
from scaler.testing.simulation.world import Actor, SimulationReport
from tests.extensions.durability.journaled import Journaled
from tests.simulation.machine import Machine, SimulatedProcess
from tests.simulation.storage import START_AGAIN_SECONDS, SimulatedStorage
from tests.simulation.whole import StoringClient, WholeWorld

RETURN_SECONDS = 0.02, 0.9
LAST_FAULT_SECONDS = 60.0
"""Minimum lifetime of the last scheduler, for leases of lost workers to expire."""
DISK_FAILS_SECONDS = 0.05, 3.0
LEAVE_SECONDS = 4.0
"""Time by which a failed disk has recovered, and a new client has replaced another."""


@dataclass(frozen=True, slots=True)
class Faults:
    """Rates of server and disk failures per second. The last three need a machine."""

    scheduler_kills: float = 0.0
    storage_kills: float = 0.0
    power_losses: float = 0.0
    full_disks: float = 0.0
    disk_errors: float = 0.0


class RestartingWorld(WholeWorld):
    """A WholeWorld whose servers fail. machine: for their journals, or None for no journals.

    `starts` counts the starts of each task.
    """

    def __init__(self, *, faults: Faults, machine: Machine | None = None, **others: Any) -> None:
        self._machine = machine
        self._is_down = self._is_over = False
        self._process: SimulatedProcess | None = None
        self._durable: DurableSteps | None = None
        if machine is not None:
            machine.now = lambda: self.now
            machine.later = self.later
        super().__init__(**others)
        self.starts = self._starts
        self._config = replace(self._config, object_retention_seconds=LEAVE_SECONDS / 2)
        self._start_scheduler()
        for name, rate, misfortune in (
            ("scheduler killed", faults.scheduler_kills, self._kill_scheduler),
            ("storage killed", faults.storage_kills, self._storage.restart),
            ("power lost", faults.power_losses, self._lose_power),
            ("disk full", faults.full_disks, partial(self._fail_disk, errno.ENOSPC)),
            ("disk error", faults.disk_errors, partial(self._fail_disk, errno.EIO)),
        ):
            if rate:
                self._sometimes(rate, partial(self._strike, name, misfortune))

    @cached_property
    def _storage(self) -> SimulatedStorage:
        return SimulatedStorage(self, Random(self._seed + 1), self._chances.delay_seconds, self._machine)

    def delivered(self) -> dict[bytes, tuple[int, bytes]]:
        """Return the outcome and payload of each ended task."""
        clients = [each for each in self._clients if isinstance(each, StoringClient)]
        return {task: ended for client in clients for task, ended in client.delivered.items()}

    def run(self) -> SimulationReport:
        report = super().run()
        if self._machine is not None:
            self._judge_disk(self._machine)
        return report

    def _judge_disk(self, machine: Machine) -> None:
        """Check that the disk contains no data of clients, after all have left."""
        self._is_over = True
        for act in (self._leave, self._close_all, self._close_all, lambda: None):
            until = self.now + LEAVE_SECONDS
            while self.now < until or self._is_down:
                self._advance()
            act()
        machine.lose_power()
        process = machine.start()
        found = process.run(partial(self._recover, machine))
        clients = [each for each in found if isinstance(each, DurabilitySaid) and isinstance(each.item, Recovered)]
        assert not clients, "the journal has clients that have left"
        left = process.run(self._storage.on_disk)
        assert not left, f"the disk has objects of clients that have left: {[each.hex() for each in left]}"

    def _leave(self) -> None:
        for client in self._clients:
            if isinstance(client, StoringClient) and client.alive:
                client.leave()

    def _close_all(self) -> None:
        for client in self._clients:
            if isinstance(client, StoringClient) and client.alive:
                client.close()
                client.alive = False
            self._arrive(Closed(client.id, "its program has ended"))

    # -- failures

    def _strike(self, name: str, misfortune: Callable[[], None]) -> None:
        if self.now <= LAST_FAULT_SECONDS and not self._is_over:
            self._report.happened[name] += 1
            misfortune()

    def _lose_power(self) -> None:
        """Turn off both servers' machine for a moment. Workers and clients are on other machines."""
        assert self._machine is not None, "only a machine loses power"
        self._machine.lose_power()
        self._storage.restart()
        self._kill_scheduler()

    def _fail_disk(self, failure: int) -> None:
        machine = self._machine
        assert machine is not None, "only a machine has a disk"
        machine.failure = failure

        def mend() -> None:
            machine.failure = 0

        self.later(self.now + self._random.uniform(*DISK_FAILS_SECONDS), mend)

    # -- scheduler

    def _kill_scheduler(self) -> None:
        if self._is_down:
            return
        self._is_down = True
        self._incarnation += 1
        self._inbox.clear()
        if self._process is not None:
            self._process.end()
        for link in self._links.values():
            link.drop()  # even if broken, because its session does not resume
        self._start_scheduler()

    def _start_scheduler(self) -> None:
        """Start a scheduler from its journal. A full disk permits this, a disk with errors does not."""
        found: Sequence[Input] = ()
        machine = self._machine
        if machine is not None:
            self._process = machine.start()
            try:
                found = self._process.run(partial(self._recover, machine))
            except UsageError:
                if machine.failure != errno.EIO:
                    raise
                self._process.end()
                self.later(self.now + START_AGAIN_SECONDS, self._start_scheduler)
                return
        rooms = Rooms([*built_in("resources", "data_plane"), Journaled(is_journaled=machine is not None)])
        self.core = SchedulerCore(self._config, self.now, make_scaling(), rooms)
        self._is_down = False
        self._inbox[:0] = found
        self._step_at = math.inf
        self._wake_core(self.now)
        for actor in self._actors.values():
            if actor.alive and self._incarnation > 1:
                self._return_later(actor)

    def _recover(self, machine: Machine) -> list[Input]:
        def changed(failure: str, is_stuck: bool) -> None:
            self._arrive(DurabilitySaid(JournalChanged(failure, is_stuck)))

        self._durable = DurableSteps(machine.path / "scheduler", self._perform, changed)
        return [*self._durable.recover()]

    def _step(self) -> None:
        if self._is_down:
            self._step_at = math.inf
        else:
            super()._step()

    def _stepped(self, inputs: Sequence[Input], commands: list[Command]) -> None:
        if self._process is None or self._durable is None:
            self._perform(commands)
        else:
            self._process.run(partial(self._durable.add, inputs, commands))

    def _perform(self, commands: Sequence[Command]) -> None:
        # Messages held for a peer's earlier session. The core does not know the next session yet.
        opened = {item.peer for item in self._inbox if isinstance(item, Opened)}
        super()._perform([each for each in commands if not (isinstance(each, Send) and each.peer in opened)])

    # -- peers

    def _arrive(self, item: Input) -> None:
        if self._is_down:
            return
        if isinstance(item, Opened) and item.hello.role is Role.WORKER:
            item.hello.resume = self._incarnation > 1
        super()._arrive(item)

    def _client_returns(self, client: SimulatedClient) -> None:
        if not self._is_down:
            super()._client_returns(client)

    def _connect(self, actor: Actor) -> None:
        if not self._is_down:
            super()._connect(actor)
        elif actor.id not in self._links:
            self.later(self.now + START_AGAIN_SECONDS, partial(self._join, actor))
        elif self._actors[actor.id] is not actor:  # reconnects, like all actors, once there is a scheduler
            self._actors[actor.id] = actor
            self._beat(actor)

    def _join(self, actor: Actor) -> None:
        if actor.alive:
            self._connect(actor)
            if isinstance(actor, SimulatedClient) and actor.id in self._links:
                actor.restart()

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
            actor.restart()
