"""Gangs of a scheduler that ends at any time, whose successor reads its journal."""

from __future__ import annotations

from typing import cast

import pytest

from scaler.extensions.gangs.core import READY_SECONDS, RESERVE_AFTER_SECONDS
from scaler.needs import GANG
from scaler.protocol.messages import Outcome
from tests.extensions.durability.test_durability import AFTER, JournaledCluster
from tests.extensions.durability.test_recovery import Restarted
from tests.extensions.gangs.cluster import GangCluster

LOST = Outcome.WORKER_LOST


class JournaledGangs(JournaledCluster, GangCluster, Restarted):
    extensions = (*JournaledCluster.extensions, "gangs")  # type: ignore[assignment]

    def two(self) -> tuple[list[bytes], list[str]]:
        """Submit a gang of two that may start again. Returns its members and their workers."""
        gang = self.submit("client", 2, needs=((f"{GANG}1/0", 2.0),), retries=0, losses=2)
        return gang, self.where(gang)

    def restarted(self) -> JournaledGangs:
        after = cast("JournaledGangs", self.killed())
        after.comes_back("client")
        return after


@pytest.fixture
def cluster() -> JournaledGangs:
    cluster = JournaledGangs()
    cluster.client()
    for name in "ab":
        cluster.worker(name)
    return cluster


@pytest.mark.parametrize("returns", [False, True])
def test_a_member_that_no_worker_has_after_the_restart_ends_its_gang(cluster: JournaledGangs, returns: bool) -> None:
    gang, (kept, lost) = cluster.two()
    after = cluster.restarted()
    after.returning(kept, (gang[0], 1), once=True)
    if returns:
        after.returning(lost)
    after.wait(200.0, alive=["client", kept, lost][: 2 + returns])
    assert after.recalls(kept, kill=True) == [gang[0]]
    assert after.outcome("client", gang[1]) is LOST


def test_a_gang_whose_worker_is_lost_before_all_are_ready_again_ends_once(cluster: JournaledGangs) -> None:
    gang, workers = cluster.two()
    after = cluster.restarted()
    for name, task in zip(workers, gang, strict=True):
        after.returning(name, (task, 1), once=True)
    after.join(gang[0])
    after.leave(workers[1])
    after.step()
    assert after.recalls(workers[0], kill=True) == [gang[0]]
    after.finish(workers[0], gang[0], outcome=Outcome.CANCELLED, payload=b"killed")
    after.wait(READY_SECONDS + 1.0, alive=["client", workers[0]])
    assert after.ended("client", gang) == [Outcome.CANCELLED, LOST]
    assert not after.preempted(workers[0])


def test_a_gang_whose_reserved_worker_is_lost_starts_on_another(cluster: JournaledGangs) -> None:
    (long,) = cluster.submit("client")
    (busy,) = cluster.where([long])
    (free,) = {"a", "b"} - {busy}
    gang, _ = cluster.two()
    after = cluster.restarted()
    after.returning(busy, (long, 1))
    after.returning(free)
    after.wait(AFTER + RESERVE_AFTER_SECONDS + 1.0, alive=["client", "a", "b"])
    assert len(after.extension.kept) == 2
    after.leave(free)
    after.wait(0.5, alive=["client", busy])
    assert after.waits(gang)
    assert not after.extension.kept
    after.worker("c")
    after.finish(busy, long)
    assert sorted(after.where(gang)) == sorted([busy, "c"])


def test_a_member_returned_after_another_has_ended_is_lost(cluster: JournaledGangs) -> None:
    gang, workers = cluster.two()
    cluster.finish(workers[0], gang[0])
    cluster.give_back(workers[1], gang[1])
    assert cluster.ended("client", gang) == [Outcome.SUCCESS, LOST]
