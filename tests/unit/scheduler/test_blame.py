"""Fair charging: which tasks are charged when a worker is lost with several tasks."""

from __future__ import annotations

from scaler.extensions.explain.core import explain
from scaler.protocol.messages import Drain, ManagerStatus, Outcome, Returned, Started, Suspended, UnitState, UnitStatus
from scaler.scheduler.core.attempt_texts import MAX_AT_TIME_LIMIT, MAX_INTERRUPTED
from tests.unit.scheduler.driver import Cluster


def loses_workers(cluster: Cluster, client: str, culprit: bytes, limit: int = 30, slots: int = 4) -> int:
    """Lose a worker whenever the culprit runs there; let other tasks end only where it does not. Returns how many."""
    lost = 0
    for number in range(limit):
        worker = cluster.worker(f"w{number}", slots=slots)
        cluster.wait(2.0, alive=[client, worker])
        while cluster.on(worker) and culprit not in cluster.on(worker):
            cluster.finish(worker, cluster.on(worker)[0])
            cluster.wait(2.0, alive=[client, worker])
        if cluster.outcome(client, culprit) is not None:
            break
        cluster.leave(worker, "was killed")
        lost += 1
    return lost


def test_among_tasks_lost_together_only_repeat_offenders_are_poison() -> None:
    cluster = Cluster()
    client = cluster.client()
    tasks = cluster.submit(client, 4, retries=1)
    culprit = tasks[1]
    assert loses_workers(cluster, client, culprit) == 3
    outcome, text = cluster.outcomes(client)[culprit]
    assert outcome is Outcome.POISON
    assert b"with 4 tasks that may have been running\nattempt 2" in text
    assert b"attempt 3, alone: worker manager-3 (host, pid 1) was killed" in text
    others = [cluster.outcome(client, task) for task in tasks if task != culprit]
    assert others == [Outcome.SUCCESS] * 3, "the neighbors, with one retry each, were not charged"


def test_worker_that_accounts_for_its_tasks_charges_no_unstarted_task() -> None:
    """For example, its worker cannot start processors. More workers exit that way than make a task poison."""
    cluster = Cluster()
    client = cluster.client()
    once, other = [*cluster.submit(client, 1, retries=0), *cluster.submit(client, 1)]
    for number in range(5):
        worker = cluster.worker(f"w{number}", slots=2)
        assert set(cluster.on(worker)) == {once, other}
        cluster.say(worker, Returned([], [], []))
        cluster.leave(worker, "no processor can start")
    worker = cluster.worker("good", slots=2)
    for task in (once, other):
        cluster.finish(worker, task)
        assert cluster.outcome(client, task) is Outcome.SUCCESS


def test_standalone_program_error_explains_that_it_has_no_other_parts(cluster: Cluster, client: str) -> None:
    tasks = cluster.submit(client, 3)
    for name in ("a", "b"):
        worker = cluster.worker(name, slots=4)
        cluster.wait(2.0, alive=[client, worker])
        assert set(cluster.on(worker)) == set(tasks)
        cluster.leave(worker, "was killed")
    worker = cluster.worker("c", slots=4)
    cluster.wait(2.0, alive=[client, worker])
    (alone,) = cluster.on(worker)
    later = cluster.submit(client, 4)
    assert cluster.on(worker) == [alone]
    waiting = next(task for task in tasks if task != alone)
    assert "it runs alone and waits for a worker without other tasks" in explain(cluster.state, waiting, cluster.now)
    other = cluster.worker("d", slots=2)
    for _ in range(20):
        for name in (worker, other):
            on = cluster.on(name)
            assert len(on) == 1 or not set(on) & set(tasks), "a suspect runs alone"
            cluster.finish(name, *on[:1])
        cluster.wait(0.25, alive=[client, worker, other])
    assert {cluster.outcome(client, task) for task in tasks + later} == {Outcome.SUCCESS}


def test_waiting_parent_is_not_charged_for_a_worker_lost_to_its_child(cluster: Cluster) -> None:
    client, worker = cluster.client(), cluster.worker("a")
    (parent,) = cluster.submit(client, retries=1)
    cluster.say(worker, Suspended([parent], [1], [True]))
    (child,) = cluster.submit(client, retries=0)
    assert cluster.on(worker) == [parent, child]
    cluster.leave(worker, "was killed")
    task = cluster.state.living_task(parent)
    assert task is not None
    assert (task.number, task.max_number) == (2, 3), "the task runs again, and keeps its retry"


# -- attempts that the cluster ends


def unit_with_limit(cluster: Cluster, worker: str, remaining_seconds: float, state: UnitState) -> None:
    unit = UnitStatus(f"unit-{worker}", state, 1, 61.0 - remaining_seconds, "", remaining_seconds)
    cluster.say("m", ManagerStatus(cluster.now, [unit], ""))


def run_until_the_time_limit(cluster: Cluster, worker: str, task: bytes) -> None:
    """Let a task run on a worker for the lifetime of the worker's unit."""
    cluster.worker(worker, manager_id="m")
    unit_with_limit(cluster, worker, 60.0, UnitState.RUNNING)
    cluster.say(worker, Started([task]))
    cluster.wait(61.0, alive=["m", "c", worker])
    unit_with_limit(cluster, worker, 0.0, UnitState.STOPPING)
    cluster.wait(10.0, alive=["m", "c", worker])
    cluster.leave(worker, "was asked to stop")


def test_task_longer_than_a_units_lifetime_fails_with_its_needs(cluster: Cluster) -> None:
    client, _ = cluster.client("c"), cluster.manager("m")
    (task,) = cluster.submit(client, retries=3)
    for number in range(1, MAX_AT_TIME_LIMIT):
        run_until_the_time_limit(cluster, f"w{number}", task)
        text = explain(cluster.state, task, cluster.now)
        assert f"it runs again after attempt {number}: worker m-{number} " in text
        assert "at the time limit of its unit (1 minute) when the task had run for 71 s" in text
    run_until_the_time_limit(cluster, "last", task)
    outcome, payload = cluster.outcomes(client)[task]
    assert outcome is Outcome.WORKER_LOST
    why, *attempts = payload.decode().splitlines()
    assert why == (
        "the cluster ended 3 attempts at the task at the time limit of its unit (1 minute), and the task runs for more "
        "than 71 s: raise the time limit of units (slurm_time_minutes), or split the task"
    )
    assert [each.partition(" (")[0] for each in attempts] == [f"attempt {n}: worker m-{n}" for n in (1, 2, 3)]
    assert "it failed just now on worker m-3: the cluster ended 3 attempts" in explain(cluster.state, task, cluster.now)


def test_repeatedly_preempted_task_eventually_fails_with_the_reason(cluster: Cluster) -> None:
    client = cluster.client("c")
    (task,) = cluster.submit(client)
    for number in range(MAX_INTERRUPTED):
        assert cluster.outcome(client, task) is None
        worker = cluster.worker(f"w{number}")
        cluster.say(worker, Started([task]))
        cluster.say(worker, Drain("a spot notice"))
        cluster.wait(1.0, alive=[client, worker])
        cluster.leave(worker, "was asked to stop")
    outcome, payload = cluster.outcomes(client)[task]
    assert outcome is Outcome.WORKER_LOST
    assert payload.startswith(
        b"the cluster ended 10 attempts at the task, and the task runs for more than 1 s: use units "
    )
