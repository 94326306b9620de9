"""Terms among the needs of tasks: limits, places, counted capabilities, and single workers."""

from __future__ import annotations

import pytest

from scaler.client.options import options_of
from scaler.errors import UsageError
from scaler.extensions.explain.core import explain
from scaler.needs import COUNTED, LIMIT, NEAR, PIN, Needs, Offers
from scaler.policy.simple import SimplePolicy
from scaler.policy.view import ClusterView, Wanted
from scaler.protocol.messages import ManagerStatus
from tests.unit.scheduler.driver import Cluster
from tests.unit.scheduler.test_status import document

ALL = ((COUNTED + "fpga", 2.0), ("gpu", 1.0), (LIMIT + "db", 2.0), (NEAR + "cache", 0.0), (PIN + "0a", 0.0))


class Seen(SimplePolicy):
    def plan(self, view: ClusterView) -> dict[str, Wanted]:
        self.view = view
        return super().plan(view)


def test_limits_and_places_are_not_compared_with_offers() -> None:
    needs = Needs(ALL)
    assert needs.fits(Offers.of({"fpga": 2.0, "gpu": 1.0}, slots=1, worker=b"\x0a"))
    assert not needs.fits(Offers.of({"fpga": 2.0, "gpu": 1.0}, slots=1, worker=b"\x0b"))
    assert not needs.fits(Offers.of({"fpga": 1.0, "gpu": 1.0}, slots=1, worker=b"\x0a"))
    assert not needs.fits(Offers.of({}, slots=1, worker=b"\x0a"))


def test_needs_are_displayed_in_words() -> None:
    assert str(Needs(ALL)) == "fpga=2,gpu=1,limit db=2,near cache,worker 0a"


def test_tasks_with_different_places_have_separate_queues_but_one_function() -> None:
    cluster = Cluster()
    client = cluster.client()
    for terms in ((), ((NEAR + "a", 0.0),), ((NEAR + "b", 0.0),)):
        cluster.submit(client, name="f", needs=terms)
    assert len(cluster.state.ready.waiting()) == 3
    assert [str(each.needs) for each in cluster.state.functions.values()] == [""]
    assert len(document(cluster)["waiting"]) == 1


def test_places_do_not_count_as_demand_for_capabilities() -> None:
    policy = Seen("allocate=even_load; scaling=vanilla")
    cluster = Cluster(policy)
    client, manager = cluster.client(), cluster.manager("m")
    cluster.say(manager, ManagerStatus(cluster.now, []))
    (task,) = cluster.submit(client, needs=(("gpu", 1.0), (NEAR + "cache", 0.0)))
    cluster.wait(1.0, alive=[client, manager])
    assert [row.needs for row in policy.view.demand] == [Needs((("gpu", 1.0),))]
    assert "there is no gpu" in explain(cluster.state, task, cluster.now)
    assert "near" not in explain(cluster.state, task, cluster.now)


@pytest.mark.parametrize(
    ("given", "amounts"),
    [
        ("db", {"db": 1.0}),
        ("db, licence", {"db": 1.0, "licence": 1.0}),
        (["db"], {"db": 1.0}),
        ({"db": 0.5}, {"db": 0.5}),
    ],
)
def test_limits_and_resources_are_a_dict_or_names(given: object, amounts: dict[str, float]) -> None:
    for option, prefix in (("limits", LIMIT), ("resources", COUNTED)):
        needs = options_of({option: given}, "submit").needs  # type: ignore[misc]
        assert dict(needs) == {prefix + name: amount for name, amount in amounts.items()}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"limits": 3}, "limits is 3, but must be a dict"),
        ({"limits": {"db": 0}}, "limits['db'] is 0, but must be a number from 0.001"),
        ({"limits": {"db": True}}, "limits['db'] is True"),
        ({"limits": {"d b": 1}}, "limits contains 'd b': a name consists of letters"),
        ({"limits": [1]}, "limits contains 1"),
        ({"resources": {"gpu": 1}}, "resources has 'gpu', which is a separate option: gpu=..."),
        ({"resources": {"fpga": float("inf")}}, "resources['fpga'] is inf"),
    ],
)
def test_wrong_limits_and_resources_are_refused_with_the_remedy(given: dict[str, object], text: str) -> None:
    with pytest.raises(UsageError) as caught:
        options_of(given, "submit")  # type: ignore[arg-type]
    assert text in str(caught.value)
