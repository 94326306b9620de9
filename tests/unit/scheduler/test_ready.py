"""Ready queues: order, turns, and what becomes of tasks that are dropped where they lie."""

from __future__ import annotations

from collections.abc import Sequence

from scaler.needs import Needs
from scaler.protocol.messages import Spec
from scaler.scheduler.core.calls import CallRecord
from scaler.scheduler.core.durations import Timing
from scaler.scheduler.core.ready import ReadyQueue, ReadyQueues
from scaler.scheduler.core.state import TERMINATED, ClientRecord, Function, Group, Task

PLAIN = Needs()
GPU = Needs.of({"gpu": 1})


def group(client: str = "a", priority: int = 0, depth: int = 0, needs: Needs = PLAIN) -> Group:
    spec = Spec(b"f" * 16, priority=priority, needs=needs.items)
    return Group(
        ClientRecord(client.encode().ljust(8, b"."), client, 0.0),
        spec,
        (spec.function,),
        0,
        needs,
        (-priority, -depth),
        depth,
        Timing(),
        Function("f", Needs()),
        CallRecord((b"client..", "f"), "client", "f", 0.0),
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


def test_tasks_of_one_client_leave_in_the_order_in_which_they_came() -> None:
    queues, queue = empty()
    of = group()
    first, *rest = tasks(of, 5)
    queues.add(of, [first])
    queues.add(of, rest)
    assert queue.count == 5
    assert drain(queue) == [first, *rest]
    assert queue.count == 0


def test_clients_take_turns_and_one_with_less_work_is_not_waited_for() -> None:
    queues, queue = empty()
    a, b, c = (tasks(group(name), count) for name, count in (("a", 4), ("b", 1), ("c", 2)))
    for of in (a, b, c):
        queues.add(of[0].group, of)
    assert drain(queue) == [a[0], b[0], c[0], a[1], c[1], a[2], a[3]]


def test_a_client_that_comes_later_gets_its_turn_after_those_that_wait() -> None:
    queues, queue = empty()
    a, b = tasks(group("a"), 3), tasks(group("b"), 2)
    queues.add(a[0].group, a)
    assert queue.take() is a[0]
    queues.add(b[0].group, b)
    assert drain(queue) == [a[1], b[0], a[2], b[1]]


def test_higher_priority_comes_first_then_deeper_nesting_whatever_arrived_first() -> None:
    queues, queue = empty()
    plain, deep, urgent = group(), group(depth=2), group(priority=1)
    for of in (plain, deep, urgent):
        queues.add(of, tasks(of, 1))
    assert [task.group for task in drain(queue)] == [urgent, deep, plain]


def test_a_task_that_had_left_before_goes_ahead_of_its_clients_others() -> None:
    queues, queue = empty()
    first, second = tasks(group(), 2)
    queues.add(first.group, [first, second])
    assert queue.take() is first
    queues.add_one(first, None, is_first=True)
    assert drain(queue) == [first, second]


def test_a_dropped_task_is_counted_out_at_once_and_never_taken() -> None:
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


def test_a_queue_of_dropped_tasks_alone_is_empty_and_not_waiting() -> None:
    queues = ReadyQueues()
    of = group()
    dropped = tasks(of, 3)
    queues.add(of, dropped)
    drop(queues, dropped)
    assert queues.waiting() == []
    assert queues.of(PLAIN).take() is None


def test_dropped_tasks_are_swept_out_before_they_outnumber_the_others_by_much() -> None:
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


def test_tasks_that_stay_are_taken_once_when_dropped_ones_are_swept_out_between() -> None:
    queues, queue = empty()
    of = group()
    first, *rest = tasks(of, 2_500)
    queues.add(of, [first, *rest])
    assert queue.take() is first
    drop(queues, rest[:1_500])
    assert drain(queue) == rest[1_500:]
    assert queue.count == 0


def test_turns_survive_the_sweep_of_a_clients_last_task() -> None:
    queues = ReadyQueues()
    a, b = group("a"), group("b")
    gone, staying = tasks(a, 3_000), tasks(b, 3)
    queues.add(a, gone)
    queues.add(b, staying)
    drop(queues, gone)
    assert drain(queues.of(PLAIN)) == staying


def test_each_requirement_has_its_own_queue_and_the_best_rank_is_served_first() -> None:
    queues = ReadyQueues()
    plain, urgent = group(), group(priority=5, needs=GPU)
    queues.add(plain, tasks(plain, 2))
    queues.add(urgent, tasks(urgent, 1))
    assert [queue.needs for queue in queues.waiting()] == [GPU, PLAIN]
    assert queues.count == 3


def test_requirements_that_nobody_waits_for_are_forgotten() -> None:
    queues = ReadyQueues()
    of = group(needs=GPU)
    queues.add(of, tasks(of, 1))
    queues.drop_empty()
    assert queues.of(GPU).count == 1
    drain(queues.of(GPU))
    before = queues.of(GPU)
    queues.drop_empty()
    assert queues.of(GPU) is not before
