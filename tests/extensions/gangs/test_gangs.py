"""Gangs: all members start in one step, on the permitted hosts, and stop together."""

from __future__ import annotations

from typing import Any

import pytest

from scaler.extensions.gangs.core import FIRST_SECONDS, RESERVE_AFTER_SECONDS
from scaler.extensions.resources import LimitSettings
from scaler.extensions.resources.core import Counted
from scaler.needs import GANG
from scaler.protocol.messages import Cancel, Outcome, Unanswered
from scaler.scheduler.core.durability import RECOVERY_SECONDS
from scaler.scheduler.core.state import Task
from scaler.security.keys import Share
from tests.extensions.gangs.cluster import GangCluster
from tests.extensions.sharing.bed import Bed
from tests.unit.scheduler.driver import Cluster

CANCELLED, LOST = Outcome.CANCELLED, Outcome.WORKER_LOST
GB = 1e9


@pytest.fixture
def cluster() -> GangCluster:
    return GangCluster()


@pytest.fixture
def client(cluster: GangCluster) -> str:
    return cluster.client()


def limited(**limits: float) -> GangCluster:
    """A cluster with limits, which are open."""
    counted = Counted(LimitSettings(limits=limits))

    class Limited(GangCluster):
        extensions = tuple(each for each in GangCluster.extensions if each != "resources")
        parts = (*Cluster.parts, lambda: counted)

    cluster = Limited()
    cluster.client()
    cluster.worker("a", slots=8)
    cluster.wait(RECOVERY_SECONDS + 0.5, alive=["client", "a"])
    return cluster


def test_members_start_once_all_of_them_have_a_slot(cluster: GangCluster, client: str) -> None:
    cluster.worker("a", slots=2)
    gang = cluster.gang(client, 3)
    assert cluster.waits(gang)
    cluster.worker("b")
    assert cluster.where(gang) == ["a", "a", "b"]


def test_a_gang_does_not_start_with_prefetched_members(cluster: GangCluster, client: str) -> None:
    cluster.worker("a")
    cluster.worker("b")
    (task,) = cluster.submit(client)
    gang = cluster.gang(client, 2)
    assert cluster.waits(gang)
    cluster.finish(cluster.where([task])[0], task)
    assert sorted(cluster.where(gang)) == ["a", "b"]


def test_a_host_gets_no_more_members_than_permitted(cluster: GangCluster, client: str) -> None:
    cluster.on_host("a", "x", slots=4)
    gang = cluster.gang(client, 3, per_host=2)
    assert cluster.waits(gang)
    cluster.on_host("b", "x")
    assert cluster.waits(gang)
    cluster.on_host("c", "y")
    assert sorted(cluster.where(gang)) == ["a", "a", "c"]


def test_members_share_few_hosts_in_order_of_rank(cluster: GangCluster, client: str) -> None:
    for name, host in (("a", "x"), ("b", "y"), ("c", "z"), ("d", "y")):
        cluster.on_host(name, host)
    gang = cluster.gang(client, 3)
    hosts = [cluster.state.workers[cluster.peer(name)].host for name in cluster.where(gang)]
    assert hosts == ["y", "y", "x"]


def test_members_that_share_the_memory_of_a_host_all_find_room_or_none_starts(
    cluster: GangCluster, client: str
) -> None:
    for name in "ab":
        cluster.worker(name, memory_bytes=16 * GB, memory_pool="machine")
    large = cluster.gang(client, 2, needs=(("memory", 10 * GB),))
    assert cluster.waits(large)
    small = cluster.gang(client, 2, needs=(("memory", 7 * GB),))
    assert sorted(cluster.where(small)) == ["a", "b"]
    assert all(len(cluster.state.workers[cluster.peer(name)].claims.by_task) == 1 for name in "ab")


def test_members_with_several_cpus_take_the_slots_of_each(cluster: GangCluster, client: str) -> None:
    cluster.worker("a", slots=4)
    assert cluster.waits(cluster.gang(client, 2, needs=(("cpus", 3.0),)))
    gang = cluster.gang(client, 2, needs=(("cpus", 2.0),))
    assert cluster.where(gang) == ["a", "a"]


@pytest.mark.parametrize("outcome", [Outcome.EXCEPTION, Outcome.TIMED_OUT, Outcome.PROCESSOR_DIED])
def test_a_failed_member_stops_all_others_at_once(cluster: GangCluster, client: str, outcome: Outcome) -> None:
    for name in "abc":
        cluster.worker(name)
    gang = cluster.gang(client, 3)
    workers = cluster.where(gang)
    cluster.finish(workers[1], gang[1], outcome=outcome, payload=b"\x80 why")
    cluster.step()
    assert cluster.recalls(workers[0], kill=True) == [gang[0]]
    assert cluster.recalls(workers[2], kill=True) == [gang[2]]
    for index in (0, 2):
        cluster.finish(workers[index], gang[index], outcome=CANCELLED, payload=b"killed")
    first = LOST if outcome is Outcome.PROCESSOR_DIED else outcome
    assert cluster.ended(client, gang)[::2] == [CANCELLED, CANCELLED]
    assert cluster.outcome(client, gang[1]) in (first, outcome)


def test_a_lost_worker_stops_all_members(cluster: GangCluster, client: str) -> None:
    for name in "ab":
        cluster.worker(name)
    gang = cluster.gang(client, 2)
    lost, other = cluster.where(gang)
    cluster.leave(lost, "killed")
    cluster.step()
    assert cluster.outcome(client, gang[0]) is LOST
    assert cluster.recalls(other, kill=True) == [gang[1]]


def test_a_cancelled_member_stops_all_members_and_frees_their_slots(cluster: GangCluster, client: str) -> None:
    for name in "ab":
        cluster.worker(name)
    gang = cluster.gang(client, 2)
    workers = cluster.where(gang)
    cluster.cancel(client, gang[0])
    cluster.step()
    for worker, task in zip(workers, gang, strict=True):
        assert cluster.recalls(worker, kill=True) == [task]
        cluster.finish(worker, task, outcome=CANCELLED, payload=b"killed")
        cluster.step()
    assert cluster.ended(client, gang) == [CANCELLED, CANCELLED]
    assert not cluster.waits(cluster.gang(client, 2))


def test_a_member_returned_unstarted_ends_its_gang_as_lost(cluster: GangCluster, client: str) -> None:
    for name in "ab":
        cluster.worker(name)
    gang = cluster.gang(client, 2)
    drained, other = cluster.where(gang)
    cluster.give_back(drained, gang[0])
    cluster.step()
    assert cluster.outcome(client, gang[0]) is LOST
    assert cluster.recalls(other, kill=True) == [gang[1]]


def test_an_exception_caused_by_a_lost_worker_does_not_replace_the_loss_as_the_reason(
    cluster: GangCluster, client: str
) -> None:
    for name in "ab":
        cluster.worker(name)
    gang = cluster.gang(client, 2)
    lost, other = cluster.where(gang)
    cluster.break_connection(lost)
    cluster.finish(other, gang[1], outcome=Outcome.EXCEPTION)
    cluster.wait(5.0, alive=[client, other])
    assert cluster.ended(client, gang) == [LOST, Outcome.EXCEPTION]


def test_a_member_whose_worker_regains_contact_is_stopped(cluster: GangCluster, client: str) -> None:
    for name in "ab":
        cluster.worker(name)
    gang = cluster.gang(client, 2)
    far, other = cluster.where(gang)
    cluster.break_connection(far)
    cluster.finish(other, gang[1], outcome=Outcome.EXCEPTION)
    assert cluster.recalls(far, kill=True) == []
    cluster.wait(1.0, alive=[client, far, other])
    assert cluster.recalls(far, kill=True) == [gang[0]]


def test_a_member_is_neither_prefetched_nor_recalled(cluster: GangCluster, client: str) -> None:
    cluster.worker("a", slots=2)
    gang = cluster.gang(client, 2)
    cluster.submit(client, 20)
    cluster.worker("b", slots=2)
    cluster.wait(10.0, alive=[client, "a", "b"])
    assert not {*cluster.recalls("a", kill=False)} & {*gang}
    assert cluster.where(gang) == ["a", "a"]


# -- rendezvous


def test_all_members_learn_their_rank_and_hosts_when_the_last_is_ready(cluster: GangCluster, client: str) -> None:
    cluster.on_host("a", "x")
    cluster.on_host("b", "y")
    gang = cluster.gang(client, 2)
    second = cluster.join(gang[1], "10.0.0.2", 22)
    assert cluster.formed(second) is None
    first = cluster.join(gang[0], "10.0.0.1", 11)
    for rank, name in enumerate((first, second)):
        formed = cluster.formed(name)
        assert formed is not None
        assert (formed.rank, formed.hosts, formed.port, formed.number) == (rank, ["10.0.0.1", "10.0.0.2"], 11, 7)


def test_a_loopback_address_is_replaced_by_the_name_of_its_host_if_others_must_reach_it(
    cluster: GangCluster, client: str
) -> None:
    cluster.on_host("a", "x")
    cluster.on_host("b", "y")
    gang = cluster.gang(client, 2)
    cluster.join(gang[0], "127.0.0.1")
    formed = cluster.formed(cluster.join(gang[1], "10.0.0.2"))
    assert formed is not None
    assert formed.hosts == [cluster.state.workers[cluster.peer(cluster.where(gang)[0])].host, "10.0.0.2"]


def test_a_task_outside_a_gang_cannot_join_one(cluster: GangCluster, client: str) -> None:
    cluster.worker("a")
    (task,) = cluster.submit(client)
    name = cluster.join(task)
    assert any(isinstance(message, Unanswered) for peer, message in cluster.said if peer == name)


# -- waiting


def stream(cluster: GangCluster, client: str, seconds: float, *names: str) -> int:
    """Keep these workers busy with tasks of 0.1 s, one ending at a time. Returns how many ended."""
    until, ended = cluster.now + seconds, 0
    while cluster.now < until:
        for name in names:
            cluster.submit(client, 2)
            cluster.wait(0.1 / len(names), alive=[client, *names])
            plain = [task for task in cluster.on(name) if not cluster.state.living_task(task).needs.gang]  # type: ignore[union-attr]
            if plain:
                cluster.finish(name, plain[0])
                ended += 1
    return ended


def test_a_stream_of_small_tasks_cannot_starve_a_gang(cluster: GangCluster, client: str) -> None:
    for name in "ab":
        cluster.worker(name)
    cluster.submit(client, 20)
    gang = cluster.gang(client, 2)
    other = cluster.client("other")
    stream(cluster, other, RESERVE_AFTER_SECONDS / 2, "a", "b")
    assert cluster.waits(gang)
    stream(cluster, other, 6.0, "a", "b")
    assert not cluster.waits(gang)


def test_slots_are_reserved_for_a_limited_time_and_then_free_for_as_long(cluster: GangCluster, client: str) -> None:
    for name in "ab":
        cluster.worker(name)
    (long,) = cluster.submit(client)
    (busy,) = cluster.where([long])
    (free,) = {"a", "b"} - {busy}
    gang = cluster.gang(client, 2)
    cluster.wait(RESERVE_AFTER_SECONDS + 0.5, alive=[client, "a", "b"])
    (small,) = cluster.submit(client, retries=0)
    assert cluster.where([small]) == [""]
    assert "slots of 2 workers are reserved for it" in cluster.why(gang[0])
    cluster.wait(FIRST_SECONDS, alive=[client, "a", "b"])
    assert cluster.where([small]) == [free]
    cluster.finish(free, small)
    cluster.wait(FIRST_SECONDS / 2, alive=[client, "a", "b"])
    assert not cluster.extension.kept
    cluster.wait(FIRST_SECONDS, alive=[client, "a", "b"])
    assert len(cluster.extension.kept) == 2
    cluster.wait(1.2 * FIRST_SECONDS, alive=[client, "a", "b"])
    assert len(cluster.extension.kept) == 2, "the second reservation lasts twice as long"
    cluster.finish(busy, long)
    assert not cluster.waits(gang)
    assert not cluster.extension.kept


def test_only_one_gang_accumulates_slots(cluster: GangCluster, client: str) -> None:
    for name in "abcd":
        cluster.worker(name)
    tasks = cluster.submit(client, 4, retries=0)
    where = dict(zip(tasks, cluster.where(tasks), strict=True))
    first, second = cluster.gang(client, 3), cluster.gang(client, 3)
    cluster.wait(RESERVE_AFTER_SECONDS + 0.5, alive=[client, *"abcd"])
    for task in tasks[:3]:
        cluster.finish(where[task], task)
    assert not cluster.waits(first) or cluster.extension.kept
    cluster.finish(where[tasks[3]], tasks[3])
    assert not cluster.waits(first)
    assert cluster.waits(second)
    for task, worker in zip(first, cluster.where(first), strict=True):
        cluster.finish(worker, task)
    assert not cluster.waits(second)


def test_a_gang_of_higher_priority_takes_over_the_reservation(cluster: GangCluster, client: str) -> None:
    for name in "ab":
        cluster.worker(name)
    (long,) = cluster.submit(client)
    low = cluster.gang(client, 2)
    cluster.wait(RESERVE_AFTER_SECONDS + 0.5, alive=[client, *"ab"])
    high = cluster.gang(client, 2, priority=1)
    cluster.wait(RESERVE_AFTER_SECONDS + 0.5, alive=[client, *"ab"])
    assert "reserved for it" in cluster.why(high[0])
    assert "reserved for another gang" in cluster.why(low[0])
    cluster.finish(cluster.where([long])[0], long)
    assert cluster.waits(low)
    assert not cluster.waits(high)


def test_a_cancelled_gang_releases_its_reservation(cluster: GangCluster, client: str) -> None:
    for name in "ab":
        cluster.worker(name)
    cluster.submit(client)
    gang = cluster.gang(client, 2)
    cluster.wait(RESERVE_AFTER_SECONDS + 0.5, alive=[client, *"ab"])
    assert cluster.extension.kept
    cluster.cancel(client, *gang)
    cluster.step()
    assert not cluster.extension.kept
    assert all(worker.claims.reserved is None for worker in cluster.state.workers.values())


def test_no_slot_is_reserved_for_a_gang_too_large_for_the_current_workers(cluster: GangCluster, client: str) -> None:
    cluster.worker("a")
    gang = cluster.gang(client, 2)
    cluster.wait(3 * RESERVE_AFTER_SECONDS, alive=[client, "a"])
    (small,) = cluster.submit(client, retries=0)
    assert cluster.where([small]) == ["a"]
    assert "its gang of 2 is too large for the cluster, whose workers offer 1 slot" in cluster.why(gang[0])


def test_a_gang_that_a_manager_can_make_room_for_waits_for_workers(cluster: GangCluster, client: str) -> None:
    cluster.worker("a")
    cluster.manager("m", max_concurrency=4)
    assert "its gang of 2 waits for more workers" in cluster.why(cluster.gang(client, 2)[0])


def test_a_slot_reserved_for_a_large_task_is_not_taken(cluster: GangCluster, client: str) -> None:
    cluster.worker("a", slots=2)
    cluster.submit(client)
    large = cluster.submit(client, needs=(("cpus", 2.0),))
    cluster.wait(RESERVE_AFTER_SECONDS + 0.5, alive=[client, "a"])
    assert cluster.state.workers[cluster.peer("a")].claims.reserved is not None
    assert cluster.waits(cluster.gang(client, 1))
    assert cluster.where(large) == [""]


def test_tasks_queued_on_reserved_workers_are_recalled(cluster: GangCluster, client: str) -> None:
    for name in "ab":
        cluster.worker(name)
    cluster.submit(client, 8, retries=3)
    queued = {name: cluster.on(name)[1:] for name in "ab"}
    assert all(queued.values())
    cluster.gang(client, 2)
    cluster.wait(RESERVE_AFTER_SECONDS + 0.5, alive=[client, *"ab"])
    assert {name: cluster.recalls(name, kill=False) for name in "ab"} == queued


def test_members_start_only_if_a_limit_has_room_for_all() -> None:
    cluster, client = limited(db=3.0), "client"
    first, second = (cluster.gang(client, 2, needs=(("limit:db", 1.0),)) for _ in range(2))
    assert not cluster.waits(first)
    cluster.wait(RESERVE_AFTER_SECONDS + 0.5, alive=[client, "a"])
    assert cluster.waits(second)
    assert not cluster.extension.kept, "slots that would be idle"
    cluster.finish("a", *first)
    assert not cluster.waits(second)


def test_single_tasks_do_not_keep_a_gang_from_its_limit() -> None:
    cluster = limited(db=3.0)
    singles = cluster.submit("client", 60, needs=(("limit:db", 1.0),))
    gang = cluster.gang("client", 3, needs=(("limit:db", 1.0),))
    for _ in range(60):
        cluster.wait(0.25, alive=["client", "a"])
        running = [task for task in singles if cluster.where([task]) == ["a"]]
        cluster.finish("a", running[0])
        if not cluster.waits(gang):
            break
    assert not cluster.waits(gang)
    cluster.finish("a", *gang)
    cluster.step()
    assert len([task for task in singles if cluster.where([task]) == ["a"]]) == 3, "the reservation has ended"


def test_tasks_of_its_key_do_not_keep_a_gang_from_starting_below_a_maximum() -> None:
    class GangBed(Bed):
        extensions = (*Bed.extensions, "gangs")

    bed = GangBed(1, slots=4)
    bed.share(alice=Share(max_slots=2))
    bed.guest("gang", "alice")
    for name, key in (("single", "alice"), ("other", "bob")):
        bed.flood(name, lambda number: 0.1 + 0.013 * (number % 5), key=key)
    bed.run(1.0)
    gang = [bed.task_id("gang") for _ in range(2)]
    bed.seconds.update(dict.fromkeys(gang, 0.1))
    bed.submit("gang", ids=gang, needs=((f"{GANG}1/0", 2.0),), retries=0)
    bed.run(20.0)
    assert bed.ended.issuperset(gang)


def test_a_gang_stops_without_a_search_through_all_tasks_of_its_client(cluster: GangCluster, client: str) -> None:
    class Watched(dict[bytes, Task]):
        searched = 0

        def values(self) -> Any:
            self.searched += 1
            return super().values()

    cluster.check_every = 10**9  # checks read all tasks
    cluster.worker("a", slots=2)
    gang = cluster.gang(client, 2)
    waiting = cluster.gang(client, 3)
    record = cluster.state.clients[cluster.peer(client)]
    record.tasks = watched = Watched(record.tasks)
    cluster.finish("a", gang[0], outcome=Outcome.EXCEPTION)
    cluster.step()
    assert cluster.recalls("a", kill=True) == [gang[1]]
    cluster.say(client, Cancel([waiting[0]]))
    cluster.step()
    assert cluster.ended(client, waiting) == [CANCELLED] * 3
    assert not watched.searched


def test_a_scheduler_without_the_extension_refuses_gangs() -> None:
    class Without(GangCluster):
        extensions = Cluster.extensions

    cluster = Without()
    client, _ = cluster.client(), cluster.worker("a", slots=2)
    gang = cluster.gang(client, 2)
    assert cluster.ended(client, gang) == [Outcome.REJECTED] * 2
    assert b"need the extension 'gangs'" in cluster.outcomes(client)[gang[0]][1]


@pytest.mark.parametrize("term", ["gang:", "gang:1", "gang:1/x", "gang:1/0/", "gang:" + "1" * 99 + "/0"])
def test_a_malformed_gang_is_refused(cluster: GangCluster, client: str, term: str) -> None:
    cluster.worker("a")
    (task,) = cluster.submit(client, needs=((term, 1.0),), retries=0)
    assert cluster.outcome(client, task) is Outcome.REJECTED


def test_ends_of_tasks_are_observed_only_while_gangs_exist(cluster: GangCluster, client: str) -> None:
    usual = cluster.extension.changes
    cluster.worker("a", slots=2)
    gang = cluster.gang(client, 2)
    assert len(cluster.extension.changes) > len(usual)
    cluster.finish("a", *gang)
    cluster.step()
    assert cluster.extension.changes == usual
