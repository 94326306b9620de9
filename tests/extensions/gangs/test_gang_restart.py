"""Gangs of a restarted scheduler: waiting ones start, and half-begun ones start again."""

from __future__ import annotations

import pytest

from scaler.extensions.gangs.core import READY_SECONDS
from scaler.needs import GANG
from scaler.protocol.messages import Done, Outcome
from tests.extensions.durability.test_recovery import AFTER, Restarted
from tests.extensions.gangs.cluster import GangCluster


class RestartedGangs(Restarted, GangCluster):
    def members_again(self, *tasks: bytes, losses: int = 2, size: int = 0) -> None:
        """The client resubmits a gang. losses: 2 if it may start again. size: if some members have ended."""
        self.again(*tasks, needs=((f"{GANG}1/0", float(size or len(tasks))),), retries=0, losses=losses)


@pytest.fixture
def cluster() -> RestartedGangs:
    return RestartedGangs()


def test_a_waiting_gang_starts_after_the_restart_although_a_worker_has_not_returned(cluster: RestartedGangs) -> None:
    gang = cluster.ids(2)
    cluster.members_again(*gang)
    for name in "ab":
        cluster.returning(name)
    cluster.wait(AFTER, alive=["client", *"ab"])
    assert sorted(cluster.where(gang)) == ["a", "b"]


def test_a_gang_that_may_not_start_again_is_lost_unless_workers_report_it(cluster: RestartedGangs) -> None:
    gang = cluster.ids(2)
    cluster.members_again(*gang, losses=1)
    for name in "ab":
        cluster.returning(name)
    cluster.wait(AFTER, alive=["client", *"ab"])
    assert cluster.waits(gang)
    cluster.wait(60.0, alive=["client", *"ab"])
    assert cluster.ended("client", gang) == [Outcome.WORKER_LOST] * 2


def test_a_running_gang_waits_for_its_worker_that_returns_late(cluster: RestartedGangs) -> None:
    gang = cluster.ids(2)
    cluster.members_again(*gang)
    cluster.returning("a", (gang[0], 1), once=True)
    cluster.wait(10 * AFTER, alive=["client", "a"])
    cluster.returning("b", (gang[1], 1), once=True)
    assert cluster.where(gang) == ["a", "b"]
    assert not [each for name in "ab" for each in cluster.recalls(name, kill=True)]


def test_a_gang_that_has_begun_in_part_ends_as_lost(cluster: RestartedGangs) -> None:
    """The earlier scheduler stopped after its GangFormed had reached one member, which asks no more."""
    gang = cluster.ids(2)
    cluster.members_again(*gang)
    for name, task in zip("ab", gang, strict=True):
        cluster.returning(name, (task, 1), once=True)
    member = cluster.join(gang[1])
    cluster.wait(READY_SECONDS + 1.0, alive=["client", *"ab"])
    assert cluster.formed(member) is None
    assert cluster.preempted("b") == [gang[1]]
    cluster.say("b", Done([gang[1]], [1], [Outcome.NOT_STARTED], [b""], [1000]))
    cluster.step()
    assert cluster.outcome("client", gang[1]) is Outcome.WORKER_LOST
    assert cluster.recalls("a", kill=True) == [gang[0]]


def test_a_member_that_no_worker_has_is_lost_although_the_others_have_ended(cluster: RestartedGangs) -> None:
    (task,) = cluster.ids(1)
    cluster.members_again(task, size=2)
    cluster.returning("a")
    cluster.wait(AFTER + READY_SECONDS + 1.0, alive=["client", "a"])
    assert cluster.outcome("client", task) is Outcome.WORKER_LOST


def test_a_gang_submitted_in_parts_starts_once_it_is_complete(cluster: RestartedGangs) -> None:
    gang = cluster.ids(2)
    for name in "ab":
        cluster.worker(name)
    for task in gang:
        cluster.wait(READY_SECONDS / 2, alive=["client", *"ab"])
        cluster.submit("client", ids=[task], needs=((f"{GANG}1/0", 2.0),), retries=0, losses=2)
    cluster.join(gang[0])
    cluster.wait(2 * READY_SECONDS, alive=["client", *"ab"])
    assert sorted(cluster.where(gang)) == ["a", "b"]
    assert not [task for name in "ab" for task in cluster.preempted(name)]


def test_a_gang_starts_once_all_members_have_asked_again(cluster: RestartedGangs) -> None:
    gang = cluster.ids(2)
    cluster.members_again(*gang)
    for name, task in zip("ab", gang, strict=True):
        cluster.returning(name, (task, 1), once=True)
    members = [cluster.join(gang[0])]
    cluster.wait(READY_SECONDS / 2, alive=["client", *"ab"])
    members.append(cluster.join(gang[1]))
    assert all(map(cluster.formed, members))
    cluster.wait(2 * READY_SECONDS, alive=["client", *"ab"])
    assert not [task for name in "ab" for task in cluster.preempted(name)]


def test_members_placed_after_the_restart_may_start_late(cluster: RestartedGangs) -> None:
    cluster.client()
    for name in "ab":
        cluster.worker(name)
    gang = cluster.gang("client", 2)
    cluster.join(gang[0])
    cluster.wait(2 * READY_SECONDS, alive=["client", *"ab"])
    assert not [task for name in "ab" for task in cluster.preempted(name)]
