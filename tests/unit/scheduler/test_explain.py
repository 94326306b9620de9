"""Why a task is waiting, in one sentence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scaler.extensions.explain.core import explain
from scaler.policy.view import Allocation, ClusterView, Wanted
from scaler.protocol.messages import (
    ManagerStatus,
    Notice,
    Outcome,
    ProcessorStatus,
    Suspended,
    UnitState,
    UnitStatus,
    WorkerHeartbeat,
)
from scaler.scheduler.core.rooms import UNKNOWN
from scaler.serialization.exceptions import dump_exception
from tests.unit.scheduler.driver import Alternating, Cluster

GPU = (("gpu", 2.0),)


class Two:
    """A policy that wants two units of every manager except those called idle, which get none."""

    allocation = Allocation()

    def plan(self, view: ClusterView) -> dict[str, Wanted]:
        return {
            manager.manager_id: Wanted(0 if manager.manager_id == "idle" else 2, "so it is")
            for manager in view.managers
            if not manager.fixed
        }


def why(cluster: Cluster, task: bytes) -> str:
    return explain(cluster.state, task, cluster.now)


def report(cluster: Cluster, manager: str, *ages: float, trouble: str = "", reason: str = "") -> None:
    units = [UnitStatus(f"unit-{age}", UnitState.PENDING, 1, age, reason) for age in ages]
    cluster.say(manager, ManagerStatus(cluster.now, units, trouble))


def test_unknown_or_invalid_ids_are_reported_as_unknown(cluster: Cluster) -> None:
    cluster.client()
    assert [why(cluster, other) for other in (bytes(16), b"", b"x" * 40)] == [UNKNOWN] * 3


def test_ended_task_reports_when_where_and_how_long(cluster: Cluster, client: str, worker: str) -> None:
    (task,) = cluster.submit(client)
    cluster.finish(worker, task, seconds=1.25)
    cluster.wait(3.0, alive=[client, worker])
    assert why(cluster, task) == "it ended 3 s ago on worker manager-1, and took 1.25 s"


def test_explains_the_problems_of_an_ended_task(cluster: Cluster, client: str, worker: str) -> None:
    (task,) = cluster.submit(client)
    killed = b"killed by signal 9 (SIGKILL)\nFatal Python error"
    cluster.finish(worker, task, outcome=Outcome.PROCESSOR_DIED, payload=killed)
    cluster.wait(0.1)
    after = "attempt 1 on manager-1 (host, pid 1): killed by signal 9 (SIGKILL)"
    assert why(cluster, task) == f"it runs on worker manager-1 (host, pid 1); this is attempt 2 of 4, after {after}"
    cluster.finish(worker, task)
    assert why(cluster, task) == (
        f"it ended just now on worker manager-1, and took 10 ms; that was attempt 2, after {after}"
    )


def test_failed_task_reports_its_error_and_attempt(cluster: Cluster, client: str, worker: str) -> None:
    (task,) = cluster.submit(client, retries=1)
    raised = dump_exception(ValueError("no"), "Traceback")
    cluster.finish(worker, task, outcome=Outcome.EXCEPTION_TO_RETRY, payload=raised)
    cluster.wait(0.1)
    at_length = dump_exception(ValueError("no:\n  never"), "Traceback")
    cluster.finish(worker, task, outcome=Outcome.EXCEPTION_TO_RETRY, payload=at_length)
    assert why(cluster, task) == (
        "it raised ValueError: no: never, just now on worker manager-1, in attempt 2; "
        "before that, attempt 1 on manager-1 (host, pid 1): it raised ValueError: no"
    )


def test_explanation_of_an_ended_task_says_if_it_was_cancelled_or_lost(
    cluster: Cluster, client: str, worker: str
) -> None:
    once, waiting = cluster.submit(client, 1, retries=0)[0], cluster.submit(client, 1, retries=0)[0]
    cluster.cancel(client, waiting)
    cluster.break_connection(worker)
    cluster.wait(4.0, alive=[client])
    assert why(cluster, waiting) == "it was cancelled 4 s ago"
    text = why(cluster, once)
    assert text.startswith("it failed ")
    assert "on worker manager-1: worker manager-1 (host, pid 1) was gone for" in text
    assert text.endswith("retries=0, and the task may have run")


def test_unoffered_requirement_is_named_with_the_available_maximum(cluster: Cluster, client: str) -> None:
    cluster.worker("w", {"gpu": 1.0})
    cluster.manager("m", capabilities={"linux": None})
    (two,) = cluster.submit(client, needs=GPU)
    (fast,) = cluster.submit(client, needs=(("fast", 0.0),))
    nobody = "no worker offers {}, and no worker manager could start one that does: there is {}"
    assert why(cluster, two) == nobody.format("gpu=2", "no more than gpu=1")
    assert why(cluster, fast) == nobody.format("fast", "no fast")


def notices(cluster: Cluster, client: str) -> list[str]:
    return [message.text for name, message in cluster.said if name == client and isinstance(message, Notice)]


def test_client_is_told_once_about_unsatisfiable_requirements(cluster: Cluster) -> None:
    client, other = cluster.client("client"), cluster.client("other")
    cluster.submit(client, needs=GPU)
    cluster.wait(5.0)
    assert notices(cluster, client) == [], "workers may still join"
    cluster.worker("w", {"gpu": 1.0})
    cluster.manager("m", capabilities={"linux": None})
    cluster.wait(0.5, alive=["w", "m"])
    told = (
        "tasks that need gpu=2 wait: no worker offers gpu=2, and no worker manager could start one that does: there is "
        "no more than gpu=1. Workers offer: gpu=1 and linux. "
        "Request less in capabilities=..., or start workers with --per-worker-capabilities gpu=2"
    )
    assert notices(cluster, client) == [told]
    cluster.submit(client, needs=GPU, priority=1)
    cluster.submit(client, needs=(("gpu", 1.0),))
    (refused,) = cluster.submit(other, needs=GPU)
    cluster.wait(2.0, alive=["w", "m"])
    assert (notices(cluster, client), notices(cluster, other)) == ([told], [told])
    cluster.worker("joined by hand", {"gpu": 8.0}, slots=4)
    assert refused in cluster.on("joined by hand")


def test_queued_task_reports_its_position(cluster: Cluster, client: str) -> None:
    cluster.worker("w", queue_size=0)
    _, following, *_, last = cluster.submit(client, 1206)
    assert why(cluster, following) == "it will run next; 1 slot can run such tasks"
    assert why(cluster, last) == "1,204 tasks will run before it; 1 slot can run such tasks"


def test_higher_priorities_and_other_clients_turns_come_first() -> None:
    cluster = Alternating()
    alice, bob = cluster.client("alice"), cluster.client("bob")
    cluster.worker("w", queue_size=0)
    cluster.submit(alice)
    first, second, third = cluster.submit(alice, 3)
    cluster.submit(bob, 10)
    urgent = cluster.submit(bob, 2, priority=1)
    assert [why(cluster, task).split()[0] for task in (first, second, third)] == ["2", "4", "6"]
    order = []
    for _ in range(9):
        (running,) = cluster.on("w")
        order.append(running)
        cluster.finish("w", running)
    assert [order.index(task) - 1 for task in (first, second, third)] == [2, 4, 6]
    assert order[1:3] == urgent


def test_manager_shows_how_long_it_waits_for_its_first_unit() -> None:
    cluster = Cluster(Two())
    (task,) = cluster.submit(cluster.client())
    manager = cluster.manager("cloud")
    report(cluster, manager, 38.0, 12.0)
    cluster.wait(2.0, alive=[manager])
    assert why(cluster, task) == "worker manager cloud has been starting its first unit for 40 s"
    cluster.scaling.managers[manager].startup_seconds = 60.0
    assert why(cluster, task) == "worker manager cloud has been starting its first unit for 40 s of about 60 s"


@pytest.mark.parametrize(
    ("name", "trouble", "text"),
    [
        ("m", "", "worker manager m is about to start 2 units"),
        ("m", "no quota", "worker manager m cannot start units now: no quota"),
        ("idle", "", "the scaling policy wants 0 units of worker manager idle: so it is"),
    ],
)
def test_manager_without_units_explains_its_next_step(name: str, trouble: str, text: str) -> None:
    cluster = Cluster(Two())
    (task,) = cluster.submit(cluster.client())
    report(cluster, cluster.manager(name), trouble=trouble)
    assert why(cluster, task) == text


def test_running_task_reports_what_its_processor_waits_for(cluster: Cluster) -> None:
    client, worker = cluster.client(), cluster.worker("w", slots=2)
    waits, runs = cluster.submit(client, 2)
    reason = "waits for the object storage at tcp://storage:1, which does not answer"
    processor = ProcessorStatus(7, 0.0, 0, True, False, waits, 1.5, 1, reason)
    cluster.say(
        worker, WorkerHeartbeat(0.0, 0.0, 0, 0, 0.0, [processor, replace(processor, running=runs, waits_for="")])
    )
    cluster.say(worker, Suspended([waits], [1], [True]))
    title = cluster.state.workers[cluster.peer(worker)].title
    assert why(cluster, waits) == f"it runs on worker {title} and {reason}"
    assert why(cluster, runs) == f"it runs on worker {title}"


def test_task_reports_that_its_worker_cannot_run_it_yet(cluster: Cluster, client: str, worker: str) -> None:
    sent, waiting = cluster.submit(client, 2, retries=0)
    reason = "the preload models:load has run for more than 30 s"
    cluster.say(worker, WorkerHeartbeat(0.0, 0.0, 0, 0, 0.0, degraded_reason=reason))
    title = cluster.state.workers[cluster.peer(worker)].title
    assert why(cluster, sent) == f"it was sent to worker {title}, where {reason}"
    assert f"on worker {title}, {reason}" in why(cluster, waiting)
    cluster.state.workers[cluster.peer(worker)].draining = True
    assert why(cluster, waiting) == f"no worker can run such tasks now (1 worker about to end): {reason}"
    cluster.say(worker, WorkerHeartbeat(0.0, 0.0, 0, 0, 0.0))
    assert why(cluster, sent) == f"it runs on worker {title}"


def test_task_on_a_worker_reports_the_tasks_ahead_of_it(cluster: Cluster) -> None:
    client, worker = cluster.client(), cluster.worker("w", slots=2)
    tasks = cluster.submit(client, 4)
    name = cluster.state.workers[cluster.peer(worker)].title
    assert [why(cluster, task) for task in tasks] == [
        f"it runs on worker {name}",
        f"it runs on worker {name}",
        f"it waits on worker {name} behind 1 task",
        f"it waits on worker {name} behind 2 tasks",
    ]
    cluster.say(worker, Suspended([tasks[0]], [1], [True]))
    assert why(cluster, tasks[0]) == f"it runs on worker {name} and waits for tasks that it submitted"
    assert why(cluster, tasks[2]) == f"it runs on worker {name}"
    cluster.break_connection(worker)
    assert why(cluster, tasks[2]) == f"it was sent to worker {name}, which is out of contact"


def test_task_waiting_for_results_names_their_tasks(cluster: Cluster, client: str) -> None:
    cluster.worker("w")
    first, second = cluster.submit(client, 2, name="load")
    (third,) = cluster.submit(client, name="clean")
    (both,) = cluster.submit(client, references=[(first, second, third)])
    assert why(cluster, both) == "it needs the results of 3 tasks: load() and clean()"
    cluster.finish("w", first, second)
    assert why(cluster, both) == "it needs the results of 1 task: clean()"


def test_urgent_task_reports_prefetched_lower_priority_tasks_ahead(cluster: Cluster) -> None:
    client = cluster.client()
    cluster.worker("w", slots=1, queue_size=2)
    cluster.submit(client, 5)
    (urgent,) = cluster.submit(client, 1, priority=9)
    assert why(cluster, urgent).startswith(
        "it will run next; 1 task of lower priority that workers received earlier may start first; "
    )
    cluster.give_back("w", cluster.on("w")[-1])
    assert why(cluster, urgent) == "it will run next; 1 slot can run such tasks"
    (lower,) = cluster.submit(client, 1, priority=-9)
    assert "lower priority" not in why(cluster, lower)
