"""What is kept of failed tasks: how they ended, what they printed, and what they ran; for how long, and how much."""

from __future__ import annotations

import pytest

from scaler.ids import owner_of
from scaler.protocol.messages import (
    FailedTask,
    ForgetObjects,
    ForgetOwner,
    LinkObject,
    Outcome,
    Printed,
    ReadFailure,
    ReadLog,
    Spec,
    Submit,
    TaskGroup,
    TaskLog,
    stored_reference,
)
from scaler.scheduler.core import failures, logs
from scaler.scheduler.core.commands import ObjectLinked, SendToStorage
from scaler.scheduler.core.explain import explain
from scaler.serialization.exceptions import dump_exception
from tests.unit.scheduler.driver import CODE, FUNCTION, VALUE, Cluster
from tests.unit.scheduler.test_events import Watched, rows

RAISED = dump_exception(ValueError("smile 3"), "Traceback: in calibrate")
MIB = 1024 * 1024


def fail(cluster: Cluster, client: str, worker: str, payload: bytes = b"\x80 args", **more: object) -> bytes:
    """Run a task that prints a line and fails. more: options of Spec, and references."""
    references = more.pop("references", None)
    task = cluster.task_id(client)
    spec = Spec(function=FUNCTION, name="calibrate", **more)  # type: ignore[arg-type]
    group = TaskGroup(spec, [task], [payload], [references] if references else [])  # type: ignore[list-item]
    cluster.say(client, Submit([(FUNCTION, CODE)], [group], 0))
    cluster.say(worker, Printed([task], [True], [0], [b"no smile\n"]))
    cluster.finish(worker, task, outcome=Outcome.EXCEPTION, payload=RAISED)
    return task


def ask(cluster: Cluster, client: str, question: ReadFailure | ReadLog) -> FailedTask | TaskLog:
    cluster.say(client, question)
    answer = cluster.said[-1][1]
    assert isinstance(answer, FailedTask | TaskLog)
    return answer


def links(cluster: Cluster) -> list[LinkObject]:
    return [each for each in to_storage(cluster) if isinstance(each, LinkObject)]


def to_storage(cluster: Cluster) -> list[object]:
    return [command.message for command in cluster.commands if isinstance(command, SendToStorage)]


class Forgetful(Cluster):
    """Remembers no tasks that ended."""

    parts = ()


def test_a_failure_keeps_its_story_traceback_and_output_however_many_tasks_succeed_and_print_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logs, "MAX_LOG_BYTES", 100_000)
    watched = Watched(Forgetful(), slots=50)
    cluster = watched.cluster
    task = fail(cluster, watched.client, watched.worker)
    watched.finish(50)
    for number in range(6):  # more than the limit of all output
        (printing,) = cluster.submit(watched.client)
        cluster.say(watched.worker, Printed([printing], [False], [0], [b"x" * 30_000]))
        cluster.finish(watched.worker, printing)
        if number == 0:
            cluster.say(watched.worker, Printed([task], [False], [0], [b"late\n"]))
    assert "it raised ValueError: smile 3" in explain(cluster.state, task, cluster.now)
    log = ask(cluster, watched.client, ReadLog(task))
    assert log == TaskLog(task, b"late\n", b"no smile\n", 0, b"Traceback: in calibrate")
    assert [row["id"] for row in rows(watched.past()) if row["state"] == "exception"] == [task.hex()]


def test_a_client_is_told_what_a_task_of_another_one_that_has_left_ran(cluster: Cluster) -> None:
    alice, worker = cluster.client("alice"), cluster.worker("w")
    (needed,) = cluster.submit(alice)
    cluster.finish(worker, needed)
    task = fail(cluster, alice, worker, b"\x80 arguments", references=(needed,), retries=7)
    cluster.leave(alice)
    answer = ask(cluster, cluster.client("bob"), ReadFailure(task))
    assert isinstance(answer, FailedTask)
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
    cluster = Cluster()
    client, worker = cluster.client(), cluster.worker("w")
    large = cluster.object_id(client)
    arguments = stored_reference(large, 5 * MIB)
    first, second = (fail(cluster, client, worker, arguments, references=(large,)) for _ in range(2))
    (link,) = links(cluster)
    assert (link.target, owner_of(link.id) == owner_of(large)) == (large, False)
    cluster.step(ObjectLinked(link.request, 5 * MIB))
    cluster.leave(client)
    assert ForgetOwner(cluster.peer(client)) in to_storage(cluster)
    bob = cluster.client("bob")
    answer = ask(cluster, bob, ReadFailure(second))
    assert isinstance(answer, FailedTask)
    assert answer.runs[0].payloads == [stored_reference(link.id, 5 * MIB)]
    fail(cluster, bob, worker)
    assert not any(isinstance(each, ForgetObjects) and link.id in each.ids for each in to_storage(cluster))
    fail(cluster, bob, worker)
    assert any(isinstance(each, ForgetObjects) and link.id in each.ids for each in to_storage(cluster))
    assert first not in cluster.state.failures


def test_only_so_much_is_kept_in_the_storage_for_failures_and_the_newest_ones_have_it(cluster: Cluster) -> None:
    client, worker = cluster.client(), cluster.worker("w")
    size = failures.MAX_PINNED_BYTES // 3

    def forgotten(sizes: list[int]) -> list[int]:
        """Let tasks with objects of these sizes fail; return whose objects the storage may forget."""
        cluster.commands.clear()
        for each in sizes:
            large = cluster.object_id(client)
            fail(cluster, client, worker, references=(large,))
            cluster.step(ObjectLinked(links(cluster)[-1].request, each))
        names = [link.id for link in links(cluster)]
        told = [name for each in to_storage(cluster) if isinstance(each, ForgetObjects) for name in each.ids]
        return [names.index(name) for name in told if name in names]

    assert forgotten([size] * 5) == [0, 1]
    assert forgotten([4 * size, 1]) == [0]
    assert cluster.state.failures.pinned_bytes <= failures.MAX_PINNED_BYTES
