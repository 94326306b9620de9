"""The sentence about a cluster without workers that pages, terminals, and JSON show."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scaler.extensions.explain.core import explain, outlook, without_workers
from scaler.policy.load import load_policy
from scaler.protocol.messages import ManagerStatus, UnitState, UnitStatus
from tests.unit.scheduler.driver import Cluster
from tests.unit.scheduler.test_status import document


def cluster_of(policy: str = "simple", content: str = "") -> Cluster:
    return Cluster(load_policy(policy, content))


def join(cluster: Cluster, name: str = "laptop", most: int = 7, trouble: str = "", fixed: bool = False) -> str:
    cluster.manager(name, most, fixed=fixed)
    cluster.say(name, ManagerStatus(cluster.now, [], trouble))
    return name


def starting(cluster: Cluster, manager: str, seconds: float, reason: str = "") -> Cluster:
    cluster.say(manager, ManagerStatus(cluster.now, [UnitStatus("u", UnitState.PENDING, 1, seconds, reason)], ""))
    return cluster


def queued() -> Cluster:
    cluster = cluster_of()
    name = join(cluster, "slurm")
    units = [UnitStatus(f"u{age:.0f}", UnitState.WAITING, 1, age, "Resources") for age in (9.0, 300.0)]
    cluster.say(name, ManagerStatus(cluster.now, units, ""))
    return cluster


def no_manager() -> Cluster:
    return cluster_of()


def dynamic() -> Cluster:
    cluster = cluster_of()
    join(cluster)
    return cluster


def scaled_to_zero() -> Cluster:
    """Workers joined for tasks, and have left since."""
    cluster = cluster_of()
    client, manager = cluster.client(), join(cluster)
    worker = cluster.worker("w", manager_id=manager)
    cluster.finish(worker, *cluster.submit(client))
    cluster.wait(30.0, alive=[client, manager, worker])
    cluster.leave(worker, "drained")
    cluster.wait(1.0, alive=[client, manager])
    return cluster


def endless_and_in_backoff() -> Cluster:
    cluster = cluster_of()
    join(cluster, "cloud", -1)
    join(cluster, "spot", 4, "exit code 1; failed 3 times in a row, next attempt in 2 s")
    return cluster


def in_backoff() -> Cluster:
    cluster = cluster_of()
    join(cluster, trouble="no quota")
    return cluster


def fixed_that_starts() -> Cluster:
    cluster = cluster_of()
    return starting(cluster, join(cluster, fixed=True), 3.0)


def fixed_without_workers() -> Cluster:
    cluster = cluster_of()
    join(cluster, fixed=True)
    return cluster


def fixed_that_failed() -> Cluster:
    cluster = cluster_of()
    name = join(cluster, fixed=True)
    units = [UnitStatus(f"u{age}", UnitState.FAILED, 1, age, f"died {age:.0f} s ago") for age in (9.0, 3.0, 5.0)]
    cluster.say(name, ManagerStatus(cluster.now, units, ""))
    return cluster


def without_scaling() -> Cluster:
    cluster = cluster_of("simple", "scaling=no")
    join(cluster)
    return cluster


def not_listed() -> Cluster:
    cluster = cluster_of("waterfall_v1", "1,own,-1")
    join(cluster)
    return cluster


def tasks_came() -> Cluster:
    cluster = cluster_of()
    join(cluster)
    cluster.submit(cluster.client(), 1)
    return cluster


def tasks_wait() -> Cluster:
    cluster = tasks_came()
    cluster.wait(0.2)
    return cluster


def tasks_wait_for_a_unit() -> Cluster:
    return starting(tasks_wait(), "laptop", 12.0)


def tasks_that_fit_nothing() -> Cluster:
    cluster = cluster_of()
    join(cluster)
    cluster.submit(cluster.client(), 1, needs=(("gpu", 2.0),))
    return cluster


def out_of_contact() -> Cluster:
    cluster = dynamic()
    cluster.break_connection("laptop")
    return cluster


def just_connected() -> Cluster:
    cluster = cluster_of()
    cluster.manager("laptop")
    return cluster


SENTENCES: dict[Callable[[], Cluster], str] = {
    queued: "Workers are starting: worker manager slurm has had 2 units in a queue for 300 s: Resources",
    no_manager: "No workers: no connected worker manager can start any",
    dynamic: "Idle: workers start when tasks arrive; worker manager laptop may start up to 7 units",
    scaled_to_zero: "Idle: workers start when tasks arrive; worker manager laptop may start up to 7 units",
    endless_and_in_backoff: "Idle: workers start when tasks arrive; "
    "worker manager cloud may start any number of units; "
    "worker manager spot cannot start units now: exit code 1; failed 3 times in a row, next attempt in 2 s",
    in_backoff: "No workers: worker manager laptop cannot start units now: no quota",
    fixed_that_starts: "Workers are starting: worker manager laptop has been starting its first unit for 3 s",
    fixed_without_workers: "No workers: worker manager laptop runs a fixed number of workers, "
    "none of which accepts tasks now",
    fixed_that_failed: "No workers: worker manager laptop runs a fixed number of workers, "
    "none of which accepts tasks now; its last failure: died 3 s ago",
    without_scaling: "No workers: the scaling policy wants 0 units of worker manager laptop: scaling=no",
    not_listed: "No workers: the scaling policy wants 0 units of worker manager laptop: "
    "the policy does not include this worker manager; it includes own",
    tasks_came: "Tasks wait for workers: the scaling policy is about to decide on worker manager laptop",
    tasks_wait: "Tasks wait for workers: worker manager laptop is about to start 1 unit",
    tasks_wait_for_a_unit: "Tasks wait for workers: worker manager laptop has been starting its first unit for 12 s",
    tasks_that_fit_nothing: "Tasks wait for workers: no worker offers gpu=2, "
    "and no worker manager could start one that does: there is no gpu",
    out_of_contact: "No workers: worker manager laptop is out of contact",
    just_connected: "No workers: worker manager laptop has just connected",
}


@pytest.mark.parametrize(("make", "text"), SENTENCES.items(), ids=lambda each: getattr(each, "__name__", ""))
def test_cluster_without_workers_explains_why_and_how_to_start_some(make: Callable[[], Cluster], text: str) -> None:
    assert document(make())["without_workers"] == text


def test_cluster_with_workers_does_not_warn_about_missing_workers() -> None:
    cluster = dynamic()
    cluster.worker("w")
    assert without_workers(cluster.state) == ""


def test_task_gets_the_same_explanation_as_the_cluster() -> None:
    for make in (tasks_wait, tasks_wait_for_a_unit, tasks_that_fit_nothing):
        cluster = make()
        (queue,) = cluster.state.ready.waiting()
        text = outlook(cluster.state, queue.needs)
        assert without_workers(cluster.state).endswith(f": {text}")


def test_waiting_task_explains_why_late_slots_do_not_get_it() -> None:
    cluster = cluster_of()
    client, laptop = cluster.client(), join(cluster, "laptop", 2)
    cluster.manager("cloud", 100, unit_slots=100, usual_dispatch_seconds=45.0)
    cluster.say("cloud", ManagerStatus(cluster.now, [UnitStatus("unit-jobs", UnitState.RUNNING, 100, 9.0, "")], ""))
    local = [cluster.worker(name, manager_id=laptop) for name in ("a", "b")]
    jobs = cluster.worker("jobs", slots=100, manager_id="cloud")
    tasks = cluster.submit(client, 60, expected_seconds=1.0)
    cluster.wait(0.5, alive=[client, laptop, "cloud", *local, jobs])
    assert cluster.on(jobs) == []
    text = explain(cluster.state, tasks[-1], cluster.now)
    assert "worker manager cloud: its tasks start after about 45 s, and other slots finish" in text
    assert "about as soon" in text
