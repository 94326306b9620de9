"""The names of workers: manager and number."""

from __future__ import annotations

from scaler.extensions.explain.core import explain
from scaler.protocol.messages import Outcome
from scaler.scheduler.core.changes import Incident
from tests.unit.scheduler.driver import Cluster


def name(cluster: Cluster, worker: str) -> str:
    return cluster.state.workers[cluster.peer(worker)].name


def test_workers_are_numbered_per_manager_in_joining_order(cluster: Cluster) -> None:
    for worker, manager in (("a", "cloud"), ("b", "local"), ("c", "cloud"), ("d", "cloud")):
        cluster.worker(worker, manager_id=manager)
    assert [name(cluster, worker) for worker in "abcd"] == ["cloud-1", "local-1", "cloud-2", "cloud-3"]


def test_returning_worker_keeps_its_name_which_is_never_reused() -> None:
    cluster = Cluster()
    cluster.workers(["a", "b"], "cloud")
    cluster.break_connection("a")
    cluster.wait(1.0, alive=["a", "b"])
    cluster.leave("b")
    cluster.worker("c", manager_id="cloud")
    cluster.worker("a", manager_id="cloud")  # with a new session
    assert [worker.name for worker in cluster.state.workers.values()] == ["cloud-3", "cloud-4"]


def test_names_differ_for_any_manager_id_length_and_suffix(cluster: Cluster) -> None:
    ids = ["cloud", "cloud-1", "x" * 5000 + "a", "x" * 5000 + "b"]
    for number, manager in enumerate(2 * ids):
        cluster.worker(f"w{number}", manager_id=manager)
    names = [worker.name for worker in cluster.state.workers.values()]
    assert len(set(names)) == 8
    assert max(map(len, names)) < 120


def test_lost_worker_is_shown_with_host_and_pid(cluster: Cluster) -> None:
    client, worker = cluster.client(), cluster.worker("w", manager_id="cloud")
    (task,) = cluster.submit(client, retries=0)
    assert explain(cluster.state, task, cluster.now) == "it runs on worker cloud-1 (host, pid 1)"
    cluster.take_facts()
    cluster.leave(worker, "was killed")
    (left,) = [fact for fact in cluster.take_facts() if isinstance(fact, Incident)]
    assert (left.subject, left.text) == ("worker cloud-1 (host, pid 1)", "was killed")
    text = b"worker cloud-1 (host, pid 1) was killed; retries=0, and the task may have run"
    assert cluster.outcomes(client)[task] == (Outcome.WORKER_LOST, text)
