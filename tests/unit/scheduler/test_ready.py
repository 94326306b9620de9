"""Ready queues: order, round robin, and dropped tasks."""

from __future__ import annotations

from collections.abc import Sequence

from scaler.needs import Needs
from scaler.protocol.messages import Spec
from scaler.scheduler.core.ready import ReadyQueue, ReadyQueues
from scaler.scheduler.core.state import TERMINATED, ClientRecord, Function, Group, Task, Timing

PLAIN = Needs()
GPU = Needs.of({"gpu": 1})


def group(client: str = "a", priority: int = 0, depth: int = 0, needs: Needs = PLAIN) -> Group:
    spec = Spec(b"f" * 16, priority=priority, needs=needs.items)
    record = ClientRecord(client.encode().ljust(8, b"."), client, 0.0)
    return Group(
        record, record, spec, (spec.function,), 0, needs, (-priority, -depth), depth, Timing(), Function("f", Needs())
    )


def tasks(of: Group, count: int) -> list[Task]:
    return [Task(of.client.id + number.to_bytes(8, "big"), of, b"", ()) for number in range(count)]


def empty() -> tuple[ReadyQueues, ReadyQueue]:
    queues = ReadyQueues()
    return queues, queues.of(PLAIN)


def drain(queue: ReadyQueue) -> list[Task]:
    found = []
    while (task := queue.take()) is not None:
        found.append(task)
    return found


def drop(queues: ReadyQueues, dropped: Sequence[Task]) -> None:
    for task in dropped:
        task.state = TERMINATED
        queues.drop(task)


def test_clients_alternate_and_do_not_wait_for_idle_ones() -> None:
    queues, queue = empty()
    a, b, c = (tasks(group(name), count) for name, count in (("a", 4), ("b", 1), ("c", 2)))
    for of in (a, b, c):
        queues.add(of[0].group, of)
    assert drain(queue) == [a[0], b[0], c[0], a[1], c[1], a[2], a[3]]


def test_priority_precedes_nesting_depth_which_precedes_arrival() -> None:
    queues, queue = empty()
    plain, deep, urgent = group(), group(depth=2), group(priority=1)
    for of in (plain, deep, urgent):
        queues.add(of, tasks(of, 1))
    assert [task.group for task in drain(queue)] == [urgent, deep, plain]


def test_dropped_task_is_uncounted_at_once_and_never_dispatched() -> None:
    queues = ReadyQueues()
    of = group()
    first, second, third = tasks(of, 3)
    queues.add(of, [first, second, third])
    drop(queues, [second])
    queue = queues.of(PLAIN)
    assert (queues.count, queue.tombstones, of.ready) == (2, 1, 2)
    assert list(queue) == [first, third]
    assert drain(queue) == [first, third]
    assert queue.tombstones == 0


def test_dropped_tasks_are_swept_before_they_dominate() -> None:
    queues = ReadyQueues()
    of = group()
    everything = tasks(of, 10_000)
    queues.add(of, everything)
    most = 0
    for task in everything[:9_000]:
        drop(queues, [task])
        queue = queues.of(PLAIN)
        most = max(most, queue.tombstones - queue.count)
    assert most <= 1
    assert queue.tombstones <= 5_001
    assert drain(queue) == everything[9_000:]


def test_each_requirement_has_a_queue_served_by_rank() -> None:
    queues = ReadyQueues()
    plain, urgent = group(), group(priority=5, needs=GPU)
    queues.add(plain, tasks(plain, 2))
    queues.add(urgent, tasks(urgent, 1))
    assert [queue.needs for queue in queues.waiting()] == [GPU, PLAIN]
    assert queues.count == 3
