"""However often a policy changes its mind, no task is lost, and none runs twice."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from scaler.policy.view import Allocation, ClusterView, Wanted
from scaler.protocol.messages import Desired, ManagerStatus, Outcome, UnitState, UnitStatus
from scaler.worker_manager.backend import Unit
from scaler.worker_manager.reconcile import UnitsWanted
from tests.unit.scheduler.driver import Cluster
from tests.unit.worker_manager.reconciler_driver import ReconcilerDriver

MAX_UNITS = 6
BEAT_SECONDS = 0.25


class Whims:
    """A policy that wants the next number of units at every plan."""

    allocation = Allocation()

    def __init__(self, whims: list[int]) -> None:
        self.whims = whims
        self._plans = 0

    def plan(self, view: ClusterView) -> dict[str, Wanted]:
        self._plans += 1
        units = self.whims[self._plans % len(self.whims)]
        return {manager.manager_id: Wanted(units, "a whim") for manager in view.managers}


class Machine:
    """A manager with the real reconciler. Its units' workers connect some time after they were started."""

    def __init__(self, cluster: Cluster, startup_seconds: float) -> None:
        self._cluster = cluster
        self._startup_seconds = startup_seconds
        self._reconciler = ReconcilerDriver(MAX_UNITS)
        self._born: dict[str, float] = {}
        self._ready: set[str] = set()
        self._made = 0
        self._began: dict[tuple[str, bytes], float] = {}
        self.runs: Counter[bytes] = Counter()
        self.most = 0
        cluster.manager("m", max_concurrency=MAX_UNITS)

    def beat(self, task_seconds: float) -> None:
        self._manage()
        self._connect()
        self._work(task_seconds)

    def _connected(self, unit: str) -> bool:
        return self._cluster.peer(unit) in self._cluster.state.workers

    def _manage(self) -> None:
        cluster = self._cluster
        now = cluster.now
        # That a unit runs is seen one beat after its worker has connected.
        units = [
            Unit(f"unit-{unit}", UnitState.RUNNING if unit in self._ready else UnitState.PENDING, 1, now - born)
            for unit, born in self._born.items()
        ]
        self._ready = {unit for unit in self._born if self._connected(unit)}
        told = [message for name, message in cluster.said if name == "m" and isinstance(message, Desired)]
        wanted = UnitsWanted(told[-1].units, frozenset(told[-1].drained)) if told else UnitsWanted(None)
        actions = self._reconciler.step(wanted, units, now)
        for unit in (stopped.removeprefix("unit-") for stopped in actions.stop):
            del self._born[unit]
            if self._connected(unit):
                assert cluster.on(unit) == [], "a unit with work is stopped"
                cluster.leave(unit)
        names = [f"u{self._made + number}" for number in range(actions.start)]
        self._made += actions.start
        self._born.update(dict.fromkeys(names, now))
        self._reconciler.started([f"unit-{name}" for name in names], now)
        self.most = max(self.most, len(self._born))
        status = [UnitStatus(f"unit-{unit}", UnitState.PENDING, 1, now - born) for unit, born in self._born.items()]
        cluster.say("m", ManagerStatus(now, status, ""))

    def _connect(self) -> None:
        for unit, born in self._born.items():
            if self._cluster.now - born >= self._startup_seconds and not self._connected(unit):
                self._cluster.worker(unit, manager_id="m")

    def _work(self, task_seconds: float) -> None:
        cluster = self._cluster
        for unit in [unit for unit in self._born if self._connected(unit)]:
            for task in cluster.on(unit)[:1]:
                run = (unit, task)
                if run not in self._began:
                    self._began[run] = cluster.now
                    self.runs[task] += 1
                if cluster.now - self._began[run] >= task_seconds:
                    cluster.finish(unit, task, seconds=task_seconds)


@given(
    whims=st.lists(st.integers(0, MAX_UNITS + 2), min_size=2, max_size=12),
    bursts=st.lists(st.integers(0, 6), min_size=10, max_size=30),
    startup_seconds=st.sampled_from([0.0, 0.4, 1.2, 3.0]),
    task_seconds=st.sampled_from([0.0, 0.3, 2.0]),
    retries=st.sampled_from([0, 3]),
)
def test_no_task_is_lost_or_runs_twice_while_the_cluster_comes_and_goes(
    whims: list[int], bursts: list[int], startup_seconds: float, task_seconds: float, retries: int
) -> None:
    policy = Whims([*whims, 1])
    cluster = Cluster(policy, client_timeout_seconds=1e6, worker_timeout_seconds=1e6)
    client, machine = cluster.client(), Machine(cluster, startup_seconds)
    tasks: list[bytes] = []
    for burst in bursts:
        if burst:
            tasks += cluster.submit(client, burst, retries=retries)
        for _ in range(4):
            cluster.now += BEAT_SECONDS
            machine.beat(task_seconds)
    policy.whims = [MAX_UNITS]
    for _ in range(2000):
        if len(cluster.outcomes(client)) == len(tasks):
            break
        cluster.now += BEAT_SECONDS
        machine.beat(task_seconds)
    assert {cluster.outcome(client, task) for task in tasks} <= {Outcome.SUCCESS}
    assert machine.runs == Counter(tasks)
    assert machine.most <= MAX_UNITS
