"""Elasticity: targets of managers, units stopped by scaling down, and the policy's view."""

from __future__ import annotations

import pytest

from scaler.extensions.scaling import units
from scaler.net.connection import Closed
from scaler.policy.load import load_policy
from scaler.policy.view import Allocation, ClusterView, ManagerView, Wanted
from scaler.protocol.messages import (
    Desired,
    Drain,
    HeartbeatEcho,
    ManagerDetails,
    ManagerStatus,
    Outcome,
    ProcessorStatus,
    Started,
    UnitState,
    UnitStatus,
    WorkerHeartbeat,
)
from scaler.scheduler.core.changes import ScalingDecided
from scaler.scheduler.core.commands import Expel
from tests.unit.scheduler.driver import Cluster

PATIENT = {"client_timeout_seconds": 1e6, "worker_timeout_seconds": 1e6}


class Told:
    """A policy with scripted targets that records its views."""

    allocation = Allocation()

    def __init__(self, **units: int) -> None:
        self.units = units
        self.views: list[ClusterView] = []

    def plan(self, view: ClusterView) -> dict[str, Wanted]:
        self.views.append(view)
        return {name: Wanted(units, f"{units} are wanted") for name, units in self.units.items()}

    def seen(self, manager_id: str = "m") -> ManagerView:
        return next(manager for manager in self.views[-1].managers if manager.manager_id == manager_id)


def report(cluster: Cluster, manager: str, *units: UnitStatus, trouble: str = "") -> None:
    cluster.say(manager, ManagerStatus(cluster.now, list(units), trouble))


def pending(name: str, age_seconds: float = 0.0) -> UnitStatus:
    return UnitStatus(f"unit-{name}", UnitState.PENDING, 1, age_seconds)


def desired(cluster: Cluster, manager: str = "m") -> list[Desired]:
    return [message for name, message in cluster.said if name == manager and isinstance(message, Desired)]


def drained(cluster: Cluster) -> list[str]:
    return [name for name, message in cluster.said if isinstance(message, Drain)]


def test_manager_gets_its_target_after_its_first_report() -> None:
    cluster = Cluster(Told(m=3))
    manager = cluster.manager("m")
    cluster.wait(2.0, alive=[manager])
    assert desired(cluster) == []
    report(cluster, manager)
    assert desired(cluster) == [Desired(3, [], "3 are wanted")]
    assert any(isinstance(message, HeartbeatEcho) for name, message in cluster.said if name == manager)


def test_target_is_resent_only_when_it_changes_or_the_manager_reconnects() -> None:
    policy = Told(m=3)
    cluster = Cluster(policy)
    manager = cluster.manager("m")
    report(cluster, manager)
    cluster.wait(3.0, alive=[manager])
    assert len(desired(cluster)) == 1
    policy.units["m"] = 4
    cluster.wait(0.75, alive=[manager])
    assert [message.units for message in desired(cluster)] == [3, 4]
    cluster.manager("m")
    report(cluster, manager)
    assert [message.units for message in desired(cluster)] == [3, 4, 4]


def decisions(cluster: Cluster) -> list[ScalingDecided]:
    return [fact for fact in cluster.take_facts() if isinstance(fact, ScalingDecided)]


class Wordy(Told):
    """A policy whose reasons contain constantly changing numbers."""

    def plan(self, view: ClusterView) -> dict[str, Wanted]:
        wanted = super().plan(view)
        return {name: Wanted(answer.units, f"it is {view.now:.1f}") for name, answer in wanted.items()}


def test_decision_is_reported_once_however_its_figures_vary() -> None:
    policy = Wordy(m=3)
    cluster = Cluster(policy)
    manager = cluster.manager("m")
    report(cluster, manager)
    cluster.wait(3.0, alive=[manager])
    policy.units["m"] = 1
    cluster.wait(3.0, alive=[manager])
    first, second = decisions(cluster)
    assert (first.manager_id, first.units, first.reason) == ("m", 3, "it is 100.0")
    assert second.units == 1


def test_decision_is_repeated_when_a_problem_begins_or_ends() -> None:
    cluster = Cluster(Told(m=3))
    manager = cluster.manager("m")
    for trouble in ("", "no quota, next attempt in 3 s", "no quota, next attempt in 2 s", ""):
        report(cluster, manager, trouble=trouble)
        cluster.wait(1.0, alive=[manager])
    told = decisions(cluster)
    assert [fact.inputs["trouble"] for fact in told] == ["", "no quota, next attempt in 3 s", ""]
    assert [fact.reason for fact in told] == [
        "3 are wanted",
        "3 are wanted; it cannot start units now: no quota, next attempt in 3 s",
        "3 are wanted; it can start units again",
    ]


def test_decision_shows_its_inputs_for_its_manager() -> None:
    policy = Told(m=2, gpu=1)
    cluster = Cluster(policy)
    client, manager = cluster.client(), cluster.manager("m", max_concurrency=4)
    gpu = cluster.manager("gpu", max_concurrency=-1, capabilities={"gpu": 1.0})
    worker = cluster.worker("w", manager_id="m", queue_size=1)
    first, *_ = cluster.submit(client, 5)
    cluster.finish(worker, first, seconds=2.0)
    cluster.submit(client, 3, needs=(("gpu", 1.0),))
    report(cluster, manager, pending("p"))
    report(cluster, gpu, trouble="no quota")
    cluster.wait(1.0, alive=[manager, worker, gpu])
    inputs = {fact.manager_id: fact.inputs for fact in decisions(cluster)}
    assert [*inputs["m"].values()] == [3, 1, 0, 7.0, 0.0, 0.0, 1, 1, 0, None, 4, ""]
    assert [*inputs["gpu"].values()] == [6, 1, 0, 13.0, 0.0, 0.0, 0, 0, 0, None, None, "no quota"]


def test_units_are_pending_until_their_worker_connects() -> None:
    policy = Told(m=2)
    cluster = Cluster(policy)
    manager = cluster.manager("m")
    report(cluster, manager, pending("a", 4.0), pending("b", 1.0))
    assert policy.seen().pending_ages == pytest.approx((4.0, 1.0))
    cluster.wait(0.5, alive=[manager])
    assert policy.seen().pending_ages == pytest.approx((4.5, 1.5))
    cluster.worker("a", manager_id="m")
    cluster.wait(0.5, alive=[manager, "a"])
    assert policy.seen().units_running == 1
    assert len(policy.seen().pending_ages) == 1


def test_manager_learns_of_joined_units_and_of_all_on_reconnect() -> None:
    cluster = Cluster(Told(m=2))
    manager = cluster.manager("m")
    report(cluster, manager, pending("a"), pending("b"))
    assert [message.joined for message in desired(cluster)] == [[]]
    cluster.worker("a", manager_id="m")
    cluster.worker("b", manager_id="m")
    cluster.wait(1.5, alive=[manager, "a", "b"])
    assert [message.joined for message in desired(cluster)] == [[], ["unit-a", "unit-b"]]
    cluster.manager("m")
    report(cluster, manager, pending("a"), pending("b"))
    assert desired(cluster)[-1].joined == ["unit-a", "unit-b"]


def test_stopping_and_failed_units_do_not_count() -> None:
    policy = Told(m=2)
    cluster = Cluster(policy)
    manager = cluster.manager("m")
    states = (UnitState.STOPPING, UnitState.FAILED, UnitState.STOPPED)
    report(cluster, manager, *(UnitStatus(state, state, 1, 1.0) for state in states), trouble="no quota")
    assert policy.seen().units == 0
    assert policy.seen().trouble == "no quota"


def test_start_up_time_is_averaged_from_start_to_connection() -> None:
    policy = Told(m=2)
    cluster = Cluster(policy)
    manager = cluster.manager("m")
    report(cluster, manager, pending("a", 4.0), pending("b", 0.0))
    assert policy.seen().startup_seconds is None
    cluster.now += 0.25
    cluster.worker("a", manager_id="m")
    cluster.wait(0.5, alive=[manager, "a"])
    assert policy.seen().startup_seconds == pytest.approx(4.25)
    cluster.now += 0.25
    cluster.worker("b", manager_id="m")
    cluster.wait(0.5, alive=[manager, "a", "b"])
    assert policy.seen().startup_seconds == pytest.approx(4.25 + 0.3 * (1.0 - 4.25))


def test_drains_longest_idle_units_first_and_names_them_when_done() -> None:
    policy = Told(m=3)
    cluster = Cluster(policy)
    client, manager = cluster.client(), cluster.manager("m")
    cluster.worker("busy", manager_id="m", queue_size=0)
    (task,) = cluster.submit(client)
    cluster.worker("young", manager_id="m")
    cluster.worker("old", manager_id="m")
    (short,) = cluster.submit(client)
    cluster.now += 0.1
    cluster.finish("young", short)
    report(cluster, manager)
    policy.units["m"] = 2
    cluster.wait(0.5, alive=[manager])
    assert drained(cluster) == ["old"]
    assert desired(cluster)[-1] == Desired(2, ["unit-old"], "2 are wanted")
    policy.units["m"] = 0
    cluster.wait(0.5, alive=[manager])
    assert drained(cluster) == ["old", "young", "busy"]
    assert desired(cluster)[-1] == Desired(0, ["unit-old", "unit-young"], "0 are wanted", draining=1)
    cluster.finish("busy", task)
    cluster.wait(0.5, alive=[manager])
    assert desired(cluster)[-1] == Desired(0, ["unit-busy", "unit-old", "unit-young"], "0 are wanted")


def test_worker_drained_on_request_gets_no_more_tasks_and_is_told() -> None:
    cluster = Cluster(Told(m=1))
    client, worker = cluster.client(), cluster.worker("w", manager_id="m")
    (running,) = cluster.submit(client)
    cluster.say(worker, Drain("a spot notice"))
    assert [message for name, message in cluster.said if name == worker][-1] == Drain("a spot notice")
    (waiting,) = cluster.submit(client, retries=0)
    assert cluster.on(worker) == [running]
    cluster.leave(worker, "the worker ends")
    other = cluster.worker("other", slots=2)
    assert set(cluster.on(other)) == {running, waiting}


def test_units_reported_as_leaving_are_not_counted() -> None:
    cluster = Cluster(Told(m=2))
    client, manager = cluster.client(), cluster.manager("m")
    for name in ("a", "b"):
        cluster.worker(name, manager_id="m")
    cluster.submit(client, 2)
    units = [UnitStatus(f"unit-{name}", UnitState.RUNNING, 1, 9.0) for name in ("a", "b")]
    report(cluster, manager, *units)
    assert desired(cluster)[-1].units == 2
    report(cluster, manager, units[0], UnitStatus("unit-b", UnitState.STOPPING, 1, 9.0, "SpotInterruption"))
    cluster.say("b", Drain("the worker was told to end"))
    cluster.wait(1.0, alive=[manager, client, "a", "b"])
    assert [message.units for message in desired(cluster)] == [2], "one unit replaces it, not two"


def test_view_counts_busy_slots_of_workers_that_stay() -> None:
    policy = Told(m=2)
    cluster = Cluster(policy, **PATIENT)
    client, manager = cluster.client(), cluster.manager("m")
    for name in ("a", "b"):
        cluster.worker(name, manager_id="m")
    cluster.submit(client, 8)
    assert [len(cluster.on(name)) > 1 for name in ("a", "b")] == [True, True], "some are prefetched"
    report(cluster, manager)
    cluster.wait(1.0, alive=[manager])
    assert policy.seen().busy_slots == 2
    cluster.say("b", Drain("a spot notice"))
    cluster.wait(1.0, alive=[manager])
    assert policy.seen().busy_slots == 1


def test_draining_unit_is_replaced_in_the_minimum_and_in_the_buffer() -> None:
    cluster = Cluster(Told(m=0), **PATIENT)
    client, manager = cluster.client(), cluster.manager("m", minimum_units=2, buffer_units=2)
    for name in ("a", "b"):
        cluster.worker(name, manager_id="m")
    report(cluster, manager)
    cluster.say("b", Drain("quarantined"))
    cluster.wait(1.0, alive=[manager])
    assert desired(cluster)[-1] == Desired(2, [], "0 are wanted; kept: minimum_units=2", draining=1)
    cluster.say("a", Started(cluster.submit(client)))
    cluster.wait(1.0, alive=[manager])
    assert desired(cluster)[-1] == Desired(3, [], "0 are wanted; kept: buffer_units=2", draining=1)


def test_manager_that_reconnects_keeps_warm_units() -> None:
    cluster = Cluster(Told(m=0), **PATIENT)
    manager = cluster.manager("m", warm_units=2)
    for name in ("a", "b", "c"):
        cluster.worker(name, manager_id="m")
    report(cluster, manager)
    cluster.wait(5.0, alive=[manager])
    assert len(drained(cluster)) == 1
    cluster.leave(manager)
    cluster.wait(20.0)
    report(cluster, cluster.manager("m", warm_units=2))
    cluster.wait(5.0, alive=[manager])
    assert len(drained(cluster)) == 1
    assert desired(cluster)[-1].units == 2


def test_quarantined_worker_counts_as_drained_only_when_empty() -> None:
    policy = Told(m=1)
    cluster = Cluster(policy)
    client, manager = cluster.client(), cluster.manager("m")
    worker = cluster.worker("w", slots=2, manager_id="m")
    report(cluster, manager)
    (task,) = cluster.submit(client, retries=0)
    for number in range(5):
        (dying,) = cluster.submit(client, retries=0)
        if number == 4:
            cluster.worker("well")
        cluster.finish(worker, dying, outcome=Outcome.PROCESSOR_DIED, payload=b"exit code 1")
    assert drained(cluster) == [worker]
    cluster.wait(1.0, alive=[manager, worker, client])
    assert all(message.drained == [] for message in desired(cluster))
    cluster.finish(worker, task)
    cluster.wait(0.5, alive=[manager, worker, client])
    assert desired(cluster)[-1].drained == ["unit-w"]


def test_does_not_name_the_unit_of_a_draining_worker() -> None:
    cluster = Cluster(Told(m=1))
    manager = cluster.manager("m")
    worker = cluster.worker("w", manager_id="m")
    report(cluster, manager)
    cluster.say(worker, Drain("3 processors in a row could not start"))
    assert drained(cluster) == [worker]
    cluster.wait(0.5, alive=[manager, worker])
    assert desired(cluster)[-1] == Desired(1, [], "1 are wanted", draining=1), "its unit ends without a stop"


def test_message_names_a_bounded_number_of_drained_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "MAX_UNITS_NAMED", 20)
    policy = Told(m=0)
    cluster = Cluster(policy)
    manager = cluster.manager("m", max_concurrency=-1)
    cluster.workers((f"w{number}" for number in range(30)), "m")
    report(cluster, manager)
    cluster.wait(0.5, alive=[manager])
    first = desired(cluster)[-1].drained
    assert len(first) == 20
    cluster.step(*(Closed(cluster.peer(unit.removeprefix("unit-")), "") for unit in first[:10]))
    cluster.wait(0.5, alive=[manager])
    assert len(set(desired(cluster)[-1].drained) | set(first)) == 30


def test_broken_manager_leaves_the_view_after_a_grace_period() -> None:
    policy = Told(m=1)
    cluster = Cluster(policy)
    manager = cluster.manager("m")
    other = cluster.manager("other")
    report(cluster, manager)
    cluster.break_connection(manager)
    cluster.wait(2.0, alive=[other])
    assert len(policy.views[-1].managers) == 2
    cluster.wait(2.0, alive=[other])
    assert [view.manager_id for view in policy.views[-1].managers] == ["other"]
    assert Expel in {type(command) for command in cluster.commands}


def test_restarted_manager_replaces_its_predecessor_and_its_units() -> None:
    policy = Told(m=2)
    cluster = Cluster(policy)
    cluster.manager("first", manager_id="m")
    cluster.worker("a", manager_id="m")
    cluster.break_connection("first")
    second = cluster.manager("second", manager_id="m")
    cluster.worker("b", manager_id="m")
    report(cluster, second)
    assert [manager.units_running for manager in policy.views[-1].managers] == [2]
    assert [message.units for message in desired(cluster, second)] == [2]


def test_tasks_sent_to_a_starting_worker_are_not_running_yet() -> None:
    """Otherwise, short tasks of unknown length count as long ones, for which a manager starts more units."""
    policy = Told(m=1)
    cluster = Cluster(policy)
    client, manager = cluster.client(), cluster.manager("m")
    workers = [cluster.worker(name, manager_id="m", slots=4) for name in "ab"]
    ids = cluster.submit(client, 8, name="work")
    report(cluster, manager)
    cluster.wait(3.0, alive=[manager, *workers])
    (row,) = policy.views[-1].demand
    assert (row.queued, row.running) == (8, 0)
    cluster.say(workers[0], Started(ids[:1]))
    cluster.wait(1.0, alive=[manager, *workers])
    (row,) = policy.views[-1].demand
    assert (row.queued, row.running) == (4, 4)
    beat = WorkerHeartbeat(0.0, 0.0, 0, 0, 0.0, [ProcessorStatus(1, 0.0, 0, True, False, ids[1])])
    cluster.say(workers[1], beat)
    cluster.wait(1.0, alive=[manager, *workers])
    (row,) = policy.views[-1].demand
    assert (row.queued, row.running) == (0, 8)


def test_policy_sees_tasks_between_two_views_by_their_needs() -> None:
    policy = Told(m=1)
    cluster = Cluster(policy)
    client, manager = cluster.client(), cluster.manager("m")
    worker = cluster.worker("w", {"gpu": 1.0}, manager_id="m")

    def come_and_end(count: int, seconds: float, needs: tuple[tuple[str, float], ...] = ()) -> None:
        for _ in range(count):
            cluster.finish(worker, *cluster.submit(client, name="work", needs=needs), seconds=seconds)

    report(cluster, manager)
    cluster.wait(0.5, alive=[manager, worker])
    come_and_end(100, 0.002)
    come_and_end(2, 30.0, needs=(("gpu", 1.0),))
    cluster.wait(0.5, alive=[manager, worker])
    demand = {str(row.needs): row for row in policy.views[-1].demand}
    assert {row.function for row in demand.values()} == {"work"}
    plain, gpu = demand[""], demand["gpu=1"]
    assert (plain.queued, plain.running) == (0, 0)
    assert plain.task_seconds == pytest.approx(0.002)
    assert plain.busy_slots == pytest.approx(0.4)
    assert plain.ended_per_second == pytest.approx(200)
    assert gpu.busy_slots == 2, "each task kept one slot busy"
    cluster.wait(0.5, alive=[manager, worker])
    assert policy.views[-1].demand == ()


# -- with the policies that ship


class Units:
    """A manager that follows Desired. A unit's worker connects `startup_seconds` after its start."""

    def __init__(self, cluster: Cluster, name: str, startup_seconds: float = 1.0, **options: object) -> None:
        self.cluster = cluster
        self.name = name
        self.startup_seconds = startup_seconds
        self.started: dict[str, float] = {}
        self.made = 0
        self.stopped_busy = 0
        cluster.manager(name, **options)  # type: ignore[arg-type]

    def beat(self) -> None:
        cluster = self.cluster
        told = desired(cluster, self.name)
        if told:
            for unit in told[-1].drained:
                name = unit.removeprefix("unit-")
                if self.started.pop(name, None) is not None:
                    self.stopped_busy += bool(cluster.on(name))
                    cluster.leave(name, "drained")
            while len(self.started) < told[-1].units:
                self.made += 1
                self.started[f"{self.name}{self.made}"] = cluster.now
        for name, at in self.started.items():
            if cluster.now - at >= self.startup_seconds and cluster.peer(name) not in cluster.state.workers:
                cluster.worker(name, manager_id=self.name)
        units = [
            UnitStatus(f"unit-{name}", UnitState.PENDING, 1, cluster.now - at) for name, at in self.started.items()
        ]
        report(cluster, self.name, *units)


def live(cluster: Cluster, *managers: Units, seconds: float, task_seconds: float) -> int:
    """Let time pass in quarters of a second; workers finish tasks that have run for task_seconds."""
    began: dict[bytes, float] = {}
    most = 0
    until = cluster.now + seconds
    while cluster.now < until:
        cluster.now += 0.25
        for manager in managers:
            manager.beat()
        for worker in list(cluster.state.workers.values()):
            name = worker.id.rstrip(b".").decode()
            for task in cluster.on(name)[:1]:
                if cluster.now - began.setdefault(task, cluster.now) >= task_seconds:
                    cluster.finish(name, task, seconds=task_seconds)
        most = max(most, len(cluster.state.workers))
    return most


def test_simple_policy_scales_up_for_a_burst_and_back_to_zero_losslessly() -> None:
    cluster = Cluster(load_policy("simple", "allocate=even_load; scaling=vanilla"), **PATIENT)
    client = cluster.client()
    manager = Units(cluster, "m", max_concurrency=8)
    live(cluster, manager, seconds=2.0, task_seconds=1.0)
    assert manager.made == 0
    tasks = cluster.submit(client, 24)
    most = live(cluster, manager, seconds=12.0, task_seconds=1.0)
    assert most == 8
    assert {cluster.outcome(client, task) for task in tasks} == {Outcome.SUCCESS}
    live(cluster, manager, seconds=60.0, task_seconds=1.0)
    assert len(cluster.state.workers) == 0
    assert manager.stopped_busy == 0
    assert manager.made == 8


def test_worker_that_joins_too_late_gets_no_task() -> None:
    policy = Told(m=2)
    cluster = Cluster(policy)
    client, manager = cluster.client(), cluster.manager("m")
    first = cluster.worker("first", manager_id="m")
    report(cluster, manager, pending("late"))
    policy.units["m"] = 1
    cluster.wait(0.5, alive=[manager, first])
    assert desired(cluster)[-1] == Desired(1, ["unit-late"], "1 are wanted")  # and now the manager stops it
    late = cluster.worker("late", manager_id="m")
    cluster.submit(client, 4)
    assert cluster.on(late) == []
    assert drained(cluster) == [late]
    cluster.wait(0.5, alive=[manager, first, late])
    assert desired(cluster)[-1] == Desired(1, ["unit-late"], "1 are wanted", ["unit-late"])


def test_replacement_gets_tasks_while_the_lost_worker_may_return() -> None:
    cluster = Cluster(Told(m=1))
    client, manager = cluster.client(), cluster.manager("m")
    cluster.worker("lost", manager_id="m")
    report(cluster, manager)
    cluster.break_connection("lost")
    report(cluster, manager, pending("replacement"))
    cluster.wait(0.5, alive=[manager])
    assert desired(cluster)[-1] == Desired(1, [], "1 are wanted", left=["unit-lost"])
    replacement = cluster.worker("replacement", manager_id="m")
    (task,) = cluster.submit(client)
    assert cluster.on(replacement) == [task]


@pytest.mark.parametrize("fixed", [False, True])
def test_living_unit_of_a_dropped_worker_is_stopped_and_replaced(fixed: bool) -> None:
    cluster = Cluster(Told(m=1), worker_timeout_seconds=10.0)
    manager = cluster.manager("m", fixed=fixed)
    cluster.worker("frozen", manager_id="m")
    report(cluster, manager, pending("frozen"))
    for _ in range(12):
        cluster.wait(1.0, alive=[manager])
        report(cluster, manager, pending("frozen"))
    assert cluster.peer("frozen") not in cluster.state.workers
    assert desired(cluster)[-1].drained == ["unit-frozen"]


def test_eight_unmeasured_long_tasks_use_eight_workers_within_two_heartbeats() -> None:
    cluster = Cluster(load_policy("simple", ""), **PATIENT)
    client, manager = cluster.client(), Units(cluster, "m", startup_seconds=3.0)
    manager.beat()
    tasks = cluster.submit(client, 8, retries=0)
    live(cluster, manager, seconds=4.0, task_seconds=60.0)
    running = [cluster.on(worker.id.rstrip(b".").decode()) for worker in cluster.state.workers.values()]
    assert sorted(running) == sorted([task] for task in tasks)


def waiting(name: str, age_seconds: float) -> UnitStatus:
    return UnitStatus(f"unit-{name}", UnitState.WAITING, 1, age_seconds)


def test_backlog_units_stay_queued_although_fewer_are_wanted() -> None:
    policy = Told(m=0)
    cluster = Cluster(policy)
    manager = cluster.manager("m", backlog=2)
    report(
        cluster, manager, pending("a", 9.0), *(waiting(name, age) for name, age in (("b", 5.0), ("c", 7.0), ("d", 3.0)))
    )
    cluster.wait(1.0, alive=[manager])
    assert desired(cluster)[-1].drained == ["unit-a", "unit-d"], "units that have waited longest stay"


def with_an_end(cluster: Cluster, manager: str, name: str, remaining_seconds: float) -> None:
    report(cluster, manager, UnitStatus(f"unit-{name}", UnitState.RUNNING, 1, 9.0, "", remaining_seconds))


def test_worker_is_drained_earlier_for_long_tasks_within_its_second_half() -> None:
    cluster = Cluster(Told(m=1))
    client, manager, worker = cluster.client(), cluster.manager("m"), cluster.worker("w", manager_id="m")
    (task,) = cluster.submit(client)
    cluster.finish(worker, task, seconds=40.0)
    cluster.submit(client, 2)
    with_an_end(cluster, manager, worker, 100.0)
    cluster.wait(49.0, alive=[client, manager, worker])
    assert drained(cluster) == [], "80 s before the end would be too early"
    cluster.wait(2.0, alive=[client, manager, worker])
    assert drained(cluster) == [worker]
    other = cluster.worker("x", manager_id="m")
    with_an_end(cluster, manager, other, 300.0)
    # One task has run for as long as the worker has been connected, so the next tasks may take equally long.
    cluster.wait(145.0, alive=[client, manager, worker, other])
    assert drained(cluster) == [worker]
    cluster.wait(10.0, alive=[client, manager, worker, other])
    assert drained(cluster) == [worker, other]


def test_idle_worker_exits_if_its_manager_does_not_reconnect() -> None:
    cluster = Cluster(Told())
    client, worker = cluster.client(), cluster.worker("w", manager_id="m", death_timeout_seconds=60.0)
    (task,) = cluster.submit(client)
    cluster.wait(100.0, alive=[client, worker])
    assert drained(cluster) == [], "the worker has work"
    cluster.finish(worker, task)
    cluster.wait(58.0, alive=[client, worker])
    assert drained(cluster) == []
    cluster.wait(8.0, alive=[client, worker])
    assert drained(cluster) == [worker]


def test_reconnecting_manager_keeps_its_workers() -> None:
    cluster = Cluster(Told(m=1))
    manager = cluster.manager("m")
    worker = cluster.worker("w", manager_id="m", death_timeout_seconds=60.0)
    other = cluster.worker("x", manager_id="")
    cluster.leave(manager)
    cluster.wait(50.0, alive=[worker, other])
    manager = cluster.manager("m")
    report(cluster, manager)
    cluster.wait(5.0, alive=[worker, other, manager])
    cluster.leave(manager)
    cluster.wait(58.0, alive=[worker, other])
    assert drained(cluster) == []
    cluster.wait(8.0, alive=[worker, other])
    assert drained(cluster) == [worker]


def test_manager_of_a_vanished_host_keeps_its_own_lease() -> None:
    cluster = Cluster(worker_timeout_seconds=20.0)
    cluster.manager("before", manager_id="rack7")
    details = ManagerDetails("rack7", "test", capabilities={}, max_slots=8, unit_slots=1)
    for _ in range(19):
        assert "'rack7' is in use" in cluster.tries_again("after", details=details)
        cluster.wait(1.0)
    cluster.wait(2.0)
    assert cluster.refusal("after", details=details) == ""


def test_second_manager_of_a_name_is_refused_if_the_first_answers(cluster: Cluster) -> None:
    cluster.manager("first", manager_id="rack7")
    details = ManagerDetails("rack7", "test", capabilities={}, max_slots=8, unit_slots=1)
    assert cluster.tries_again("second", details=details)
    cluster.wait(2.0)
    cluster.say("first", ManagerStatus(cluster.now, [], ""))
    assert "give this manager another worker_manager_id" in cluster.refusal("second", details=details)
