"""Tasks with the option `near` go to workers that have run their name, unless waiting costs more than it gains."""

from __future__ import annotations

import random
from typing import cast

import pytest

from scaler.extensions.near import core
from scaler.extensions.near.core import Names
from scaler.needs import NEAR, pinned
from scaler.protocol.messages import Done, Outcome
from tests.extensions.near.caches import FIRST, LATER, Caches
from tests.extensions.sharing.bed import WAY_SECONDS
from tests.unit.scheduler.driver import VALUE

GAIN = FIRST - LATER
SOON = 8 * WAY_SECONDS


def names(cluster: Caches) -> Names:
    return cast("Names", cluster.state.rooms.near)


def warm(cluster: Caches, name: str = "x", tasks: int = 2) -> str:
    """Let one worker run a name until its gain is known. Returns the worker."""
    for _ in range(tasks):
        cluster.seconds_until(cluster.send(name))
    (worker,) = {worker for worker, _, each in cluster.cached if each == name}
    return worker


# -- caches are used


@pytest.mark.parametrize("outstanding", [4, 60])
def test_eight_names_on_four_workers_fill_at_most_half_of_the_caches(outstanding: int) -> None:
    ended = []
    for is_near in (False, True):
        cluster = Caches(4, is_near=is_near)
        for number in range(8):
            cluster.send(f"model-{number}", outstanding, again=True)
        cluster.run(20.0)
        ended.append(len(cluster.ended))
        assert cluster.firsts.total() <= 16 if is_near else cluster.firsts.total() == 32
    assert ended[1] > 1.3 * ended[0]


def test_tasks_that_arrive_at_random_start_sooner_near_their_names() -> None:
    latencies = []
    for is_near in (False, True):
        randomly = random.Random(1)
        cluster = Caches(4, is_near=is_near)
        tasks = []
        for _ in range(400):
            cluster.run(randomly.expovariate(40))
            tasks += cluster.send(f"model-{randomly.randrange(8)}")
        cluster.seconds_until(tasks)
        latencies.append(sum(cluster.ended_at[task] - cluster.submitted[task] for task in tasks) / len(tasks))
    assert latencies[1] < latencies[0] / 3


def test_idle_worker_with_the_name_is_chosen_among_idle_workers() -> None:
    cluster = Caches(8)
    worker = warm(cluster)
    for _ in range(5):
        (task,) = cluster.send("x")
        cluster.run(0.2)
        assert cluster.workers_of[task] == worker


def test_new_name_goes_to_the_worker_with_the_fewest_names() -> None:
    cluster = Caches(4)
    for number in range(7):
        cluster.seconds_until(cluster.send(f"model-{number}"))
    (last,) = {"w0", "w1", "w2", "w3"} - {worker for worker, _, name in cluster.cached if name > "model-3"}
    for worker in ("w0", "w1", "w2", "w3"):
        cluster.seconds_until(cluster.send("", needs=pinned(cluster.peer(worker).hex())))
    cluster.seconds_until(cluster.send("", needs=pinned(cluster.peer(last).hex())))
    (task,) = cluster.send("new")
    cluster.run(0.1)
    assert cluster.workers_of[task] == last


def test_cache_filled_on_each_processor_of_a_worker_counts_as_a_first_task() -> None:
    cluster = Caches(1, slots=4)
    cluster.seconds_until(cluster.send("x", 8))
    name = names(cluster).names[NEAR + "x"]
    assert (name.first, name.later) == pytest.approx((FIRST, LATER), rel=1e-3)


# -- waiting


def test_task_waits_for_a_busy_worker_with_its_name_rather_than_filling_another_cache() -> None:
    cluster = Caches(2)
    worker = warm(cluster)
    for _ in range(2):
        tasks = cluster.send("x", 5)
        assert cluster.seconds_until(tasks) <= 5 * LATER + 5 * SOON
        assert {cluster.workers_of[task] for task in tasks} == {worker}
        cluster.run(2.0)


def test_scheduler_wakes_when_a_task_has_waited_for_the_gain() -> None:
    cluster = Caches(2)
    worker = warm(cluster)
    cluster.seconds_of[""] = 0.0, 0.5
    cluster.send("", needs=pinned(cluster.peer(worker).hex()))
    cluster.run(SOON)
    before = cluster.now
    cluster.send("x")
    assert names(cluster).again_at == pytest.approx(before + GAIN, abs=SOON)


def test_mean_duration_follows_a_longer_task_by_a_quarter() -> None:
    cluster = Caches(1)
    warm(cluster)
    cluster.seconds_of["x"] = FIRST, LATER + 0.4
    cluster.seconds_until(cluster.send("x"))
    assert names(cluster).names[NEAR + "x"].later == pytest.approx(LATER + 0.1, rel=1e-3)


def test_tasks_that_would_wait_longer_than_the_gain_go_elsewhere_at_once() -> None:
    cluster = Caches(2)
    worker = warm(cluster)
    tasks = cluster.send("x", 60)
    cluster.run(0.1)
    assert {cluster.workers_of[task] for task in tasks if task in cluster.began} == {"w0", "w1"}
    cluster.seconds_until(tasks)
    late = [task for task in tasks if cluster.workers_of[task] == worker]
    assert len(late) > 20


def test_task_waits_at_most_for_the_gain_behind_a_task_that_takes_longer_than_usual() -> None:
    cluster = Caches(3)
    worker = warm(cluster)
    cluster.seconds_of["x"] = FIRST, 5.0
    (long,) = cluster.send("x")
    cluster.run(0.3)
    tasks = cluster.send("x", 2)
    cluster.seconds_until(tasks)
    assert cluster.workers_of[long] == worker
    for task in tasks:
        assert SOON < cluster.wait_of(task) <= GAIN + SOON


def test_task_waits_at_most_for_the_gain_behind_tasks_that_pass_it() -> None:
    cluster = Caches(2)
    worker = warm(cluster)
    pin = pinned(cluster.peer(worker).hex())
    cluster.send("", 3, again=True, needs=pin, priority=1)
    cluster.run(0.1)
    (task,) = cluster.send("x")
    cluster.seconds_until([task])
    assert SOON < cluster.wait_of(task) <= GAIN + SOON


def test_wait_for_a_short_gain_ends_without_another_event() -> None:
    cluster = Caches(2)
    cluster.seconds_of["x"] = 0.1, 0.05
    warm(cluster)
    cluster.seconds_of["x"] = 0.1, 5.0
    _, task = cluster.send("x", 2)
    cluster.seconds_until([task])
    assert cluster.wait_of(task) <= 0.05 + SOON


def test_worker_out_of_contact_serves_no_waiting_task() -> None:
    cluster = Caches(2)
    cluster.seconds_of["x"] = 6.0, 5.0
    for _ in range(2):
        cluster.seconds_until(cluster.send("x", 2))
    cluster.worker("w2", slots=1)
    cluster.queues["w2"], cluster.running["w2"] = [], {}
    cluster.break_connection("w0")
    tasks = cluster.send("x", 2)
    cluster.run(1.0)
    assert max(map(cluster.wait_of, tasks)) <= SOON


def test_task_does_not_wait_behind_a_task_that_is_known_to_take_longer_than_the_gain() -> None:
    cluster = Caches(2)
    cluster.seconds_of["x"] = 6.0, 5.0
    warm(cluster)
    tasks = cluster.send("x", 2)
    cluster.seconds_until(tasks)
    assert max(map(cluster.wait_of, tasks)) <= SOON


def test_tasks_of_a_cluster_with_idle_workers_never_wait_longer_than_the_gain() -> None:
    randomly = random.Random(2)
    cluster = Caches(6)
    tasks = []
    for _ in range(300):
        cluster.run(randomly.expovariate(12))
        tasks += cluster.send(f"model-{randomly.randrange(4)}")
    cluster.seconds_until(tasks)
    assert max(cluster.wait_of(task) for task in tasks) <= GAIN + SOON


def test_task_does_not_wait_before_the_gain_is_known() -> None:
    cluster = Caches(2)
    tasks = cluster.send("x", 2)
    cluster.run(0.1)
    assert {cluster.workers_of[task] for task in tasks} == {"w0", "w1"}


def test_name_without_gain_uses_all_idle_workers() -> None:
    cluster = Caches(2)
    cluster.seconds_of["x"] = LATER, LATER
    warm(cluster)
    tasks = cluster.send("x", 2)
    cluster.run(0.1)
    assert {cluster.workers_of[task] for task in tasks} == {"w0", "w1"}


# -- no hot spot


@pytest.mark.parametrize("outstanding", [1, 2, 3, 6, 200])
def test_one_name_for_all_tasks_costs_no_throughput(outstanding: int) -> None:
    ended = []
    for is_near in (False, True):
        cluster = Caches(4, is_near=is_near)
        cluster.send("x", outstanding, again=True)
        cluster.run(10.0)
        before = len(cluster.ended)
        cluster.run(10.0)
        ended.append(len(cluster.ended) - before)
    assert ended[1] >= 0.98 * ended[0]


def test_worker_that_joins_shares_the_tasks_of_a_busy_name() -> None:
    cluster = Caches(1)
    cluster.send("x", 100, again=True)
    cluster.run(3.0)
    cluster.worker("w1", slots=1)
    cluster.queues["w1"], cluster.running["w1"] = [], {}
    cluster.run(3.0)
    before = len(cluster.ended)
    cluster.run(2.0)
    assert len(cluster.ended) - before > 1.9 * 2.0 / (LATER + 2 * WAY_SECONDS) * 0.9


# -- with other tasks


def test_clients_near_different_names_get_equal_shares() -> None:
    cluster = Caches(4)
    for client in ("b", "c"):
        cluster.guest(client)
        for number in range(3):
            cluster.send(f"{client}-{number}", 20, client, again=True)
    cluster.run(20.0)
    ended = [sum(task[:1] == client.encode() for task in cluster.ended) for client in ("b", "c")]
    assert ended[0] == pytest.approx(ended[1], rel=0.1)


def test_tasks_without_a_name_share_the_cluster_with_a_busy_name() -> None:
    cluster = Caches(4)
    warm(cluster)
    cluster.send("", 100, again=True)
    cluster.send("x", 100, again=True)
    cluster.run(10.0)
    ended = [sum(cluster.names[task] == name for task in cluster.ended) for name in ("", "x")]
    assert min(ended) > 0.3 * sum(ended)


def test_name_of_higher_priority_fills_a_cache_while_other_names_are_ready() -> None:
    cluster = Caches(1)
    cluster.send("low", 20, again=True)
    cluster.run(2.0)
    (urgent,) = cluster.send("urgent", priority=1)
    cluster.run(1.0)
    assert cluster.wait_of(urgent) <= 2 * LATER + SOON


def test_new_name_starts_while_all_workers_are_busy_with_theirs() -> None:
    cluster = Caches(2)
    for name in ("a", "b"):
        cluster.send(name, 40, again=True)
    cluster.run(5.0)
    (task,) = cluster.send("new")
    cluster.run(1.0)
    assert cluster.wait_of(task) <= 6 * LATER


def test_names_in_one_message_are_ready_for_different_workers() -> None:
    cluster = Caches(4)
    tasks = [task for number in range(8) for task in cluster.send(f"model-{number}", 20)]
    assert cluster.seconds_until(tasks) < 7.0
    assert cluster.firsts.total() <= 16


# -- balancing


def test_queued_task_moves_to_an_idle_worker_only_if_it_would_wait_longer_than_the_gain() -> None:
    cluster = Caches(2)
    worker = warm(cluster)
    (other,) = {"w0", "w1"} - {worker}
    cluster.seconds_of["other"] = 0.03, 0.03
    cluster.send("other")
    cluster.run(0.001)
    tasks = cluster.send("x", 8)
    cluster.run(2.0)
    assert {cluster.workers_of[task] for task in tasks} == {worker} != {other}
    assert cluster.recalled == 0


# -- memory


def test_lost_worker_is_forgotten_and_its_name_goes_elsewhere_at_once() -> None:
    cluster = Caches(2)
    worker = warm(cluster)
    cluster.leave(worker)
    (task,) = cluster.send("x")
    cluster.run(0.1)
    assert cluster.wait_of(task) <= SOON
    cluster.leave(cluster.workers_of[task])
    assert (names(cluster).names, names(cluster).lanes) == ({}, {})


def test_no_task_waits_for_a_worker_that_is_out_of_contact() -> None:
    cluster = Caches(2)
    worker = warm(cluster)
    cluster.break_connection(worker)
    (task,) = cluster.send("x")
    cluster.run(0.1)
    assert cluster.wait_of(task) <= SOON


def test_least_recently_used_names_of_a_worker_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "MAX_NAMES", 3)
    cluster = Caches(1)
    for name in ("a", "b", "c", "a", "d"):
        cluster.seconds_until(cluster.send(name))
    assert [*names(cluster).names] == [NEAR + name for name in ("a", "c", "d")]
    assert [*next(iter(names(cluster).lanes.values()))] == [NEAR + name for name in ("c", "a", "d")]


def test_failed_tasks_are_not_measured() -> None:
    cluster = Caches(1)
    cluster.guest("b")
    (task,) = cluster.submit("b", needs=((NEAR + "x", 0.0),))
    done = Done([task], [1], [Outcome.EXCEPTION], [VALUE], [10**6], began_us=[1], lanes=[1])
    cluster.say("w0", done)
    assert names(cluster).names[NEAR + "x"].first == 0.0


def test_changes_are_collected_only_once_a_name_is_used() -> None:
    cluster = Caches(1)
    cluster.seconds_until(cluster.send(""))
    assert not names(cluster).changes
    cluster.seconds_until(cluster.send("x"))
    assert names(cluster).changes


def test_explanation_names_the_preferred_workers_and_the_gain() -> None:
    cluster = Caches(2)
    warm(cluster)
    cluster.send("x", 5)
    cluster.run(0.02)
    assert "it prefers workers with 'x' and would take 950 ms less there: " in cluster.why_waits("a")
