"""Tasks wait at the scheduler while a worker prepares their environment. Pure."""

from __future__ import annotations

from scaler.extensions.environment.messages import EnvironmentState
from scaler.protocol.messages import Outcome
from tests.unit.scheduler.driver import FUNCTION, Cluster

DEFINITION = FUNCTION  # any known definition will do


class Waiting(Cluster):
    extensions = (*Cluster.extensions, "environment")

    def prepares(self, worker: str, *ids: bytes) -> None:
        self.say(worker, EnvironmentState(DEFINITION, False))
        self.give_back(worker, *ids)


def test_tasks_avoid_a_worker_that_prepares_their_environment_and_others_run_there() -> None:
    cluster = Waiting()
    cluster.client()
    cluster.worker("slow", slots=2)
    first, second = cluster.submit("client", 2, environment=DEFINITION)
    assert set(cluster.on("slow")) == {first, second}
    cluster.prepares("slow", first, second)
    assert cluster.on("slow") == []
    [usual] = cluster.submit("client")
    assert cluster.on("slow") == [usual]
    assert "its environment is being installed on 1 worker" in cluster.state.rooms.explainer.why(first)
    cluster.worker("quick")
    assert set(cluster.on("quick")) == {first, second}
    cluster.say("slow", EnvironmentState(DEFINITION, True))
    [third] = cluster.submit("client", environment=DEFINITION)
    assert cluster.on("slow") == [usual, third]


def test_idle_worker_that_prepares_takes_no_task_from_a_busy_one() -> None:
    cluster = Waiting()
    cluster.client()
    cluster.worker("idle")
    cluster.say("idle", EnvironmentState(DEFINITION, False))
    cluster.worker("busy")
    tasks = cluster.submit("client", 3, environment=DEFINITION, retries=3, expected_seconds=1.0)
    cluster.wait(0.5, alive=("busy", "idle"))
    assert cluster.on("idle") == []
    assert cluster.recalls("busy", kill=False) == []
    cluster.say("idle", EnvironmentState(DEFINITION, True))
    cluster.wait(1.0, alive=("busy", "idle"))
    cluster.give_back("busy", *cluster.recalls("busy", kill=False))
    assert set(cluster.on("idle")) < set(tasks)
    assert cluster.on("idle")


def test_new_session_of_a_worker_forgets_its_preparations() -> None:
    cluster = Waiting()
    cluster.client()
    cluster.worker("one")
    [task] = cluster.submit("client", environment=DEFINITION)
    cluster.prepares("one", task)
    cluster.leave("one")
    cluster.worker("one")
    assert cluster.on("one") == [task]


def test_scheduler_without_the_extension_rejects_tasks_with_an_environment() -> None:
    cluster = Cluster()
    cluster.client()
    cluster.worker("one")
    [task] = cluster.submit("client", environment=DEFINITION)
    outcome, text = cluster.outcomes("client")[task]
    assert outcome == Outcome.REJECTED
    assert b"need the extension 'environment'" in text
