"""Keys and groups get slots in proportion to their weights, and at most their maximum."""

from __future__ import annotations

import pytest

from scaler.policy.view import ClusterView, Wanted
from scaler.security.keys import Share
from tests.extensions.sharing.bed import Bed, split
from tests.unit.scheduler.driver import NoScaling


class Watching(NoScaling):
    view: ClusterView | None = None

    def plan(self, view: ClusterView) -> dict[str, Wanted]:
        self.view = view
        return {}


def test_keys_share_by_weight() -> None:
    bed = Bed(2, slots=2)
    bed.share(alice=Share(weight=3.0), bob=Share())
    bed.flood("a", 0.4, key="alice")
    bed.flood("b", 0.05, key="bob")
    assert split(bed.shares(20.0), ["a", "b"]) == pytest.approx([0.75, 0.25], abs=0.05)


def test_clients_of_a_key_get_together_what_one_client_gets() -> None:
    bed = Bed(2, slots=2)
    for name in ("a1", "a2", "a3"):
        bed.flood(name, 0.1, key="alice")
    bed.flood("b", 0.1, key="bob")
    assert split(bed.shares(20.0), ["a1", "a2", "a3", "b"]) == pytest.approx([1 / 6, 1 / 6, 1 / 6, 1 / 2], abs=0.03)


def test_groups_share_by_weight_and_their_keys_share_what_the_group_gets() -> None:
    bed = Bed(2, slots=2)
    bed.share(group_desk=Share(weight=2.0), a=Share(group="desk"), b=Share(3.0, group="desk"), c=Share())
    for name in ("a", "b", "c"):
        bed.flood(name, 0.1, key=name)
    assert split(bed.shares(30.0), ["a", "b", "c"]) == pytest.approx([1 / 6, 1 / 2, 1 / 3], abs=0.04)


def test_weights_change_while_tasks_run() -> None:
    bed = Bed(2, slots=2)
    bed.flood("a", 0.1, key="alice")
    bed.flood("b", 0.1, key="bob")
    bed.run(5.0)
    bed.share(alice=Share(weight=9.0))
    bed.run(5.0)
    assert split(bed.shares(20.0), ["a", "b"]) == pytest.approx([0.9, 0.1], abs=0.05)


@pytest.mark.parametrize("seconds", [0.01, 0.5])
@pytest.mark.parametrize("others", [0, 1])
def test_key_never_has_more_slots_than_its_maximum(seconds: float, others: int) -> None:
    bed = Bed(2, slots=4)
    bed.share(alice=Share(max_slots=3))
    bed.flood("a", seconds, key="alice")
    if others:
        bed.flood("b", 0.1, key="bob")
    most = []
    for _ in range(100):
        bed.run(0.05)
        most.append(bed.slots_used)
    assert max(used["a"] for used in most) == 3
    assert not others or sum(used["b"] for used in most[20:]) >= 4 * 80  # the others get the rest


def test_maximum_holds_for_all_keys_of_a_group() -> None:
    bed = Bed(2, slots=4)
    bed.share(group_desk=Share(max_slots=4), a=Share(group="desk"), b=Share(group="desk"))
    bed.flood("a", 0.1, key="a")
    bed.flood("b", 0.3, key="b")
    used = []
    for _ in range(60):
        bed.run(0.05)
        used.append(bed.slots_used["a"] + bed.slots_used["b"])
    assert max(used) == 4
    assert split(bed.shares(20.0), ["a", "b"]) == pytest.approx([0.5, 0.5], abs=0.05)


def test_task_with_too_many_slots_for_the_rest_of_the_maximum_waits_while_others_run() -> None:
    bed = Bed(1, slots=4)
    bed.share(alice=Share(max_slots=3))
    bed.flood("wide", 0.2, key="alice", needs=(("cpus", 2.0),))
    bed.flood("other", 0.2, key="bob")
    used = []
    for _ in range(60):
        bed.run(0.05)
        used.append(bed.slots_used)
    assert max(each["wide"] for each in used) == 1  # of two slots
    assert min(each["other"] for each in used[20:]) >= 2


def test_nested_tasks_use_the_slots_that_their_parents_lend() -> None:
    bed = Bed(1, slots=4)
    bed.share(alice=Share(max_slots=1))
    bed.flood("a", 0.05, key="alice", nested=(3, 0.1))
    bed.run(5.0)
    assert bed.floods["a"].used == pytest.approx(5.0, rel=0.1)


def test_limit_that_is_removed_frees_the_waiting_tasks() -> None:
    bed = Bed(1, slots=4)
    bed.share(alice=Share(max_slots=1))
    bed.flood("a", 0.2, key="alice")
    bed.run(2.0)
    bed.share(alice=Share())
    bed.run(1.0)
    assert bed.slots_used["a"] == 4


def test_scaling_sees_no_demand_for_tasks_beyond_the_maximum() -> None:
    policy = Watching()
    bed = Bed(1, slots=4, policy=policy)
    bed.manager("m")
    bed.share(alice=Share(max_slots=3))
    bed.flood("a", 0.5, key="alice")
    bed.run(3.0)
    assert policy.view is not None
    assert sum(row.queued + row.running for row in policy.view.demand) == 3


def test_explain_names_the_share_and_the_maximum() -> None:
    bed = Bed(1, slots=4)
    bed.share(alice=Share(weight=3.0), bob=Share(max_slots=1))
    bed.flood("a", 0.5, key="alice")
    bed.flood("b", 0.5, key="bob")
    bed.run(3.0)
    assert "key alice has a share of 3 of 4 slots" in bed.why_waits("a")
    assert "key bob uses 1 slot, its maximum" in bed.why_waits("b")
