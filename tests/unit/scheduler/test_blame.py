"""Just blame: who is charged when a worker is lost with several tasks."""

from __future__ import annotations

from scaler.protocol.messages import Outcome, Suspended
from scaler.scheduler.core.explain import explain
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


def test_of_tasks_that_were_lost_together_only_the_one_that_takes_workers_down_alone_is_poison() -> None:
    cluster = Cluster()
    client = cluster.client()
    tasks = cluster.submit(client, 4, retries=1)
    culprit = tasks[1]
    assert loses_workers(cluster, client, culprit) == 3
    outcome, text = cluster.outcomes(client)[culprit]
    assert outcome is Outcome.POISON
    assert b"with 4 tasks that may have been running; attempt 2" in text
    assert b"attempt 3, alone: worker manager-3 (host, pid 1) was killed" in text
    others = [cluster.outcome(client, task) for task in tasks if task != culprit]
    assert others == [Outcome.SUCCESS] * 3, "its neighbours were not charged, with one retry each"


def test_what_runs_alone_has_nothing_beside_it_and_says_so() -> None:
    cluster = Cluster()
    client = cluster.client()
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
    assert "it runs alone, and waits for a worker that runs nothing else" in explain(
        cluster.state, waiting, cluster.now
    )
    other = cluster.worker("d", slots=2)
    for _ in range(20):
        for name in (worker, other):
            on = cluster.on(name)
            assert len(on) == 1 or not set(on) & set(tasks), "a suspect has nothing beside it"
            cluster.finish(name, *on[:1])
        cluster.wait(0.25, alive=[client, worker, other])
    assert {cluster.outcome(client, task) for task in tasks + later} == {Outcome.SUCCESS}


def test_a_task_that_was_lost_by_itself_is_charged_at_once() -> None:
    cluster = Cluster()
    client, worker = cluster.client(), cluster.worker("a", slots=4)
    (task,) = cluster.submit(client, retries=1)
    cluster.leave(worker, "was killed")
    worker = cluster.worker("b", slots=4)
    cluster.wait(2.0, alive=[client, worker])
    cluster.leave(worker, "was killed")
    assert cluster.outcome(client, task) is Outcome.WORKER_LOST


def test_a_parent_that_waits_is_not_charged_for_the_worker_that_its_child_takes_down() -> None:
    cluster = Cluster()
    client, worker = cluster.client(), cluster.worker("a")
    (parent,) = cluster.submit(client, retries=1)
    cluster.say(worker, Suspended([parent], [1], [True]))
    (child,) = cluster.submit(client, retries=0)
    assert cluster.on(worker) == [parent, child]
    cluster.leave(worker, "was killed")
    task = cluster.state.living_task(parent)
    assert task is not None
    assert (task.number, task.max_number) == (2, 3), "it runs again, and has its retry left"
