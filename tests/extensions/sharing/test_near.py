"""Turns among tasks that prefer a host and tasks with other needs."""

from __future__ import annotations

import pytest

from tests.unit.scheduler.test_locality import Hosts


@pytest.mark.parametrize("reverse", [False, True])
def test_queue_of_tasks_with_a_near_name_takes_turns_with_another(reverse: bool) -> None:
    cluster = Hosts(1, 2)
    for name in ("a", "b"):
        cluster.client(name)
    blocking = [*cluster.run(2, worker="w1", client="a"), *cluster.run(2, worker="w2", client="b")]
    first, second = ("a", "b") if not reverse else ("b", "a")
    near = cluster.run(6, near=[(1,)], client=first)
    other = cluster.run(6, client=second, needs=(("cpus", 1.0),))
    for _ in range(30):
        for worker in ("w1", "w2"):
            for task in cluster.on(worker)[:1]:
                cluster.finish(worker, task, seconds=1.0)
                cluster.now += 0.5
    for name in ("a", "b"):
        assert not cluster.state.clients[cluster.peer(name)].tasks
    assert len(cluster.outcomes("a") | cluster.outcomes("b")) == len(blocking + near + other)
