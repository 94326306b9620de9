"""Preemptible tasks are stopped for tasks of higher priority, and for owners with less than their share."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from scaler.extensions.resources import LimitSettings
from scaler.extensions.resources.core import Counted
from scaler.needs import PIN
from scaler.security.keys import Share
from tests.extensions.sharing.bed import Bed
from tests.extensions.sharing.test_priorities import submit

PREEMPTIBLE: dict[str, Any] = {"preemptible": 5.0}
SOON = 0.3
"""Time after which an urgent task has started: a check, the stop, and messages."""


def bed_of(workers: int = 1, slots: int = 2, **settings: Any) -> Bed:
    """Return a cluster whose peers need not send heartbeats."""
    return Bed(workers, slots, client_timeout_seconds=1e6, worker_timeout_seconds=1e6, **settings)


def wait_of(bed: Bed, tasks: list[bytes], since: float, within: float = 100.0) -> float:
    """Return when the last of these tasks has started."""
    bed.run(within)
    return max(bed.began.get(task, bed.now + 1e9) for task in tasks) - since


def busy(workers: int = 1, slots: int = 2, seconds: float = 60.0, after: float = 10.0, **options: Any) -> Bed:
    """Return a cluster where tasks of alice have run for a while on all slots."""
    bed = bed_of(workers, slots)
    bed.guest("alice", "alice")
    bed.guest("bob", "bob")
    submit(bed, "alice", seconds, workers * slots, **{**PREEMPTIBLE, **options})
    bed.run(after)
    return bed


# -- priorities


def test_urgent_task_starts_at_once_and_the_stopped_task_runs_again() -> None:
    bed = busy()
    low = [*bed.began]
    start = bed.now
    (urgent,) = submit(bed, "bob", 1.0, priority=100)
    assert wait_of(bed, [urgent], start, 3.0) <= SOON
    bed.run(130.0)
    assert bed.ended == {*low, urgent}
    assert len(bed.stopped) == 1


def test_each_urgent_task_stops_one_task() -> None:
    bed = busy(4)
    start = bed.now
    urgent = submit(bed, "bob", 20.0, 3, priority=1)
    assert wait_of(bed, urgent, start, 3.0) <= 2 * SOON
    assert len(bed.stopped) == 3


def test_urgent_tasks_of_several_functions_do_not_wait_for_each_others_stops() -> None:
    bed = busy(4)
    bed.stop_seconds = 4.0
    start = bed.now
    urgent = [submit(bed, "bob", 20.0, priority=1, name=f"f{number}")[0] for number in range(3)]
    assert wait_of(bed, urgent, start, 10.0) <= 4.0 + 2 * SOON


def test_task_without_the_option_is_never_stopped() -> None:
    bed = busy(preemptible=0.0)
    submit(bed, "bob", 1.0, priority=100)
    bed.run(40.0)
    assert bed.stopped == []


@pytest.mark.parametrize("priority", [5, 6])
def test_task_is_not_stopped_for_its_owners_task_of_equal_or_lower_priority(priority: int) -> None:
    bed = busy(priority=priority)
    submit(bed, "alice", 1.0, priority=5)
    bed.run(40.0)
    assert bed.stopped == []


def test_task_with_the_lowest_priority_and_the_least_lost_work_is_stopped() -> None:
    bed = bed_of(1, 4)
    bed.guest("alice", "alice")
    order = []
    for priority in (0, 1, 0, 1):
        order += submit(bed, "alice", 60.0, priority=priority, **PREEMPTIBLE)
        bed.run(5.0)
    submit(bed, "alice", 1.0, priority=2)
    bed.run(1.0)
    assert [task for _, task in bed.stopped] == [order[2]]


def test_task_that_ends_soon_is_not_stopped() -> None:
    bed = bed_of()
    bed.guest("alice", "alice")
    submit(bed, "alice", 3.0, 4, **PREEMPTIBLE)
    bed.run(5.3)  # the first two are measured
    start = bed.now
    (urgent,) = submit(bed, "alice", 1.0, priority=1)
    assert wait_of(bed, [urgent], start, 5.0) <= 0.8
    assert bed.stopped == []


def test_task_runs_for_a_second_before_it_is_stopped() -> None:
    bed = busy(after=0.2)
    submit(bed, "bob", 1.0, priority=1)
    bed.run(0.7)
    assert bed.stopped == []
    bed.run(1.0)
    assert len(bed.stopped) == 1


def test_task_ends_although_urgent_ones_keep_coming() -> None:
    bed = busy(1, 1)
    (low,) = bed.began
    for _ in range(60):
        submit(bed, "bob", 1.0, priority=1)
        bed.run(5.0)
        if low in bed.ended:
            break
    assert low in bed.ended
    assert len(bed.stopped) <= 7


def test_task_is_not_stopped_for_one_that_does_not_fit_its_worker() -> None:
    bed = busy()
    submit(bed, "bob", 1.0, priority=1, needs=(("gpu", 1.0),))
    submit(bed, "bob", 1.0, priority=1, needs=((PIN + "00" * 8, 0.0),))
    bed.run(20.0)
    assert bed.stopped == []


def test_task_is_not_stopped_for_one_that_needs_more_slots_than_it_frees() -> None:
    bed = busy()
    submit(bed, "bob", 1.0, priority=1, needs=(("cpus", 2.0),))
    bed.run(5.0)
    assert bed.stopped == []


def test_task_with_several_slots_is_stopped_for_one_that_needs_them() -> None:
    bed = bed_of()
    bed.guest("alice", "alice")
    submit(bed, "alice", 60.0, needs=(("cpus", 2.0),), **PREEMPTIBLE)
    bed.run(10.0)
    start = bed.now
    (urgent,) = submit(bed, "alice", 1.0, priority=1, needs=(("cpus", 2.0),))
    assert wait_of(bed, [urgent], start, 3.0) <= SOON


def test_task_is_not_stopped_for_a_key_at_its_maximum() -> None:
    bed = bed_of()
    bed.share(bob=Share(max_slots=1))
    bed.guest("alice", "alice")
    bed.guest("bob", "bob")
    submit(bed, "bob", 60.0)
    submit(bed, "alice", 60.0, 1, **PREEMPTIBLE)
    bed.run(10.0)
    submit(bed, "bob", 1.0, 5, priority=1)
    bed.run(20.0)
    assert bed.stopped == []


def test_nothing_is_stopped_while_a_slot_is_free() -> None:
    bed = bed_of()
    bed.guest("alice", "alice")
    submit(bed, "alice", 60.0, **PREEMPTIBLE)
    bed.run(10.0)
    submit(bed, "alice", 1.0, priority=1)
    bed.run(5.0)
    assert bed.stopped == []


def test_short_urgent_task_waits_where_it_can_start_and_not_behind_a_long_one() -> None:
    bed = bed_of()
    bed.guest("alice", "alice")
    bed.guest("bob", "bob")
    submit(bed, "bob", 0.01, 20)
    bed.run(1.0)  # makes bob's tasks count as short
    submit(bed, "alice", 60.0, 2, **PREEMPTIBLE)
    bed.run(5.0)
    start = bed.now
    urgent = submit(bed, "bob", 0.01, 4, priority=1)
    assert wait_of(bed, urgent, start, 3.0) <= SOON + 0.1


def test_older_worker_is_asked_once_for_each_attempt() -> None:
    bed = busy()
    bed.can_preempt = False
    for _ in range(20):
        submit(bed, "bob", 1.0, priority=1)
        bed.run(1.0)
    assert bed.asked_to_stop == 2
    assert bed.stopped == []
    assert len(bed.ended) == 0
    bed.run(200.0)
    assert len(bed.ended) == 22


def test_result_within_the_grace_period_counts() -> None:
    bed = busy(after=58.0)
    bed.stop_seconds = 5.0
    submit(bed, "bob", 1.0, priority=1)
    bed.run(20.0)
    assert bed.stopped == []
    assert len(bed.ended) == 3


# -- shares


@pytest.mark.parametrize("after", [2.0, 20.0, 3000.0])
def test_owner_gets_its_share_within_seconds_and_no_more(after: float) -> None:
    bed = busy(4, 2, seconds=1e5, after=after)
    start = bed.now
    submit(bed, "bob", 60.0, 100)
    bed.run(8.0)
    assert bed.slots_used == {"alice": 4, "bob": 4}
    assert max(at for at, _ in bed.stopped) - start <= 6.0
    assert len(bed.stopped) == 4
    bed.run(600.0)
    assert len(bed.stopped) <= 6  # when bob's first tasks ended together, turns gave two slots to alice
    assert bed.slots_used == {"alice": 4, "bob": 4}


@pytest.mark.parametrize(("alice", "bob"), [(60.0, 5.0), (60.0, 60.0), (600.0, 60.0), (60.0, 1.0)])
@pytest.mark.parametrize("workers", [1, 4])
def test_owners_do_not_take_slots_from_each_other_in_turn(alice: float, bob: float, workers: int) -> None:
    bed = bed_of(workers)
    bed.flood("alice", alice, key="alice", **PREEMPTIBLE)
    bed.run(30.0)
    bed.flood("bob", bob, key="bob", **PREEMPTIBLE)
    bed.run(20.0)
    first = len(bed.stopped)
    assert first == workers
    shares = bed.shares(600.0)
    assert len(bed.stopped) - first <= 4
    assert shares["alice"] / sum(shares.values()) == pytest.approx(0.5, abs=0.15)


def test_freed_slots_go_to_the_other_owner_although_its_tasks_are_long() -> None:
    bed = bed_of(4)
    bed.guest("alice", "alice")
    bed.guest("bob", "bob")
    submit(bed, "bob", 60.0, 8)
    bed.run(70.0)  # bob's tasks are measured
    submit(bed, "alice", 1e5, 8, **PREEMPTIBLE)
    bed.run(100.0)
    submit(bed, "bob", 60.0, 100)
    bed.run(8.0)
    assert bed.slots_used == {"alice": 4, "bob": 4}
    assert len(bed.stopped) == 4


def test_weights_decide_how_many_tasks_are_stopped() -> None:
    bed = busy(4, 2, seconds=1e5)
    bed.share(bob=Share(weight=3.0))
    submit(bed, "bob", 60.0, 100)
    bed.run(10.0)
    assert bed.slots_used == {"alice": 2, "bob": 6}


def test_second_client_of_a_key_gets_its_share_from_the_first() -> None:
    bed = bed_of(2)
    for name in ("first", "second"):
        bed.guest(name, "team")
    submit(bed, "first", 1e5, 8, **PREEMPTIBLE)
    bed.run(10.0)
    submit(bed, "second", 60.0, 8)
    bed.run(8.0)
    assert bed.slots_used == {"first": 2, "second": 2}


def test_second_client_of_a_key_takes_no_slots_from_a_key_within_its_share() -> None:
    bed = bed_of(2)
    for name, key in (("a", "one"), ("b", "two"), ("c", "two")):
        bed.guest(name, key)
    submit(bed, "a", 1e5, 2, **PREEMPTIBLE)
    submit(bed, "b", 1e5, 2, **PREEMPTIBLE)
    bed.run(10.0)
    submit(bed, "c", 60.0, 8)
    bed.run(20.0)
    assert bed.slots_used == {"a": 2, "b": 1, "c": 1}


def test_no_task_is_stopped_if_more_work_is_lost_than_waiting_is_saved() -> None:
    bed = bed_of()
    bed.guest("alice", "alice")
    bed.guest("bob", "bob")
    submit(bed, "alice", 60.0, 4, **PREEMPTIBLE)
    bed.run(100.0)  # the first two are measured, the others end in 20 s
    submit(bed, "bob", 5.0)
    bed.run(19.0)
    assert bed.stopped == []


def test_client_that_returns_often_is_served_each_time() -> None:
    bed = busy(2, 2, seconds=1e5)
    waits = []
    for _ in range(10):
        start = bed.now
        waits.append(wait_of(bed, submit(bed, "bob", 5.0), start, 14.0))
    assert max(waits) <= 9.0


def test_stops_are_counted_and_explained() -> None:
    bed = busy()
    submit(bed, "bob", 20.0, priority=100)
    bed.run(1.0)
    task = bed.stopped[0][1]
    why = bed.state.rooms.explainer.why(task)
    assert "stopped after 10 s for a task of key bob with priority 100" in why
    turns: Any = bed.state.ready.turns
    rows = {
        row.key or row.client: row
        for row in turns.rows("shares", "", 10, bed.state.clients[bed.peer("alice")], bed.state)
    }
    assert rows["alice"].stopped == 1


def test_explain_reports_that_a_task_is_being_stopped() -> None:
    bed = busy()
    bed.stop_seconds = 5.0
    submit(bed, "bob", 20.0, priority=100)
    bed.run(1.0)
    texts = [bed.state.rooms.explainer.why(task) for task in bed.began]
    assert sum("is being stopped for a task of key bob with priority 100" in text for text in texts) == 1


def test_ended_tasks_are_not_retained() -> None:
    bed = busy()
    submit(bed, "bob", 20.0, priority=100)
    bed.run(300.0)
    preemption = vars(bed.state.ready.turns)["_preemption"]
    assert len(bed.ended) == 3
    assert not vars(preemption)["candidates"]
    assert not vars(preemption)["stops"]


def test_no_more_tasks_are_stopped_than_a_limit_lets_start() -> None:
    counted = Counted(LimitSettings(limits={"db": 1.0}))

    class Limited(Bed):
        extensions = tuple(each for each in Bed.extensions if each != "resources")
        parts = (*Bed.parts, lambda: counted)

    bed = Limited(1, 3, client_timeout_seconds=1e6, worker_timeout_seconds=1e6)
    for name in ("alice", "bob"):
        bed.guest(name, name)
    submit(bed, "alice", 60.0, 3, **PREEMPTIBLE)
    bed.run(10.0)
    urgent = submit(bed, "bob", 20.0, 2, priority=100, needs=(("limit:db", 1.0),))
    bed.run(15.0)
    assert len(bed.stopped) == 1
    assert bed.slots_used == {"alice": 2, "bob": 1}
    bed.run(40.0)
    assert bed.ended.issuperset(urgent)


# -- anything


@pytest.mark.parametrize("seed", range(12))
def test_no_work_is_lost_and_stops_are_bounded_whatever_happens(seed: int) -> None:
    rng = random.Random(seed)
    bed = bed_of(rng.randint(1, 4), rng.randint(1, 3))
    bed.stop_seconds = rng.choice([0.01, 1.0, 5.0])
    bed.can_preempt = rng.random() < 0.9
    names = ["a", "b", "c"]
    for name in names:
        bed.guest(name, name)
    stoppable: set[bytes] = set()
    every: list[bytes] = []
    for _ in range(60):
        options: dict[str, Any] = {"preemptible": rng.choice([0.0, 5.0]), "priority": rng.choice([0, 0, 0, 1, 5])}
        if rng.random() < 0.2:
            options["needs"] = (("cpus", 1.0),)
        ids = submit(bed, rng.choice(names), rng.choice([0.05, 1.0, 8.0, 40.0]), rng.randint(1, 6), **options)
        every += ids
        stoppable.update(ids if options["preemptible"] else ())
        bed.run(rng.choice([0.1, 1.0, 10.0]))
    bed.run(5_000.0)
    assert bed.ended == set(every)
    stops = Counter(task for _, task in bed.stopped)
    assert stoppable >= stops.keys()
    assert max(stops.values(), default=0) <= 12
    assert not any(worker.tasks or worker.recalled for worker in bed.state.workers.values())
