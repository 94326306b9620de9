"""The simulated world: time, network, failures, and the final checks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

from scaler.config.servers import SchedulerConfig
from scaler.net.connection import Broken, Closed, Opened, Received, Resumed
from scaler.policy.load import GuardedPolicy
from scaler.policy.view import Allocation, ClusterView, ScalingPolicy, Wanted
from scaler.protocol.messages import ClientDetails, ForgetObjects, Hello, Message, Outcome, Role, WorkerDetails
from scaler.protocol.session import OutboxLimits, Session
from scaler.scheduler.core.commands import (
    AskPolicy,
    Command,
    Expel,
    MonitoringChanged,
    PolicyAnswered,
    Publish,
    Send,
    SendToStorage,
)
from scaler.scheduler.core.rooms import Rooms
from scaler.testing.invariants import check
from scaler.testing.simulation.actors import Chances, SimulatedClient, SimulatedWorker
from scaler.testing.simulation.link import End, Link
from scaler.testing.simulation.stepping import SteppedCore, hello
from scaler.testing.simulation.watcher import SimulatedMonitor

HEARTBEAT_SECONDS = 2.0
RECONNECT_SECONDS = 0.3
STEP_SECONDS = 0.0005
"""One iteration of the scheduler's loop. Inputs within an iteration form one batch."""
BURST_SECONDS = 0.02
GPU_EVERY = 3
"""Every third worker offers a gpu, as does its replacement, so no task waits forever."""


class _NoScaling:
    """Leaves the size of the cluster to the simulation."""

    allocation = Allocation()

    def plan(self, view: ClusterView) -> dict[str, Wanted]:
        del view
        return {}


@dataclass(slots=True)
class SimulationReport:
    """Result of a run. core_seconds and worst_step_seconds are real time, other times are simulated."""

    tasks: int
    outcomes: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(Outcome, 0))
    simulated_seconds: float = 0.0
    core_seconds: float = 0.0
    worst_step_seconds: float = 0.0
    steps: int = 0
    breaks: int = 0
    worker_losses: int = 0
    client_losses: int = 0
    forgotten_objects: int = 0
    happened: Counter[str] = field(default_factory=Counter)
    """Counts of further failures, by name."""


Actor = SimulatedWorker | SimulatedClient
_Kind = TypeVar("_Kind", SimulatedWorker, SimulatedClient)


class World(SteppedCore):
    """One simulated cluster, deterministic by seed.

    `run` raises AssertionError if an invariant or a guarantee does not hold.
    """

    def __init__(  # noqa: PLR0913 (all by name: the knobs of an experiment)
        self,
        *,
        seed: int,
        workers: int,
        clients: int,
        tasks: int,
        chances: Chances,
        slots: int = 1,
        burst: int = 200,
        check_every: int = 1,
        policy: ScalingPolicy | None = None,
        limit_seconds: float = 3600.0,
        settle_seconds: float = 65.0,
        watched: bool = False,
        rooms: Rooms | None = None,
    ) -> None:
        policy = policy or _NoScaling()
        self._policy = GuardedPolicy(policy)
        self._config = SchedulerConfig(bind_address="tcp://127.0.0.1:0")
        super().__init__(
            self._config, policy.allocation, step_seconds=STEP_SECONDS, check_every=check_every, rooms=rooms
        )
        self._watcher = SimulatedMonitor(self.core.state) if watched else None
        self._random = Random(seed)  # noqa: S311 (a simulation must repeat itself)
        self._chances = chances
        self._slots = slots
        self._burst = burst
        self._limit_seconds = limit_seconds
        self._settle_seconds = settle_seconds
        self._inbox.append(MonitoringChanged(watched))
        self._links: dict[bytes, Link] = {}
        self._actors: dict[bytes, Actor] = {}
        self._clients: list[SimulatedClient] = []
        self._starts: Counter[bytes] = Counter()
        self._killed: set[bytes] = set()
        self._frozen: set[bytes] = set()
        self._said_again: set[bytes] = set()
        """Tasks of clients that were dropped and returned. These tasks may run again."""
        self._died_at: dict[bytes, float] = {}
        self._report = SimulationReport(tasks)
        for number in range(workers):
            self._add_worker(gpu=number % GPU_EVERY == 0)
        for number in range(clients):
            self._add_client(tasks // clients + (number < tasks % clients))
        for rate, misfortune in (
            (chances.breaks_per_second, self._break_one),
            (chances.worker_crashes_per_second, self._crash_worker),
            (chances.worker_freezes_per_second, self._freeze_worker),
            (chances.client_crashes_per_second, self._crash_client),
            (chances.client_freezes_per_second, self._freeze_client),
        ):
            if rate:
                self._sometimes(rate, misfortune)

    def started(self, task: bytes) -> None:
        assert task not in self._killed or task in self._said_again, (
            f"task {task.hex()} was cancelled on a worker, but runs again"
        )
        self._starts[task] += 1

    def killed(self, task: bytes) -> None:
        self._killed.add(task)

    def run(self) -> SimulationReport:
        """Run until every client has all outcomes and all leases of dead peers have ended, then check the results."""
        self._wake_core(0.0)
        while not self._is_done():
            assert self.now < self._limit_seconds, f"tasks are still waiting after {self.now:.0f} simulated seconds"
            self._advance()
        until = self.now + self._settle_seconds
        while self.now < until:
            self._advance()
        return self._judge()

    def _is_done(self) -> bool:
        return all(client.finished or not client.alive for client in self._clients)

    def _perform(self, commands: Sequence[Command]) -> None:
        for command in commands:
            match command:
                case Publish(facts):
                    if self._watcher is not None:
                        self._watcher.add(facts, self.now)
                case AskPolicy(view):
                    self._arrive(PolicyAnswered(*self._policy.plan(view)))
                case Send(peer, message):
                    if self._watcher is not None:
                        self._watcher.hear(message)
                    link = self._links.get(peer)
                    if link is not None:
                        link.send(link.server, message, self.now)
                case Expel(peer):
                    self._expelled(peer)
                case SendToStorage(ForgetObjects(ids)):
                    self._report.forgotten_objects += len(ids)
                case _:
                    pass
        if self._watcher is not None:
            self._watcher.report(self.now)

    # -- peers

    def _add_worker(self, gpu: bool) -> None:
        slots = max(2, self._slots) if gpu else self._slots  # some tasks take two slots
        worker = SimulatedWorker(self._random.randbytes(8), slots, gpu, self, self._random, self._chances)
        self._connect(worker)

    def _add_client(self, tasks: int) -> None:
        client = self._make_client(tasks)
        self._clients.append(client)
        self._begin(client)

    def _begin(self, client: SimulatedClient) -> None:
        self._connect(client)

        def burst() -> None:
            if client.alive and not client.finished:
                if len(client.expected) < 20 * self._burst:
                    client.burst(self._burst)
                self.later(self.now + BURST_SECONDS, burst)

        self.later(self.now, burst)

    def _make_client(self, tasks: int) -> SimulatedClient:
        return SimulatedClient(self._random.randbytes(8), tasks, self, self._random, self._chances)

    def _connect(self, actor: Actor) -> None:
        session_id = actor.id + self._random.randbytes(8)

        def hear(message: Message) -> None:
            if actor.alive:
                actor.hear(message)

        peer = End(_session(session_id), hear)
        server = End(_session(session_id), lambda message: self._arrive(Received(actor.id, message)))
        link = Link(peer, server, self.later, self._random, self._chances.delay_seconds, self._chances.repeats)
        fresh = self._actors.get(actor.id) is not actor
        self._links[actor.id] = link
        self._actors[actor.id] = actor
        actor.say = lambda message: link.send(link.peer, message, self.now)
        greeting = _hello(actor)
        greeting.resume = isinstance(actor, SimulatedClient) and not fresh
        self._arrive(Opened(actor.id, greeting))
        if fresh:
            self._beat(actor)

    def _beat(self, actor: Actor) -> None:
        def beat() -> None:
            link = self._links.get(actor.id)
            if not actor.alive or link is None:
                return
            link.send(link.peer, actor.heartbeat(), self.now)
            self.later(self.now + HEARTBEAT_SECONDS, beat)

        self.later(self.now + self._random.random() * HEARTBEAT_SECONDS, beat)

    def _expelled(self, peer: bytes) -> None:
        link = self._links.get(peer)
        actor = self._actors.get(peer)
        if link is None or actor is None:
            return
        if link.up:
            link.drop()
        if isinstance(actor, SimulatedWorker):
            self._report.worker_losses += 1
            if actor.alive:
                actor.restart()
                self.later(self.now + RECONNECT_SECONDS, lambda: self._connect(actor))
        elif actor.alive:
            self._report.client_losses += 1
            self.later(self.now + RECONNECT_SECONDS, lambda: self._client_returns(actor))

    def _client_returns(self, client: SimulatedClient) -> None:
        if client.alive:
            self._connect(client)
            client.restart()
            self._said_again.update(client.expected)

    # -- failures

    def _sometimes(self, rate: float, misfortune: Callable[[], None]) -> None:
        def strike() -> None:
            misfortune()
            self.later(self.now + self._random.expovariate(rate), strike)

        self.later(self.now + self._random.expovariate(rate), strike)

    def _living(self, kind: type[_Kind]) -> Sequence[_Kind]:
        return [
            actor
            for key, actor in self._actors.items()
            if isinstance(actor, kind) and actor.alive and self._links[key].up and key not in self._frozen
        ]

    def _break_one(self) -> None:
        actors: list[Actor] = []
        if self._random.random() < 0.3:
            actors.extend(self._living(SimulatedClient))
        if not actors:
            actors.extend(self._living(SimulatedWorker))
        if not actors:
            return
        actor = self._random.choice(actors)
        link = self._links[actor.id]
        self._report.breaks += 1
        link.drop()
        epoch = link.epoch
        self._arrive(Broken(actor.id))

        def come_back() -> None:
            if actor.alive and self._links.get(actor.id) is link and link.epoch == epoch and not link.up:
                link.resume(self.now)
                self._arrive(Resumed(actor.id))

        self.later(self.now + self._random.expovariate(1 / RECONNECT_SECONDS), come_back)

    def _crash_worker(self) -> None:
        workers = self._living(SimulatedWorker)
        if len(workers) < 2:
            return
        worker = self._random.choice(workers)
        self._report.worker_losses += 1
        self._die(worker, goodbye=0.3)
        self.later(self.now + self._random.uniform(0.1, 2.0), lambda: self._add_worker(worker.gpu))

    def _die(self, actor: Actor, goodbye: float) -> None:
        actor.alive = False
        self._links[actor.id].drop()
        says_goodbye = self._random.random() < goodbye
        self._arrive(Closed(actor.id, "goodbye") if says_goodbye else Broken(actor.id))

    def _freeze_worker(self) -> None:
        workers = self._living(SimulatedWorker)
        if len(workers) > 1:
            self._freeze(self._random.choice(workers))

    def _freeze(self, actor: Actor) -> None:
        self._frozen.add(actor.id)
        link = self._links[actor.id]
        thaw = self.now + self._chances.freeze_seconds
        link.wire_clear_at = dict.fromkeys(link.wire_clear_at, thaw)
        self.later(thaw, lambda: self._frozen.discard(actor.id))

    def _crash_client(self) -> None:
        """Crash a client during its work. Half of the clients close their sessions, and the rest time out."""
        clients = self._living(SimulatedClient)
        if len(clients) < 2:
            return
        client = self._random.choice(clients)
        self._died_at[client.id] = self.now
        self._report.client_losses += 1
        self._die(client, goodbye=0.5)
        # The user restarts the program, which submits the rest.
        left = client.unfinished
        self.later(self.now + self._random.uniform(0.1, 2.0), lambda: self._add_client(left))

    def _freeze_client(self) -> None:
        clients = self._living(SimulatedClient)
        if clients:
            self._freeze(self._random.choice(clients))

    # -- final checks

    def _judge(self) -> SimulationReport:
        check(self.core.state)
        if self._watcher is not None:
            self._watcher.judge(self.now)
        report = self._report
        for client in self._clients:
            for outcome, count in client.outcomes.items():
                report.outcomes[outcome] += count
        assert not report.outcomes[Outcome.OBJECT_LOST], "no object is lost in a world that keeps all objects"
        if self._settle_seconds > self._config.client_timeout_seconds:
            lost = [client for client in self._clients if not client.alive and client.id in self.core.state.clients]
            recent = sum(self._died_at[client.id] > self.now - self._settle_seconds for client in lost)
            assert len(lost) <= recent, "the core keeps no client beyond its lease"
        once = {task for client in self._clients for task in client.once}
        for task, count in self._starts.items():
            assert count == 1 or task not in once, f"task {task.hex()} may start once, but started {count} times"
        report.simulated_seconds, report.core_seconds = self.now, self._core_seconds
        report.worst_step_seconds, report.steps = self._worst_step_seconds, self._steps
        return report


def _session(session_id: bytes) -> Session:
    return Session(session_id, OutboxLimits(1_000_000, 1 << 40))


def _hello(actor: Actor) -> Hello:
    if isinstance(actor, SimulatedWorker):
        capabilities: dict[str, float | None] = {"gpu": 2.0, "memory": 8.0} if actor.gpu else {"memory": 4.0}
        details = WorkerDetails("simulated", actor.id.hex(), actor.slots, 1000, capabilities)
        return hello(Role.WORKER, details)
    return hello(Role.CLIENT, ClientDetails("simulated", actor.session))
