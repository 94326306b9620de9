"""One workload under one policy, from the first task to the last unit's end. Everything follows from the seed."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random

from scaler.config.servers import SchedulerConfig
from scaler.ids import IdFactory, content_id
from scaler.net.connection import Broken, Closed, Opened, Received
from scaler.policy.guard import GuardedPolicy
from scaler.policy.view import ClusterView, ScalingPolicy, Wanted
from scaler.protocol import messages
from scaler.protocol.messages import (
    PROTOCOL_VERSION,
    AcknowledgeResults,
    ClientDetails,
    Desired,
    Details,
    Finished,
    Hello,
    Message,
    Role,
    Spec,
    Submit,
    TaskGroup,
    WorkerDetails,
)
from scaler.scheduler.core.commands import AskPolicy, Input, PolicyAnswered, Send
from scaler.scheduler.core.core import SchedulerCore
from scaler.scheduler.core.invariants import check
from scaler.testing.scaling.manager import SimulatedManager
from scaler.testing.scaling.workloads import Arrival, Workload
from scaler.testing.simulation.actors import ActorWorld, SimulatedWorker
from scaler.testing.simulation.chances import CALM

STEP_SECONDS = 0.005
"""The scheduler's turn: what arrives within it is one batch."""
LIMIT_SECONDS = 7200.0
FOREVER_SECONDS = 1e9
CALM_TASKS = replace(CALM, stored_results=0.0)
CLIENT = b"client.."


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a policy made of a workload. Times are in simulated seconds."""

    makespan_seconds: float
    """From the first task's arrival to the last one's end."""
    response_seconds: float
    """The same for each burst by itself, added up."""
    unit_seconds: float
    """Paid: from the start of each unit to its end."""
    most_units: int
    most_busy: int
    """The most units that had work at the same time."""
    flaps: int
    """The most changes of direction, up or down, that a manager was told between two bursts."""
    scaled_down: int
    """Tasks that were lost or had to run again because their unit was stopped."""
    lost: int
    """Tasks that did not end well, for whatever reason."""

    @property
    def overshoot(self) -> int:
        """Units at the peak beyond those that ever had work at once."""
        return self.most_units - self.most_busy


def simulate(
    workload: Workload,
    policy: ScalingPolicy,
    startup_seconds: float,
    *,
    ends_at_once: bool = False,
    check_every: int = 0,
) -> Outcome:
    """Run a workload. startup_seconds: of the fleets that have none of their own.

    ends_at_once: units end with the last task, whatever the policy says. check_every: so many steps apart, all
    invariants of the core are checked; 0 for never. Raises AssertionError when tasks still wait after two hours.
    """
    return ScalingWorld(workload, policy, startup_seconds, check_every).run(ends_at_once)


class _Watched:
    """A policy, and what it wanted when."""

    def __init__(self, policy: ScalingPolicy) -> None:
        self.allocation = policy.allocation
        self.wanted: dict[str, list[tuple[float, int]]] = {}
        self._policy = policy

    def plan(self, view: ClusterView) -> dict[str, Wanted]:
        answer = self._policy.plan(view)
        for manager_id, wanted in answer.items():
            units = self.wanted.setdefault(manager_id, [(view.now, 0)])
            if units[-1][1] != wanted.units:
                units.append((view.now, wanted.units))
        return answer

    def flaps(self, bursts: Sequence[float]) -> int:
        most = 0
        for wanted in self.wanted.values():
            for begin, end in itertools.pairwise([*bursts, FOREVER_SECONDS]):
                before = [units for at, units in wanted if at <= begin][-1:]
                series = before + [units for at, units in wanted if begin < at <= end]
                ups = [after > first for first, after in itertools.pairwise(series)]
                most = max(most, sum(first != after for first, after in itertools.pairwise(ups)))
        return most


class _UnitWorker(SimulatedWorker):
    """The worker of a unit: its tasks take as long as the workload says."""

    def __init__(self, identifier: bytes, world: ActorWorld, seconds: dict[bytes, float]) -> None:
        super().__init__(identifier, 1, False, world, Random(0), CALM_TASKS)  # noqa: S311
        self._durations = seconds

    def duration(self, spec: Spec, task: bytes) -> float:
        del spec
        return self._durations[task]


class ScalingWorld:
    """The clock, the real core, the client, and the workers of all units."""

    def __init__(self, workload: Workload, policy: ScalingPolicy, startup_seconds: float, check_every: int) -> None:
        self.now = 0.0
        self._workload = workload
        self._policy = _Watched(policy)
        self._guard = GuardedPolicy(self._policy)
        config = SchedulerConfig(
            bind_address="tcp://127.0.0.1:0",
            client_timeout_seconds=FOREVER_SECONDS,
            worker_timeout_seconds=FOREVER_SECONDS,
        )
        self._core = SchedulerCore(config, policy.allocation, self.now)
        self._check_every = check_every
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._inbox: list[Input] = []
        self._step_at = FOREVER_SECONDS
        self._steps = 0
        self._durations: dict[bytes, float] = {}
        self._burst_of: dict[bytes, int] = {}
        self._burst_ends = [0.0] * len(workload.bursts)
        self._ids = IdFactory(CLIENT)
        self._numbers = itertools.count(1)
        self._workers: dict[bytes, SimulatedWorker] = {}
        self._most_busy = self._units = self._most_units = 0
        self._ended = self._failed = self._scaled_down = 0
        self._arrive(Opened(CLIENT, _hello(Role.CLIENT, ClientDetails("workload"))))
        self._managers: dict[bytes, SimulatedManager] = {}
        for fleet in workload.fleets:
            peer = next(self._numbers).to_bytes(8, "big")
            self._managers[peer] = SimulatedManager(peer, fleet, startup_seconds, self)
        for arrival in workload.arrivals:
            self.later(arrival.at, partial(self._submit, arrival))

    def run(self, ends_at_once: bool) -> Outcome:
        for manager in self._managers.values():
            self._arrive(Opened(manager.peer, _hello(Role.MANAGER, manager.details)))
            manager.beat()
        while self._ended < self._workload.tasks:
            assert self.now < LIMIT_SECONDS, f"{self._workload.tasks - self._ended} tasks wait after {self.now:.0f} s"
            self._turn()
        while self._units and not ends_at_once:
            assert self.now < LIMIT_SECONDS, f"{self._units} units are left after {self.now:.0f} s"
            self._turn()
        bursts = self._workload.bursts
        return Outcome(
            makespan_seconds=max(self._burst_ends) - bursts[0],
            response_seconds=sum(end - begin for begin, end in zip(bursts, self._burst_ends, strict=True)),
            unit_seconds=sum(manager.paid_seconds(self.now) for manager in self._managers.values()),
            most_units=self._most_units,
            most_busy=self._most_busy,
            flaps=self._policy.flaps(bursts),
            scaled_down=self._scaled_down,
            lost=self._failed,
        )

    # -- time

    def later(self, at: float, action: Callable[[], None]) -> None:
        """Do this at that time."""
        heapq.heappush(self._queue, (at, next(self._order), action))

    def _turn(self) -> None:
        self.now, _, action = heapq.heappop(self._queue)
        action()

    def _wake_core(self, at: float) -> None:
        if at < self._step_at:
            self._step_at = at
            self.later(at, self._step)

    def _arrive(self, item: Input) -> None:
        self._inbox.append(item)
        self._wake_core(self.now + STEP_SECONDS)

    def _step(self) -> None:
        if self.now < self._step_at:
            return  # an earlier wake-up has done it
        self._step_at = FOREVER_SECONDS
        inputs, self._inbox = self._inbox, []
        commands = self._core.step(inputs, self.now)
        self._steps += 1
        if self._check_every and self._steps % self._check_every == 0:
            check(self._core.state)
        for command in commands:
            if isinstance(command, Send):
                self._deliver(command.peer, command.message)
            elif isinstance(command, AskPolicy):
                self._arrive(PolicyAnswered(*self._guard.plan(command.view)))
        self._wake_core(max(self._core.next_step_at(self.now), self.now + STEP_SECONDS))

    def _deliver(self, peer: bytes, message: Message) -> None:
        if peer == CLIENT:
            self._finished(message)
        elif peer in self._managers:
            if isinstance(message, Desired):
                self._managers[peer].hear(message)
        elif peer in self._workers:
            self._workers[peer].hear(message)

    # -- the client

    def _submit(self, arrival: Arrival) -> None:
        function = content_id(arrival.function.encode())
        ids = [self._ids.task() for _ in arrival.seconds]
        self._durations.update(zip(ids, arrival.seconds, strict=True))
        burst = sum(begin <= arrival.at for begin in self._workload.bursts) - 1
        self._burst_of.update(dict.fromkeys(ids, burst))
        spec = Spec(function, name=arrival.function, needs=arrival.needs)
        group = TaskGroup(spec, ids, [b"\x80 arguments"] * len(ids), [])
        self._arrive(Received(CLIENT, Submit([(function, b"\x80 a function")], [group], 0)))

    def _finished(self, message: Message) -> None:
        if not isinstance(message, Finished):
            return
        for task, result in zip(message.ids, message.outcomes, strict=True):
            self._ended += 1
            self._failed += result != messages.Outcome.SUCCESS
            self._burst_ends[self._burst_of[task]] = self.now
        self._arrive(Received(CLIENT, AcknowledgeResults(message.number)))

    # -- what managers and workers need of the world

    def say(self, peer: bytes, message: Message) -> None:
        """A manager or worker says something."""
        self._arrive(Received(peer, message))

    def started(self, task: bytes) -> None:
        """A worker began a task."""
        del task
        self._most_busy = max(self._most_busy, sum(worker.running > 0 for worker in self._workers.values()))

    def killed(self, task: bytes) -> None:
        """A worker was told to cancel a task, which no workload does."""
        raise AssertionError(f"task {task.hex()} is cancelled")

    def unit_started(self) -> bytes:
        """Count a unit; returns an id for its worker."""
        self._units += 1
        self._most_units = max(self._most_units, self._units)
        return next(self._numbers).to_bytes(8, "big")

    def worker_joined(self, peer: bytes, details: WorkerDetails) -> None:
        worker = self._workers[peer] = _UnitWorker(peer, self, self._durations)
        worker.say = partial(self.say, peer)
        self._arrive(Opened(peer, _hello(Role.WORKER, details)))

    def unit_ended(self, peer: bytes, *, stopped: bool) -> None:
        """A unit is gone: stopped by its manager, or lost. Its worker goes with it, if it has come."""
        self._units -= 1
        worker = self._workers.pop(peer, None)
        if worker is None:
            return
        worker.alive = False
        if stopped:
            known = self._core.state.workers.get(peer)
            self._scaled_down += len(known.tasks) if known is not None else 0
        self._arrive(Closed(peer, "drained") if stopped else Broken(peer))


def _hello(role: Role, details: Details) -> Hello:
    return Hello(role, False, PROTOCOL_VERSION, "", "", "", "simulated", 1, details)
