"""What is kept of failed tasks: how they ended, and what they ran; for how long, and how much."""

from __future__ import annotations

from typing import Any

import pytest

from scaler.extensions.failures import core as failures
from scaler.extensions.failures.core import Failures
from scaler.ids import owner_of
from scaler.protocol.messages import (
    FailedTask,
    ForgetObjects,
    ForgetOwner,
    LinkObject,
    ObjectsWanted,
    Outcome,
    ReadFailure,
    Spec,
    Submit,
    TaskGroup,
    stored_reference,
)
from scaler.scheduler.core.changes import ObjectLinked
from scaler.scheduler.core.commands import Command, SendToStorage, ShellObserved
from scaler.scheduler.core.explain import explain
from scaler.serialization.exceptions import dump_exception
from tests.unit.scheduler.driver import CODE, FUNCTION, VALUE, Cluster
from tests.unit.scheduler.test_events import Watched, rows
from tests.unit.scheduler.test_stores import SIZE, Hosts, hosts_with_result

RAISED = dump_exception(ValueError("smile 3"), "Traceback: in calibrate")
MIB = 1024 * 1024


class KeepsFailures(Cluster):
    """Remembers no other tasks that ended."""

    def __init__(self) -> None:
        self.failures = Failures()
        self.parts = (lambda: self.failures,)
        super().__init__()

    def step_once(self, *inputs: Any) -> list[Command]:
        commands = super().step_once(*inputs)
        self.failures.check()
        return commands


@pytest.fixture
def cluster() -> KeepsFailures:
    return KeepsFailures()


def fail(cluster: Cluster, client: str, worker: str, payload: bytes = b"\x80 args", **more: object) -> bytes:
    """Run a task that fails. more: options of Spec, and references."""
    references = more.pop("references", None)
    task = cluster.task_id(client)
    spec = Spec(function=FUNCTION, name="calibrate", **more)  # type: ignore[arg-type]
    group = TaskGroup(spec, [task], [payload], [references] if references else [])  # type: ignore[list-item]
    cluster.say(client, Submit([(FUNCTION, CODE)], [group], 0))
    cluster.finish(worker, task, outcome=Outcome.EXCEPTION, payload=RAISED)
    return task


def ask(cluster: Cluster, client: str, task: bytes) -> FailedTask:
    cluster.say(client, ReadFailure(task))
    answer = cluster.said[-1][1]
    assert isinstance(answer, FailedTask)
    return answer


def links(cluster: Cluster) -> list[LinkObject]:
    return [each for each in to_storage(cluster) if isinstance(each, LinkObject)]


def to_storage(cluster: Cluster) -> list[object]:
    return [command.message for command in cluster.commands if isinstance(command, SendToStorage)]


def test_a_failure_keeps_its_story_however_many_tasks_succeed_after_it(cluster: KeepsFailures) -> None:
    watched = Watched(cluster, slots=50)
    task = fail(cluster, watched.client, watched.worker)
    watched.finish(50)
    assert "it raised ValueError: smile 3" in explain(cluster.state, task, cluster.now)
    assert [row["id"] for row in rows(watched.past()) if row["state"] == "exception"] == [task.hex()]


def test_a_client_is_told_what_a_task_of_another_one_that_has_left_ran(cluster: Cluster) -> None:
    alice, worker = cluster.client("alice"), cluster.worker("w")
    (needed,) = cluster.submit(alice)
    cluster.finish(worker, needed)
    task = fail(cluster, alice, worker, b"\x80 arguments", references=(needed,), retries=7)
    cluster.leave(alice)
    answer = ask(cluster, cluster.client("bob"), task)
    (run,) = answer.runs
    assert (run.spec.name, run.spec.retries, run.payloads, run.inputs) == (
        "calibrate",
        7,
        [b"\x80 arguments"],
        [(VALUE,)],
    )
    assert answer.functions == [(FUNCTION, CODE)]
    assert answer.text == ""


def test_objects_of_a_failure_are_kept_by_another_name_until_the_failure_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "MAX_FAILURES", 2)
    cluster = KeepsFailures()
    client, worker = cluster.client(), cluster.worker("w")
    large = cluster.object_id(client)
    arguments = stored_reference(large, 5 * MIB)
    first, second = (fail(cluster, client, worker, arguments, references=(large,)) for _ in range(2))
    (link,) = links(cluster)
    assert (link.target, owner_of(link.id) == owner_of(large)) == (large, False)
    cluster.step(ShellObserved([ObjectLinked(link.request, 5 * MIB)]))
    cluster.leave(client)
    assert ForgetOwner(cluster.peer(client)) in to_storage(cluster)
    bob = cluster.client("bob")
    answer = ask(cluster, bob, second)
    assert answer.runs[0].payloads == [stored_reference(link.id, 5 * MIB)]
    fail(cluster, bob, worker)
    assert not any(isinstance(each, ForgetObjects) and link.id in each.ids for each in to_storage(cluster))
    fail(cluster, bob, worker)
    assert any(isinstance(each, ForgetObjects) and link.id in each.ids for each in to_storage(cluster))
    assert cluster.failures.find(first) is None


def test_only_so_much_is_kept_in_the_storage_for_failures_and_the_newest_ones_have_it(
    cluster: KeepsFailures,
) -> None:
    client, worker = cluster.client(), cluster.worker("w")
    size = failures.MAX_PINNED_BYTES // 3

    def forgotten(sizes: list[int]) -> list[int]:
        """Let tasks with objects of these sizes fail; return whose objects the storage may forget."""
        cluster.commands.clear()
        for each in sizes:
            large = cluster.object_id(client)
            fail(cluster, client, worker, references=(large,))
            cluster.step(ShellObserved([ObjectLinked(links(cluster)[-1].request, each)]))
        names = [link.id for link in links(cluster)]
        told = [name for each in to_storage(cluster) if isinstance(each, ForgetObjects) for name in each.ids]
        return [names.index(name) for name in told if name in names]

    assert forgotten([size] * 5) == [0, 1]
    assert forgotten([4 * size, 1]) == [0]
    assert cluster.failures.pinned_bytes <= failures.MAX_PINNED_BYTES


def test_an_input_of_a_failed_task_that_only_a_host_has_gets_its_second_name_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failures = Failures()
    monkeypatch.setattr(Hosts, "parts", (lambda: failures,))
    cluster, result = hosts_with_result(2)
    cluster.worker("w2")
    [task] = cluster.submit("client", references=[(result,)])
    [name] = [name for name in ("w1", "w2") if cluster.on(name)]
    cluster.finish(name, task, outcome=Outcome.EXCEPTION, payload=b"\x04no exception")
    [link] = cluster.told("s1", LinkObject)
    assert link.target == result
    assert not cluster.told("storage", LinkObject)
    cluster.leave("client")
    assert cluster.holders(result) | cluster.holders(link.id) == {1}
    cluster.storage_says(ObjectsWanted([link.id]))
    assert cluster.fetches("storage") == [(link.id, 1)]
    assert failures.pinned_bytes == SIZE
