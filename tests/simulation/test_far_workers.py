"""Distant workers in simulated time: prefetching keeps them busy, and excess tasks return."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from random import Random

import pytest

from scaler.config.servers import SchedulerConfig
from scaler.ids import IdFactory
from scaler.net.connection import Opened, Received
from scaler.policy.view import Allocation
from scaler.protocol.messages import (
    ClientDetails,
    Message,
    Role,
    Spec,
    Submit,
    TaskGroup,
    WorkerDetails,
    WorkerHeartbeat,
)
from scaler.protocol.session import OutboxLimits, Session
from scaler.scheduler.core.commands import Command, Send
from scaler.testing.simulation.actors import CALM, CODE, FUNCTIONS, SimulatedWorker
from scaler.testing.simulation.link import End, Link
from scaler.testing.simulation.stepping import SteppedCore, hello

CLIENT = b"client.."
HEARTBEAT_SECONDS = 2.0
MEASURED_SECONDS = 3.0
"""Time from which round trips and durations are known."""


class _Steady(Random):
    """Returns the mean for every delay."""

    def expovariate(self, lambd: float = 1.0) -> float:
        return 1 / lambd


class _Worker(SimulatedWorker):
    """A worker with similar task durations, which reports its round trip."""

    def __init__(self, name: bytes, world: _FarWorld, delay_seconds: float) -> None:
        super().__init__(name.ljust(8, b"."), world.slots, False, world, Random(0), CALM)
        self.delay_seconds = delay_seconds
        self.ran: list[tuple[float, float]] = []
        self._far_world = world

    def duration(self, spec: Spec, task: bytes) -> float:
        del spec
        seconds = self._far_world.seconds(task) * self._random.uniform(0.5, 1.5)
        self.ran.append((self._far_world.now, seconds))
        return seconds

    def heartbeat(self) -> WorkerHeartbeat:
        return WorkerHeartbeat(self._far_world.now, 1.0, 1 << 20, self.running, 2 * self.delay_seconds)

    def busy_share(self, begin: float, end: float) -> float:
        """Return the share of the worker's slots that tasks kept busy in an interval."""
        ran = sum(max(0.0, min(at + seconds, end) - max(at, begin)) for at, seconds in self.ran)
        return ran / (end - begin) / self.slots


class _FarWorld(SteppedCore):
    """A scheduler with a nearby client, and workers at the test's distance."""

    slots = 2

    def __init__(self, task_seconds: float, *delays: float) -> None:
        super().__init__(
            SchedulerConfig(bind_address="tcp://127.0.0.1:0"), Allocation(), step_seconds=0.0005, check_every=500
        )
        self.task_seconds = task_seconds
        self.longer: dict[bytes, float] = {}
        """Durations of tasks that do not take `task_seconds`."""
        self._links: dict[bytes, Link] = {}
        self._ids = IdFactory(CLIENT)
        self._defined = False
        self.workers = [_Worker(b"w%d" % number, self, delay) for number, delay in enumerate(delays)]
        self._arrive(Opened(CLIENT, hello(Role.CLIENT, ClientDetails("simulated", ""))))
        for worker in self.workers:
            self._connect(worker)

    def seconds(self, task: bytes) -> float:
        return self.longer.get(task, self.task_seconds)

    def started(self, task: bytes) -> None:
        pass

    def killed(self, task: bytes) -> None:
        pass

    def submit(self, count: int) -> list[bytes]:
        ids = [self._ids.task() for _ in range(count)]
        group = TaskGroup(Spec(FUNCTIONS[0], retries=3), ids, [b"\x80 arguments"] * count, [()] * count)
        definitions = [] if self._defined else [(FUNCTIONS[0], CODE[FUNCTIONS[0]])]
        self._defined = True
        self._arrive(Received(CLIENT, Submit(definitions, [group], 0)))
        return ids

    def run_until(self, end: float) -> None:
        while self.now < end:
            self._advance()

    def waiting_at(self, worker: _Worker) -> int:
        return max(0, len(self.core.state.workers[worker.id].tasks) - worker.slots)

    def _connect(self, worker: _Worker) -> None:
        def arrive(message: Message) -> None:
            self._arrive(Received(worker.id, message))

        sessions = (Session(worker.id + b"session.", OutboxLimits(1_000_000, 1 << 40)) for _ in range(2))
        peer, server = End(next(sessions), worker.hear), End(next(sessions), arrive)
        link = self._links[worker.id] = Link(peer, server, self.later, _Steady(), worker.delay_seconds, 0.0)
        worker.say = lambda message: link.send(peer, message, self.now)
        details = WorkerDetails("simulated", worker.id.decode(), worker.slots, 1000, {})
        self._arrive(Opened(worker.id, hello(Role.WORKER, details)))
        self._beat(worker)

    def _beat(self, worker: _Worker) -> None:
        worker.say(worker.heartbeat())
        self.later(self.now + HEARTBEAT_SECONDS, partial(self._beat, worker))

    def _perform(self, commands: Sequence[Command]) -> None:
        for command in commands:
            match command:
                case Send(peer, message) if peer in self._links:
                    link = self._links[peer]
                    link.send(link.server, message, self.now)
                case _:
                    pass


@pytest.mark.parametrize("milliseconds", [1, 10, 50, 75, 200])
def test_workers_100_ms_away_stay_busy_with_tasks_of_any_length(milliseconds: int) -> None:
    seconds = milliseconds / 1000
    world = _FarWorld(seconds, 0.05, 0.05)
    end = MEASURED_SECONDS + max(0.8, 20 * seconds)
    world.submit(int(4 * end / seconds))
    world.run_until(end)
    shares = [worker.busy_share(MEASURED_SECONDS, end) for worker in world.workers]
    assert min(shares) > 0.9
    assert all(world.waiting_at(worker) * seconds < 2 * 0.2 + 2 * seconds for worker in world.workers), "hoards"


def test_near_workers_queue_no_more_than_before_and_distant_ones_up_to_a_limit() -> None:
    world = _FarWorld(0.01, 0.0001, 0.05, 60.0)
    near, far, _ = world.workers
    world.submit(3000)
    world.run_until(MEASURED_SECONDS)
    assert world.waiting_at(near) <= 2 * 5
    assert 2 * 14 <= world.waiting_at(far) <= 2 * 17
    lost = world.core.state.workers[world.workers[2].id]
    assert lost.full_load(0.0, 0) == 2 * 0.05, "a worker without a report"


def test_excess_tasks_of_a_distant_worker_return_if_they_turn_out_long() -> None:
    world = _FarWorld(0.01, 0.0001, 0.05)
    near, far = world.workers
    world.submit(800)
    world.run_until(MEASURED_SECONDS)
    ids = world.submit(60)
    world.longer = dict.fromkeys(ids, 2.0)
    begun = world.now
    world.run_until(begun + 60 * 2.0 / 4 + 4.0)
    assert not world.core.state.workers[far.id].tasks
    assert not world.core.state.workers[near.id].tasks
    counts = [sum(at > begun for at, _ in worker.ran) for worker in world.workers]
    assert sum(counts) == 60
    assert min(counts) >= 24, "every worker runs its share"
