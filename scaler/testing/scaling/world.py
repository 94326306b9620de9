"""One workload under one policy, from the first task to the last unit's end, deterministic by seed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random

from scaler.config.servers import SchedulerConfig
from scaler.ids import IdFactory, content_id
from scaler.net.connection import Broken, Closed, Opened, Received
from scaler.policy.load import GuardedPolicy
from scaler.policy.view import ClusterView, ScalingPolicy
from scaler.policy.warm import WARM_KEYS
from scaler.protocol import messages
from scaler.protocol.messages import (
    AcknowledgeResults,
    ClientDetails,
    Desired,
    Finished,
    ManagerDetails,
    ManagerStatus,
    Message,
    Role,
    Spec,
    Submit,
    TaskGroup,
    UnitState,
    WorkerDetails,
)
from scaler.scheduler.core.commands import AskPolicy, Command, PolicyAnswered, Send
from scaler.testing.scaling.competitors import TaskWatcher, flaps_of
from scaler.testing.scaling.workloads import Arrival, UnitPool, Workload
from scaler.testing.simulation.actors import CALM, SimulatedWorker
from scaler.testing.simulation.stepping import SteppedCore, hello
from scaler.worker_manager.backend import Unit
from scaler.worker_manager.reconcile import Reconciler, UnitsWanted

STEP_SECONDS = 0.005
"""One iteration of the scheduler. Inputs within an iteration form one batch."""
LIMIT_SECONDS = 200_000.0
HEARTBEAT_SECONDS = 2.0
ROUND_GAP_SECONDS = 0.05
LISTED_AFTER_END_SECONDS = 60.0
JITTER = 0.5
SPREAD = 0.1
"""Relative spread of start-up times around the mean."""
FOREVER_SECONDS = 1e9
INLINE_RESULTS = replace(CALM, stored_results=0.0)
CLIENT = b"client.."


@dataclass(frozen=True, slots=True)
class ScalingOutcome:
    """The result of a workload under a policy. Times are in simulated seconds."""

    makespan_seconds: float
    """From the first task's arrival to the last task's end."""
    response_seconds: float
    """Sum of the bursts' makespans."""
    unit_seconds: float
    """Paid time: from the start of each unit (after any queue) to its end, times its price."""
    most_units: int
    most_busy: int
    """Maximum number of units that had work at the same time."""
    flaps: int
    """Maximum changes of direction, up or down, of a manager's wanted units between two bursts."""
    restarts: int
    """Number of units wanted within a start-up time after a manager was asked to stop one."""
    scaled_down: int
    """Tasks that were lost or rerun because their unit was stopped."""
    lost: int
    """Tasks that did not succeed."""
    given_late: int = 0
    """Tasks sent to slots where they begin late."""

    @property
    def overshoot(self) -> int:
        """Units at the peak beyond the maximum that had work at once."""
        return self.most_units - self.most_busy


def simulate(
    workload: Workload,
    policy: ScalingPolicy,
    startup_seconds: float,
    *,
    ends_at_once: bool = False,
    check_every: int = 0,
) -> ScalingOutcome:
    """Simulate a workload under a policy, and return the outcome.

    startup_seconds: for unit pools without their own start-up time. ends_at_once: units end with the last task,
    regardless of the policy. check_every: interval in steps at which all invariants of the core are checked, 0 for
    never. Raises AssertionError if tasks still wait after two simulated days.
    """
    return ScalingWorld(workload, policy, startup_seconds, check_every).run(ends_at_once)


def _flaps(series: Sequence[tuple[float, int]], bursts: Sequence[float]) -> int:
    most = 0
    for begin, end in itertools.pairwise([*bursts, FOREVER_SECONDS]):
        before = [units for at, units in series if at <= begin][-1:]
        ups = [
            after > first
            for first, after in itertools.pairwise(before + [units for at, units in series if begin < at <= end])
        ]
        most = max(most, sum(first != after for first, after in itertools.pairwise(ups)))
    return most


class _UnitWorker(SimulatedWorker):
    """The worker of a unit. Its tasks have the workload's durations."""

    def __init__(
        self, identifier: bytes, slots: int, world: ScalingWorld, seconds: dict[bytes, float], dispatch_seconds: float
    ) -> None:
        super().__init__(identifier, slots, False, world, Random(0), INLINE_RESULTS)  # noqa: S311
        self._durations = seconds
        self._dispatch_seconds = dispatch_seconds
        self._note_late = world.given_late

    def duration(self, spec: Spec, task: bytes) -> float:
        del spec
        if self._dispatch_seconds:
            self._note_late()
        return self._dispatch_seconds + self._durations[task]

    def _report(
        self, identifier: bytes, attempt: int, outcome: messages.Outcome, payload: bytes, seconds: float
    ) -> None:
        super()._report(identifier, attempt, outcome, payload, seconds - self._dispatch_seconds)


class ScalingWorld(SteppedCore):
    def __init__(self, workload: Workload, policy: ScalingPolicy, startup_seconds: float, check_every: int) -> None:
        self._workload = workload
        self._guard = GuardedPolicy(policy)
        self._watcher = policy if isinstance(policy, TaskWatcher) else None
        self._function_of: dict[bytes, str] = {}
        self._wanted: dict[str, list[tuple[float, int]]] = {}
        config = SchedulerConfig(
            bind_address="tcp://127.0.0.1:0",
            client_timeout_seconds=FOREVER_SECONDS,
            worker_timeout_seconds=FOREVER_SECONDS,
        )
        super().__init__(config, policy.allocation, step_seconds=STEP_SECONDS, check_every=check_every)
        self._durations: dict[bytes, float] = {}
        self._burst_of: dict[bytes, int] = {}
        self._burst_ends = [0.0] * len(workload.bursts)
        self._ids = IdFactory(CLIENT)
        self._numbers = itertools.count(1)
        self._workers: dict[bytes, SimulatedWorker] = {}
        self._most_busy = self._units = self._most_units = 0
        self._given_late = 0
        self._ended = self._failed = self._scaled_down = 0
        self._arrive(Opened(CLIENT, hello(Role.CLIENT, ClientDetails("workload"))))
        self._managers: dict[bytes, SimulatedManager] = {}
        for pool in workload.pools:
            peer = next(self._numbers).to_bytes(8, "big")
            self._managers[peer] = SimulatedManager(peer, pool, startup_seconds, self)
        for arrival in workload.arrivals:
            self.later(arrival.at, partial(self._submit, arrival))

    def open_managers(self) -> None:
        for manager in self._managers.values():
            self._arrive(Opened(manager.peer, hello(Role.MANAGER, manager.details)))
            manager.beat()

    def run(self, ends_at_once: bool) -> ScalingOutcome:
        self.open_managers()
        while self._ended < self._workload.tasks:
            assert self.now < LIMIT_SECONDS, (
                f"{self._workload.tasks - self._ended} tasks are waiting after {self.now:.0f} s"
            )
            self._advance()
        while self._units and not ends_at_once:
            assert self.now < LIMIT_SECONDS, f"{self._units} units are left after {self.now:.0f} s"
            self._advance()
        bursts = self._workload.bursts
        return ScalingOutcome(
            makespan_seconds=max(self._burst_ends) - bursts[0],
            response_seconds=sum(end - begin for begin, end in zip(bursts, self._burst_ends, strict=True)),
            unit_seconds=sum(manager.paid_seconds(self.now) for manager in self._managers.values()),
            most_units=self._most_units,
            most_busy=self._most_busy,
            flaps=max((_flaps(series, bursts) for series in self._wanted.values()), default=0),
            restarts=sum(
                flaps_of(self._wanted.get(manager.name, ()), manager.reach_seconds)
                for manager in self._managers.values()
            ),
            scaled_down=self._scaled_down,
            lost=self._failed,
            given_late=self._given_late,
        )

    def _perform(self, commands: Sequence[Command]) -> None:
        for command in commands:
            if isinstance(command, Send):
                self._deliver(command.peer, command.message)
            elif isinstance(command, AskPolicy):
                self._ask(command.view)

    def _ask(self, view: ClusterView) -> None:
        answer, complaint = self._guard.plan(view)
        for manager_id, wanted in answer.items():
            series = self._wanted.setdefault(manager_id, [(view.now, 0)])
            if series[-1][1] != wanted.units:
                series.append((view.now, wanted.units))
        self._arrive(PolicyAnswered(answer, complaint))

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
        code = b"\x80" + arrival.function.encode()
        function = content_id(code)
        ids = [self._ids.task() for _ in arrival.seconds]
        self._durations.update(zip(ids, arrival.seconds, strict=True))
        burst = sum(begin <= arrival.at for begin in self._workload.bursts) - 1
        self._burst_of.update(dict.fromkeys(ids, burst))
        self._function_of.update(dict.fromkeys(ids, arrival.function))
        spec = Spec(function, name=arrival.function, needs=arrival.needs)
        group = TaskGroup(spec, ids, [b"\x80 arguments"] * len(ids), [])
        self._arrive(Received(CLIENT, Submit([(function, code)], [group], 0)))

    def _finished(self, message: Message) -> None:
        if not isinstance(message, Finished):
            return
        for task, result in zip(message.ids, message.outcomes, strict=True):
            self._ended += 1
            if self._watcher is not None:
                self._watcher.task_ended(self._function_of[task], task, self.now)
            self._failed += result != messages.Outcome.SUCCESS
            self._burst_ends[self._burst_of[task]] = self.now
        self._arrive(Received(CLIENT, AcknowledgeResults(message.number)))

    # -- called by managers and workers

    def say(self, peer: bytes, message: Message) -> None:
        self._arrive(Received(peer, message))

    def given_late(self) -> None:
        self._given_late += 1

    def started(self, task: bytes) -> None:
        if self._watcher is not None:
            self._watcher.task_started(self._function_of[task], task, self.now)
        self._most_busy = max(self._most_busy, sum(worker.running > 0 for worker in self._workers.values()))

    def killed(self, task: bytes) -> None:
        """Fail: no workload cancels tasks."""
        raise AssertionError(f"task {task.hex()} is cancelled")

    def unit_started(self) -> bytes:
        self._units += 1
        self._most_units = max(self._most_units, self._units)
        return next(self._numbers).to_bytes(8, "big")

    def worker_joined(self, peer: bytes, details: WorkerDetails, dispatch_seconds: float) -> None:
        worker = _UnitWorker(peer, details.slots, self, self._durations, dispatch_seconds)
        self._workers[peer] = worker
        worker.say = partial(self.say, peer)
        self._arrive(Opened(peer, hello(Role.WORKER, details)))

    def unit_ended(self, peer: bytes, *, stopped: bool) -> None:
        self._units -= 1
        worker = self._workers.pop(peer, None)
        if worker is None:
            return
        worker.alive = False
        if stopped:
            known = self.core.state.workers.get(peer)
            self._scaled_down += len(known.tasks) if known is not None else 0
        self._arrive(Closed(peer, "drained") if stopped else Broken(peer))


@dataclass(slots=True)
class _Unit:
    """began: start of payment, which a queue delays."""

    worker: bytes
    born: float
    began: float
    state: UnitState = UnitState.PENDING
    ended: float = math.inf

    def has_begun(self, now: float) -> bool:
        return self.began < min(self.ended, now)


class SimulatedManager:
    """A worker manager: the real reconciler over simulated units, which fail according to their pool."""

    def __init__(self, peer: bytes, pool: UnitPool, startup_seconds: float, world: ScalingWorld) -> None:
        self.peer = peer
        self.details = ManagerDetails(
            pool.manager_id,
            "simulated",
            capabilities=dict(pool.capabilities),
            max_slots=pool.max_units * pool.unit_slots,
            unit_slots=pool.unit_slots,
            unit_price=pool.price,
            unit_minimum_seconds=pool.minimum_seconds,
            usual_dispatch_seconds=pool.dispatch_seconds,
            **{key: getattr(pool, key) for key in WARM_KEYS},
        )
        self._pool = pool
        self._startup_seconds = startup_seconds if pool.startup_seconds is None else pool.startup_seconds
        if pool.known_startup:
            self.details = replace(self.details, usual_startup_seconds=self._startup_seconds)
        self._world = world
        self._random = Random(pool.manager_id)  # noqa: S311 (a simulation must repeat itself)
        self._reconciler = Reconciler(pool.max_units)
        self._units: dict[str, _Unit] = {}
        self._wanted = UnitsWanted(None)
        self._next_round = math.inf
        if pool.reclaimed_at is not None:
            world.later(pool.reclaimed_at, self._reclaim)

    @property
    def name(self) -> str:
        return self._pool.manager_id

    @property
    def reach_seconds(self) -> float:
        """Mean time from the request of a unit to its worker."""
        shortest, longest = self._pool.queue_seconds or (0.0, 0.0)
        return self._startup_seconds + (shortest + longest) / 2

    @property
    def starts(self) -> int:
        return len(self._units)

    @property
    def alive(self) -> int:
        """Number of units that have started and not ended, including pending ones."""
        return sum(unit.ended == math.inf for unit in self._units.values())

    def lose_oldest(self) -> None:
        self._end(next(name for name, unit in self._units.items() if unit.state is UnitState.RUNNING), UnitState.FAILED)

    def paid_seconds(self, now: float) -> float:
        least = self._pool.minimum_seconds
        paid = sum(
            max(least, min(unit.ended, now) - unit.began) for unit in self._units.values() if unit.has_begun(now)
        )
        return self._pool.price * paid

    def hear(self, message: Desired) -> None:
        wanted = message.units + message.draining
        connected = {*self._wanted.connected, *message.joined}.difference(message.left)
        self._wanted = UnitsWanted(wanted, frozenset(message.drained), connected)
        self._round_at(self._world.now + ROUND_GAP_SECONDS)

    def beat(self) -> None:
        self._round_at(self._world.now)
        self._world.later(self._world.now + HEARTBEAT_SECONDS, self.beat)

    def _round_at(self, at: float) -> None:
        if at < self._next_round:
            self._next_round = at
            self._world.later(at, self._round)

    def _round(self) -> None:
        now = self._world.now
        if now < self._next_round:
            return
        self._next_round = math.inf
        units = [
            Unit(name, unit.state, 1, now - unit.born, "it was lost" if unit.state is UnitState.FAILED else "")
            for name, unit in self._units.items()
            if now - unit.ended < LISTED_AFTER_END_SECONDS
        ]
        decision = self._reconciler.step(self._wanted, units, now, JITTER)
        self._world.say(self.peer, ManagerStatus(now, units, decision.reason))
        for name in decision.stop:
            self._end(name, UnitState.STOPPED)
        if decision.start:
            self._reconciler.started(now)
            for _ in range(decision.start):
                self._start()
        self._round_at(now + max(ROUND_GAP_SECONDS, decision.again))

    def _start(self) -> str:
        world, pool = self._world, self._pool
        name = f"{pool.manager_id}-{len(self._units) + 1}"
        queued = 0.0 if pool.queue_seconds is None else self._random.uniform(*pool.queue_seconds)
        unit = self._units[name] = _Unit(world.unit_started(), world.now, world.now + queued)
        if queued:
            unit.state = UnitState.WAITING
            world.later(unit.began, lambda: self._leave_queue(unit))
        startup = self._startup_seconds * self._random.uniform(1 - SPREAD, 1 + SPREAD)
        if self._random.random() < pool.dies_starting:
            world.later(unit.began + startup / 2, lambda: self._end(name, UnitState.FAILED))
            return name
        world.later(unit.began + startup, lambda: self._joined(name))
        if pool.life_seconds is not None:
            life = self._random.expovariate(1 / pool.life_seconds)
            world.later(unit.began + startup + life, lambda: self._end(name, UnitState.FAILED))
        return name

    def _leave_queue(self, unit: _Unit) -> None:
        if unit.state is UnitState.WAITING:
            unit.state = UnitState.PENDING
            self._round_at(self._world.now + ROUND_GAP_SECONDS)

    def _joined(self, name: str) -> None:
        unit = self._units[name]
        if unit.state is not UnitState.PENDING:
            return
        unit.state = UnitState.RUNNING
        details = WorkerDetails(self._pool.manager_id, name, self._pool.unit_slots, 1000, dict(self._pool.capabilities))
        self._world.worker_joined(unit.worker, details, self._pool.dispatch_seconds)

    def _reclaim(self) -> None:
        running = [name for name, unit in self._units.items() if unit.state is UnitState.RUNNING]
        for name in running[::2]:
            self._end(name, UnitState.FAILED)

    def _end(self, name: str, state: UnitState) -> None:
        unit = self._units[name]
        if unit.ended < math.inf:
            return
        unit.state = state
        unit.ended = self._world.now
        self._world.unit_ended(unit.worker, stopped=state is UnitState.STOPPED)
        self._round_at(self._world.now + ROUND_GAP_SECONDS)
