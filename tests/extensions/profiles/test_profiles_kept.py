"""Profiles at the scheduler: merged per function, bounded, and visible only with access to the tasks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scaler.extensions.profiles.core import MAX_FUNCTIONS, MAX_SAVED_SECONDS, MAX_TASKS, REPORTS_PER_SECOND, Profiles
from scaler.monitor.messages import Profiled, ReadProfile
from scaler.net.connection import Identity
from scaler.protocol.messages import TasksProfiled
from scaler.stack_profile import StackProfile
from tests.unit.scheduler.driver import Cluster

ALICE, BOB, ROOT = Identity("alice"), Identity("bob"), Identity("root", is_admin=True)


def document(name: str, *frames: str, single: bool = False, us: int = 1000) -> bytes:
    made = StackProfile()
    made.add(frames, us)
    return json.dumps({"name": name, "single": single, **made.document()}).encode()


def asked(cluster: Cluster, client: str, question: ReadProfile) -> dict[str, Any]:
    cluster.said.clear()
    cluster.say(client, question)
    [(_, answer)] = [said for said in cluster.said if said[0] == client]
    assert isinstance(answer, Profiled)
    found: dict[str, Any] = json.loads(answer.json)
    return found


class ClusterWithProfiles(Cluster):
    parts = (Profiles,)


@pytest.fixture
def cluster() -> Cluster:
    cluster = ClusterWithProfiles()
    for name, identity in (("alice", ALICE), ("bob", BOB), ("root", ROOT)):
        cluster.client(name, identity=identity)
    cluster.worker("w")
    return cluster


def test_function_reports_are_merged_and_a_long_task_has_its_own_profile(cluster: Cluster) -> None:
    [task, short] = cluster.submit("alice", 2)
    cluster.say("w", TasksProfiled(task, document("function", "main", "hot", single=True, us=3000)))
    cluster.say("w", TasksProfiled(short, document("function", "main", "hot", us=1000)))
    own = asked(cluster, "alice", ReadProfile(task))
    assert (own["of"], own["stacks"], own["samples"]) == ("task", [[3000, 0, 1]], 1)
    assert asked(cluster, "alice", ReadProfile(short))["of"] == "function"
    function = asked(cluster, "alice", ReadProfile(search="function"))
    assert (function["of"], function["stacks"], function["samples"]) == ("function", [[4000, 0, 1]], 2)
    assert asked(cluster, "alice", ReadProfile())["functions"] == [["function", 2, 4000, "hot"]]


def test_only_admins_see_profiles_of_other_keys(cluster: Cluster) -> None:
    [task] = cluster.submit("alice")
    [other] = cluster.submit("bob")
    cluster.say("w", TasksProfiled(task, document("function", "secret", single=True)))
    cluster.say("w", TasksProfiled(other, document("function", "own")))
    for question in (ReadProfile(task), ReadProfile(search="function"), ReadProfile()):
        assert "secret" not in json.dumps(asked(cluster, "bob", question))
    assert asked(cluster, "bob", ReadProfile(task)) == {"of": "", "name": ""}
    assert asked(cluster, "bob", ReadProfile(search="function"))["frames"] == ["own"]
    assert asked(cluster, "root", ReadProfile(task))["frames"] == ["secret"]
    assert set(asked(cluster, "root", ReadProfile(search="function"))["frames"]) == {"secret", "own"}
    assert asked(cluster, "root", ReadProfile())["functions"] == [["function", 2, 2000, "own"]]


def test_functions_tasks_and_reports_per_second_are_limited() -> None:
    profiles, now = Profiles(), 0.0
    for number in range(2 * MAX_FUNCTIONS):
        now += 1 / REPORTS_PER_SECOND
        profiles.add(number.to_bytes(16, "big"), "key", document(f"f{number}", "main", single=True), now)
    last = 2 * MAX_FUNCTIONS - 1
    assert profiles.of_function("f0", lambda _: True) is None
    assert profiles.of_function(f"f{last}", lambda _: True) is not None
    assert profiles.of_task(bytes(16)) is None
    assert profiles.of_task((last - MAX_TASKS + 1).to_bytes(16, "big")) is not None
    for _ in range(2 * round(REPORTS_PER_SECOND * MAX_SAVED_SECONDS)):
        profiles.add(bytes(16), "key", document("flood", "main"), now)
    flood = profiles.of_function("flood", lambda _: True)
    assert flood is not None
    assert 0 < flood.samples <= REPORTS_PER_SECOND * MAX_SAVED_SECONDS
