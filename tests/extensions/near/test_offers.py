"""Which workers a queue is offered to, how many tasks each, and when the queue waits instead."""

from __future__ import annotations

import math
from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import pytest

from scaler.extensions.near import core
from scaler.extensions.near.core import Name, Names
from scaler.scheduler.core.placement import MAX_HELD_BACK
from tests.extensions.near.test_waits import Fake, task, worker

GAIN = 0.9
OWNER = object()


class Pass:
    """A queue near 'x' with a number of ready tasks."""

    def __init__(self, count: int, *own: Any) -> None:
        """own: workers with the name."""
        self.names = Names()
        group = SimpleNamespace(owner=OWNER, rank=(0, 0), timing=Fake(seconds=0.1))
        first = task()
        first.group = group
        self.queue: Any = Fake(count=count, needs=SimpleNamespace(near="near:x", is_counted=False), first=lambda: first)
        cluster: Any = Fake(
            ready=SimpleNamespace(queues={"x": self.queue}), changes=SimpleNamespace(resolve=lambda: None)
        )
        self.names.cluster = cluster
        if own:
            self.names.names["near:x"] = Name(dict.fromkeys(own), first=1.0, later=0.1)
            self.names.lanes = {each.name: OrderedDict({"near:x": set()}) for each in own}

    def offer(self, *idle: Any, prefetch: bool = False, budget: int = 99, now: float = 0.0) -> list[tuple[Any, int]]:
        """Offer the queue to idle workers. Returns who was offered how many, in order."""
        offered: list[tuple[Any, int]] = []

        def give(each: Any, share: int) -> int:
            offered.append((each, share))
            assert len(offered) < 99
            given: int = min(share, self.queue.count, each.takes)
            self.queue.count -= given
            each.busy += given
            if each.busy >= each.slots and not prefetch:
                del self.side[each]
                each.side = None
            return given

        self.side = OrderedDict.fromkeys(idle)
        for each in idle:
            each.side = self.side
        self.names.offer(self.queue, [self.side], prefetch, budget, give, now)
        return offered

    @property
    def waits(self) -> bool:
        return self.queue in self.names._since  # noqa: SLF001


def idle(slots: int = 1, *, takes: int = 99, busy: int = 0) -> Any:
    """takes: maximum number of tasks accepted at once."""
    found = worker(busy, slots, at=-10.0)
    found.takes, found.side, found.name = takes, None, str(id(found))
    return found


def busy_own() -> Any:
    found = idle(busy=1)
    found.load, found.progress.at = 0.3, 0.0
    return found


@pytest.mark.parametrize(("count", "budget"), [(3, 1), (6, 2), (9, 3)])
def test_no_more_tasks_are_placed_than_the_budget(count: int, budget: int) -> None:
    each = Pass(count)
    each.offer(idle(4), idle(4), idle(4), budget=budget)
    assert each.queue.count == count - budget


def test_tasks_are_split_evenly_and_rounded_up() -> None:
    first, second = idle(4), idle(4)
    assert Pass(5).offer(first, second) == [(first, 3), (second, 3)]


def test_worker_is_offered_no_more_than_its_free_slots_unless_it_prefetches() -> None:
    one = idle(2, busy=1, takes=1)
    assert Pass(4).offer(one)[0] == (one, 1)
    assert Pass(4).offer(one, prefetch=True)[0] == (one, 2)


def test_offered_worker_goes_to_the_end_of_its_side() -> None:
    first, second = idle(2), idle(2)
    each = Pass(1)
    each.offer(first, second)
    assert [*each.side] == [second, first]


def test_worker_that_took_a_part_is_offered_the_rest() -> None:
    one = idle(4, takes=1)
    assert [worker for worker, _ in Pass(2).offer(one)] == [one, one]


@pytest.mark.parametrize(("takes", "prefetch", "offers"), [(0, True, MAX_HELD_BACK), (0, False, 6), (1, True, 6)])
def test_only_prefetching_stops_after_several_workers_took_nothing(takes: int, prefetch: bool, offers: int) -> None:
    workers = [idle(6, takes=takes) for _ in range(6)]
    assert len({each for each, _ in Pass(6).offer(*workers, prefetch=prefetch)}) == offers


def test_workers_prefetch_the_first_tasks_of_a_name_for_one_worker() -> None:
    lost = idle()
    lost.is_willing = False
    for each in (Pass(9), Pass(9, lost)):
        each.offer(idle(2), idle(2), prefetch=True)
        assert each.queue.count == 7
    each = Pass(3)
    each.offer(idle(), idle(), idle())
    assert each.queue.count == 0


def test_workers_with_the_name_are_offered_tasks_once_and_only_if_they_may_run_them() -> None:
    own, unfit, other = idle(takes=0), idle(), idle(takes=0)
    offered = [each for each, _ in Pass(99, own, unfit).offer(own, other)]
    assert offered == [own, other]


def test_only_the_first_workers_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "MAX_COMPARED", 2)
    assert len(Pass(9).offer(*[idle() for _ in range(3)])) == 2
    own = [idle() for _ in range(3)]
    assert Name(dict.fromkeys(own), later=0.1).startable(task(), 0.05, 0.0) == 2
    assert len(Pass(9, *own).offer(*own)) == 2


# -- waiting


def test_queue_waits_for_the_gain_or_for_an_earlier_time() -> None:
    each = Pass(1, own := busy_own())
    assert each.offer(idle()) == []
    assert (each.waits, each.names.again_at) == (True, GAIN)
    each.names.again_at = 0.5
    each.offer(idle(), now=0.1)
    assert each.names.again_at == 0.5
    own.load, own.progress.at = 0.5, 0.6
    assert each.offer(idle(), now=0.6) != [], "it would wait longer than the gain in total"


def test_queue_does_not_wait_in_a_pass_that_prefetches_or_has_no_other_worker_or_whose_others_take_none() -> None:
    own = idle(takes=0)
    refused = Pass(99, own)
    refused.offer(own, idle(takes=0))
    prefetching, alone, spent = Pass(1, busy_own()), Pass(2, own), Pass(2, free := busy_own())
    prefetching.offer(idle(), prefetch=True)
    alone.offer(own)
    free.busy = 0
    spent.offer(free, idle(), budget=1)
    for each in (refused, prefetching, alone, spent):
        assert (each.waits, each.names.again_at) == (False, math.inf)


@pytest.mark.parametrize(
    ("takes", "prefetch", "count", "waits"),
    [(1, False, 2, True), (0, True, 2, True), (0, False, 2, False), (1, False, 1, False), (1, True, 0, False)],
)
def test_wait_continues_while_tasks_are_left_of_those_placed(
    takes: int, prefetch: bool, count: int, waits: bool
) -> None:
    own = idle(takes=takes)
    each = Pass(count, own)
    each.names._since[each.queue] = 0.0  # noqa: SLF001
    each.offer(own, prefetch=prefetch, budget=1)
    assert each.waits == waits


# -- reserved workers


@pytest.mark.parametrize(
    ("busy", "idle_seconds", "owner", "rank", "is_counted", "given"),
    [
        (0, 0.01, OWNER, 0, False, 0),
        (0, 0.03, OWNER, 0, False, 1),
        (1, 0.03, OWNER, 0, False, 0),
        (0, 0.01, object(), 0, False, 1),
        (0, 0.01, OWNER, 1, False, 1),
        (0, 0.01, OWNER, 0, True, 1),
    ],
)
def test_worker_is_kept_briefly_for_ready_tasks_with_its_own_name(
    busy: int, idle_seconds: float, owner: object, rank: int, is_counted: bool, given: int
) -> None:
    kept, gone = idle(2 - busy, busy=busy), idle()
    each = Pass(99, gone)
    other = Pass(1).queue
    other.needs = SimpleNamespace(near="near:y", is_counted=is_counted)
    ready = SimpleNamespace(group=SimpleNamespace(owner=owner, rank=(rank, 0)))
    other.first = lambda: ready
    each.names.names["near:y"] = Name({kept: None})
    each.names.cluster.ready.queues = {"x": each.queue, "y": other}  # type: ignore[dict-item]
    kept.progress.at = -idle_seconds
    assert len({one for one, _ in each.offer(kept, prefetch=busy > 0)}) == given
    each.names.cluster.ready.queues = {"x": each.queue}  # type: ignore[dict-item]
    assert each.offer(kept, prefetch=True, now=1e-3) != [], "the other task is no longer ready"
