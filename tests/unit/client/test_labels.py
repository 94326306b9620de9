"""What a client of a durable session tells the scheduler about its tasks, and when."""

from __future__ import annotations

from scaler.client.labels import MAX_ROWS, Labels, TasksAdopted, TasksLabelled
from scaler.client.tasks import ClientTask
from scaler.protocol.messages import LabelTasks, Redeliver

A, B = b"a" * 16, b"b" * 16


def labelled(*ids: bytes) -> TasksLabelled:
    return TasksLabelled([*ids], [b"key of " + each[:1] for each in ids], [b""] * len(ids))


def test_labels_are_sent_once_and_run_failed_tasks_again() -> None:
    labels = Labels()
    labels.take(labelled(A, B))
    assert list(labels.messages([A, B])) == [LabelTasks([A, B], [b"key of a", b"key of b"], [b"", b""], True)]
    assert not list(labels.messages([A, B]))


def test_after_a_restart_labels_of_unfinished_tasks_are_sent_again_and_run_nothing_again() -> None:
    labels = Labels()
    labels.take(labelled(A, B))
    list(labels.messages([A, B]))
    labels.restart([B], [A])
    assert list(labels.messages([B])) == [LabelTasks([B], [b"key of b"], [b""], False), Redeliver([A])]
    labels.take(labelled(A))
    assert list(labels.messages([A, B])) == [LabelTasks([A], [b"key of a"], [b""], True)]


def test_adopted_tasks_are_unfinished_and_their_results_are_asked_for() -> None:
    labels = Labels()
    task = ClientTask(A, None, b"")
    assert labels.take(TasksAdopted([task])) == {A: task}
    assert list(labels.messages([A])) == [Redeliver([A])]
    assert not list(labels.messages([A]))


def test_long_lists_are_cut_and_labels_of_tasks_that_have_ended_are_dropped() -> None:
    labels = Labels()
    ids = [number.to_bytes(16, "big") for number in range(MAX_ROWS + 1)]
    labels.take(labelled(*ids))
    assert [len(message.ids) for message in labels.messages([]) if isinstance(message, LabelTasks)] == [MAX_ROWS, 1]
    labels.restart(ids, [])
    assert not list(labels.messages(ids))
