"""Gangs among other tasks, with losses: all or none start, nothing deadlocks, and nothing starves."""

from __future__ import annotations

import random

import pytest

from scaler.net.connection import Resumed
from scaler.protocol.messages import Finished, Outcome, Recall
from scaler.scheduler.core.state import Task
from tests.extensions.gangs.cluster import GangCluster

STEP_SECONDS = 0.1


class World:
    """Workers on hosts that run tasks for random times, plain clients without pause, and clients with one gang each."""

    def __init__(self, seed: int, hosts: int, losses: float) -> None:
        self.random = random.Random(seed)
        self.losses = losses
        self.cluster = GangCluster()
        self.cluster.check_every = 20
        self.workers = [self.cluster.on_host(f"w{n}", f"h{n % hosts}", slots=1 + n % 3) for n in range(2 * hosts)]
        self.slots = sum(1 + n % 3 for n in range(2 * hosts))
        self.hosts = hosts
        self.number = 2 * hosts
        self.ends: dict[bytes, float] = {}
        self.plain = self.cluster.client("plain")
        self.gangs: dict[str, list[bytes]] = {}
        self.began: dict[str, float] = {}
        self.waits: list[float] = []
        self.ended_plain = self.ended_gangs = 0
        self.outcomes: dict[bytes, Outcome] = {}

    def add_gang(self, name: str) -> None:
        if name not in self.began:
            self.cluster.client(name)
            self.began[name] = self.cluster.now
        size = self.random.randint(2, self.slots // 2 + 1)
        priority = self.random.choice((0, 0, 1))
        self.gangs[name] = self.cluster.gang(name, size, self.random.choice((0, 0, 4)), priority=priority)

    def run(self, seconds: float, gangs: int) -> None:
        cluster = self.cluster
        for number in range(gangs):
            self.add_gang(f"g{number}")
        until = cluster.now + seconds
        while cluster.now < until:
            if sum(task.is_queued for task in self.tasks_of("plain")) < 10:
                cluster.submit(self.plain, 10, retries=3)
            self.lose()
            self.end()
            cluster.now += STEP_SECONDS
            alive = [self.plain, *self.began, *self.workers]
            cluster.step(*(Resumed(cluster.peer(name)) for name in alive))
            self.hear()

    def tasks_of(self, client: str) -> list[Task]:
        return list(self.cluster.state.clients[self.cluster.peer(client)].tasks.values())

    def lose(self) -> None:
        if self.random.random() < self.losses and len(self.workers) > 2:
            lost = self.workers.pop(self.random.randrange(len(self.workers)))
            slots = self.cluster.state.workers[self.cluster.peer(lost)].slots
            self.cluster.leave(lost, "lost")
            self.number += 1
            self.workers.append(self.cluster.on_host(f"w{self.number}", f"h{self.number % self.hosts}", slots=slots))

    def end(self) -> None:
        cluster = self.cluster
        for worker in list(self.workers):
            record = cluster.state.workers[cluster.peer(worker)]
            for task in list(record.tasks.values())[: record.slots]:
                at = self.ends.setdefault(task.id, cluster.now + self.random.expovariate(1 / 0.5))
                if at <= cluster.now:
                    self.ended_plain += not task.needs.gang
                    cluster.finish(worker, task.id)

    def hear(self) -> None:
        """Stop recalled tasks, check gangs, and resubmit gangs that have ended."""
        cluster = self.cluster
        new, cluster.said, cluster.commands = cluster.said, [], []
        for name, message in new:
            if isinstance(message, Finished):
                self.outcomes |= dict(zip(message.ids, map(Outcome, message.outcomes), strict=True))
            if isinstance(message, Recall) and name in self.workers:
                record = cluster.state.workers[cluster.peer(name)]
                for task in message.ids:
                    if task in record.tasks:
                        if message.kill:
                            cluster.finish(name, task, outcome=Outcome.CANCELLED, payload=b"killed")
                        else:
                            cluster.give_back(name, task)
        for name, gang in list(self.gangs.items()):
            outcomes = [self.outcomes.get(task) for task in gang]
            if set(outcomes) == {None}:
                cluster.waits(gang)
            elif None not in outcomes:
                if set(outcomes) == {Outcome.SUCCESS}:
                    self.ended_gangs += 1
                    self.waits.append(cluster.now - self.began.pop(name))
                    self.began[name] = cluster.now
                self.add_gang(name)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("losses", [0.0, 0.01])
def test_gangs_and_other_tasks_all_make_progress(seed: int, losses: float) -> None:
    world = World(seed, hosts=3, losses=losses)
    world.run(40.0, gangs=3)
    assert world.ended_gangs >= 4, "gangs starve or deadlock"
    assert world.ended_plain >= 60, "other tasks starve"
    assert max(world.waits) < 40.0
    assert {name for name, gang in world.gangs.items() if len(gang)} == {"g0", "g1", "g2"}
    kept = {worker for worker in world.cluster.state.workers.values() if worker.claims.reserved is not None}
    assert kept == {*world.cluster.extension.kept}


def test_a_gang_that_needs_all_slots_starts_among_endless_tasks() -> None:
    world = World(0, hosts=2, losses=0.0)
    world.cluster.client("large")
    gang = world.cluster.gang("large", world.slots)
    world.run(30.0, gangs=0)
    assert {world.outcomes.get(task) for task in gang} == {Outcome.SUCCESS}
