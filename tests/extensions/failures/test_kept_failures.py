"""Retention of failed tasks, with outcomes and inputs: its duration and size."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from scaler.extensions.explain.core import explain
from scaler.extensions.failures import core as failures
from scaler.extensions.failures.core import MAX_HELD_BYTES, Failures
from scaler.monitor.messages import FailedTask, ReadFailure
from scaler.protocol.messages import ForgetObjects, Outcome, Release, Spec, Submit, TaskGroup, stored_reference
from scaler.scheduler.core.commands import Command, SendToStorage
from scaler.serialization.exceptions import dump_exception
from tests.unit.scheduler.driver import CODE, FUNCTION, VALUE, Cluster
from tests.unit.scheduler.test_events import Watched, rows

RAISED = dump_exception(ValueError("smile 3"), "Traceback: in calibrate")
MIB = 1024 * 1024


class KeepsFailures(Cluster):
    """Retains no other finished tasks."""

    def __init__(self) -> None:
        self.failures = Failures()
        self.parts = (lambda: self.failures,)
        super().__init__()

    def step_once(self, *inputs: Any) -> list[Command]:
        commands = super().step_once(*inputs)
        failures, held = self.failures, self.failures._held  # noqa: SLF001
        kept = failures._kept.values()  # noqa: SLF001
        assert Counter(each for failure in kept for each in failure.held) == failures._uses  # noqa: SLF001
        assert failures._uses.keys() == held.keys()  # noqa: SLF001
        assert failures.held_bytes == sum(held.values()) <= MAX_HELD_BYTES
        return commands


@pytest.fixture
def cluster() -> KeepsFailures:
    return KeepsFailures()


def fail(cluster: Cluster, client: str, worker: str, payload: bytes = b"\x80 args", **more: object) -> bytes:
    """Run a failing task. more: options of Spec, and references."""
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


def forgotten(cluster: Cluster) -> list[bytes]:
    """Return the objects that the scheduler released in the storage."""
    told = [command.message for command in cluster.commands if isinstance(command, SendToStorage)]
    return [identifier for each in told if isinstance(each, ForgetObjects) for identifier in each.ids]


def test_failure_keeps_its_history_despite_later_successes(cluster: KeepsFailures) -> None:
    watched = Watched(cluster, slots=50)
    task = fail(cluster, watched.client, watched.worker)
    watched.finish(50)
    assert "it raised ValueError: smile 3" in explain(cluster.state, task, cluster.now)
    assert [row["id"] for row in rows(watched.past()) if row["state"] == "exception"] == [task.hex()]


def test_client_can_ask_about_a_task_of_a_departed_client(cluster: Cluster) -> None:
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


def test_objects_of_a_failure_are_kept_as_long_as_the_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "MAX_FAILURES", 2)
    cluster = KeepsFailures()
    client, worker = cluster.client(), cluster.worker("w")
    large = cluster.object_id(client)
    arguments = stored_reference(large, 5 * MIB)
    first, second = (fail(cluster, client, worker, arguments, references=(large,)) for _ in range(2))
    cluster.say(client, Release([large]))
    assert cluster.failures.held_bytes == 5 * MIB
    assert ask(cluster, client, second).runs[0].payloads == [arguments]
    fail(cluster, client, worker)
    assert large not in forgotten(cluster)
    fail(cluster, client, worker)
    assert forgotten(cluster).count(large) == 1
    assert cluster.failures.find(first) is None


def test_storage_for_failures_is_limited_to_the_newest(cluster: KeepsFailures) -> None:
    client, worker = cluster.client(), cluster.worker("w")
    size = failures.MAX_HELD_BYTES // 3

    def dropped(sizes: list[int]) -> list[int]:
        """Let tasks with objects of these sizes fail, and release them; return which ones the storage may drop."""
        cluster.commands.clear()
        names = [cluster.object_id(client) for _ in sizes]
        for name, each in zip(names, sizes, strict=True):
            fail(cluster, client, worker, stored_reference(name, each), references=(name,))
            cluster.say(client, Release([name]))
        return [names.index(name) for name in forgotten(cluster) if name in names]

    assert dropped([size] * 5) == [0, 1]
    assert dropped([4 * size, 1]) == [0]
    assert cluster.failures.held_bytes <= failures.MAX_HELD_BYTES
