"""Terms among the needs of tasks: conditions that no worker offers."""

from __future__ import annotations

from scaler.extensions.explain.core import explain
from scaler.needs import LIMIT, NEAR, PIN, Needs, Offers
from scaler.policy.simple import SimplePolicy
from scaler.policy.view import ClusterView, Wanted
from scaler.protocol.messages import ManagerStatus
from tests.unit.scheduler.driver import Cluster
from tests.unit.scheduler.test_status import document

ALL = (("gpu", 1.0), (LIMIT + "db", 2.0), (NEAR + "cache", 0.0), (PIN + "0a", 0.0))


class Seen(SimplePolicy):
    def plan(self, view: ClusterView) -> dict[str, Wanted]:
        self.view = view
        return super().plan(view)


def test_only_capabilities_and_the_pin_are_compared_with_offers() -> None:
    needs = Needs(ALL)
    assert needs.fits(Offers.of({"gpu": 1.0}, slots=1, worker=b"\x0a"))
    assert not needs.fits(Offers.of({"gpu": 1.0}, slots=1, worker=b"\x0b"))
    assert not needs.fits(Offers.of({}, slots=1, worker=b"\x0a"))


def test_text_names_terms_in_words() -> None:
    assert str(Needs(ALL)) == "gpu=1,limit db=2,near cache,worker 0a"


def test_tasks_with_different_terms_have_queues_of_their_own_but_one_function() -> None:
    cluster = Cluster()
    client = cluster.client()
    for terms in ((), ((NEAR + "a", 0.0),), ((NEAR + "b", 0.0),)):
        cluster.submit(client, name="f", needs=terms)
    assert len(cluster.state.ready.waiting()) == 3
    assert [str(each.needs) for each in cluster.state.functions.values()] == [""]
    assert len(document(cluster)["waiting"]) == 1


def test_terms_are_no_demand_for_capabilities() -> None:
    policy = Seen("allocate=even_load; scaling=vanilla")
    cluster = Cluster(policy)
    client, manager = cluster.client(), cluster.manager("m")
    cluster.say(manager, ManagerStatus(cluster.now, []))
    (task,) = cluster.submit(client, needs=ALL[:3])
    cluster.wait(1.0, alive=[client, manager])
    assert [row.needs for row in policy.view.demand] == [Needs(ALL[:1])]
    assert "there is no gpu" in explain(cluster.state, task, cluster.now)
    assert "limit" not in explain(cluster.state, task, cluster.now)
