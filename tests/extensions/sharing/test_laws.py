"""Laws of sharing for any weights, groups, and lengths of tasks, in simulated time."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaler.security.keys import Share
from tests.extensions.sharing.bed import Bed, split
from tests.short_forms import short_form

LENGTHS = (0.02, 0.1, 0.5, 2.0)
WEIGHTS = (0.5, 1.0, 2.0, 4.0)
KEY = st.tuples(st.sampled_from(LENGTHS), st.sampled_from(WEIGHTS), st.sampled_from(["", "red", "blue"]))


def ideal(keys: dict[str, tuple[float, float, str]], groups: dict[str, float]) -> dict[str, float]:
    """Return the part of the slots of each key: by group, and then by key."""
    sums: dict[str, float] = {}
    for _, weight, group in keys.values():
        sums[group] = sums.get(group, 0.0) + weight
    total = sums.get("", 0.0) + sum(groups[group] for group in sums if group)
    return {
        name: (groups[group] * weight / sums[group] if group else weight) / total
        for name, (_, weight, group) in keys.items()
    }


@settings(max_examples=max(1, settings().max_examples // 20))
@given(
    st.lists(KEY, min_size=2, max_size=5),
    st.tuples(st.sampled_from(WEIGHTS), st.sampled_from(WEIGHTS)),
    st.sampled_from([(1, 2), (1, 8), (4, 2)]),
)
def test_keys_get_shares_by_weight_and_group(
    each: list[tuple[float, float, str]], group_weights: tuple[float, float], size: tuple[int, int]
) -> None:
    keys = {f"k{number}": key for number, key in enumerate(each)}
    groups = dict(zip(("red", "blue"), group_weights, strict=True))
    bed = Bed(*size)
    shares = {name: Share(weight, 0, group) for name, (_, weight, group) in keys.items()}
    bed.share(**shares, **{f"group_{name}": Share(weight) for name, weight in groups.items()})
    for name, (seconds, _, _) in keys.items():
        bed.flood(name, seconds, key=name, backlog=8)
    bed.run(4.0)
    slots = size[0] * size[1]
    seconds = 400.0 / slots
    used, wanted = bed.shares(seconds), ideal(keys, groups)
    for name, (length, _, _) in keys.items():
        rounding = 2 * max(length, 0.1) * min(slots, 1 + slots * wanted[name])
        assert used[name] == pytest.approx(slots * seconds * wanted[name], rel=0.1, abs=rounding)


@pytest.mark.parametrize(
    ("workers", "cpus", "seconds"), short_form([(2, 2.0, 0.02), (1, 4.0, 2.0), (2, 3.0, 2.0), (1, 2.0, 2.0)], 2)
)
def test_wide_and_narrow_tasks_share_slots(workers: int, cpus: float, seconds: float) -> None:
    bed = Bed(workers, slots=4)
    bed.flood("wide", seconds, key="wide", needs=(("cpus", cpus),))
    bed.flood("narrow", 0.1, key="narrow")
    bed.run(2.0)
    used = bed.shares(30.0)
    used["wide"] *= cpus
    assert split(used, ["wide", "narrow"]) == pytest.approx([0.5, 0.5], abs=0.08)
    assert sum(used.values()) >= 0.9 * 30.0 * 4 * workers


def test_no_key_of_a_hundred_starves() -> None:
    bed = Bed(4, slots=2)
    floods = [
        bed.flood(f"k{number}", (0.02, 0.1, 1.0)[number % 3], key=f"k{number}", backlog=1) for number in range(100)
    ]
    bed.run(20.0)
    for flood in floods:
        flood.longest_wait = 0.0
    bed.run(60.0)
    used = [flood.used for flood in floods]
    assert min(used) >= 0.8 * sum(used) / 100
    # A task of a second is paid back when each other key has used a second: 100 s on 8 slots.
    assert max(flood.longest_wait for flood in floods) <= 2 * 100 / 8


KINDS: dict[str, dict[str, Any]] = {
    "wide": {"needs": (("cpus", 2.0),)},
    "wider than half a worker": {"needs": (("cpus", 3.0),)},
    "nested": {"nested": (3, 0.1)},
    "retried": {"fails_every": 3},
    "plain": {},
}


@pytest.mark.parametrize("seconds", short_form([0.3, 0.02]))
@pytest.mark.parametrize("kind", KINDS)
def test_key_never_uses_more_than_its_maximum(kind: str, seconds: float) -> None:
    bed = Bed(2, slots=4)
    width = dict(KINDS[kind].get("needs", ())).get("cpus", 1.0)
    most = 7 if width > 1 else 5
    bed.share(group_desk=Share(max_slots=most), a=Share(max_slots=3, group="desk"), b=Share(group="desk"))
    bed.flood("a", seconds, key="a", backlog=8, **KINDS[kind])
    bed.flood("b", 0.1, key="b", backlog=8)
    bed.flood("other", 0.1, key="other", backlog=8)
    for step in range(200):
        bed.run(0.05)
        used = bed.slots_used
        assert used["a"] * width <= 3
        assert used["a"] * width + used["b"] <= most
        if step in (60, 120):
            bed.lose(next(iter(bed.queues)))
    assert bed.floods["a"].used * width >= 15.0  # of 20 slot-seconds


@pytest.mark.parametrize(("workers", "slots"), [(8, 1), (2, 4)])
@pytest.mark.parametrize(("seconds", "least"), short_form([(0.002, 0.6), (0.02, 0.9)]))
def test_short_tasks_with_a_maximum_do_not_wait_behind_short_tasks(
    workers: int, slots: int, seconds: float, least: float
) -> None:
    bed = Bed(workers, slots=slots)
    bed.share(a=Share(max_slots=3))
    bed.flood("a", seconds, key="a", backlog=8)
    bed.flood("other", 0.02, key="other", backlog=8)
    bed.run(2.0)
    used = bed.shares(5.0)
    assert used["a"] >= least * 3 * 5.0
    assert used["other"] >= 0.9 * 5 * 5.0


def test_maximum_of_all_slots_does_not_delay_short_tasks() -> None:
    bed = Bed(2, slots=4)
    bed.share(a=Share(max_slots=100))
    bed.flood("a", 0.002, key="a", backlog=8)
    bed.flood("other", 0.002, key="other", backlog=8)
    bed.run(1.0)
    assert sum(bed.shares(2.0).values()) >= 0.95 * 8 * 2.0


@pytest.mark.parametrize(
    ("wide", "narrow", "other"), short_form([(0.005, 0.5, 0.02), (0.02, 0.1, 0.1), (0.3, 0.1, 0.5)], 2)
)
@pytest.mark.parametrize("key", ["a", "b"])
def test_wide_tasks_get_their_share_next_to_narrow_tasks_of_their_key_or_group(
    key: str, wide: float, narrow: float, other: float
) -> None:
    bed = Bed(2, slots=4)
    bed.share(a=Share(group="desk"), b=Share(group="desk"))
    bed.flood("wide", wide, key=key, backlog=8, needs=(("cpus", 2.0),))
    bed.flood("narrow", narrow, key="b", backlog=8)
    bed.flood("other", other, key="other", backlog=8)
    bed.run(2.0)
    used = bed.shares(10.0)
    used["wide"] *= 2
    assert split(used, ["wide", "narrow", "other"]) == pytest.approx([0.25, 0.25, 0.5], abs=0.025)
    assert sum(used.values()) >= 0.88 * 10.0 * 8


@pytest.mark.parametrize(
    ("wide", "narrow", "max_slots"), short_form([(0.3, 0.02, 4), (0.02, 0.02, 6), (2.0, 0.3, 4), (0.3, 2.0, 4)], 2)
)
def test_narrow_siblings_do_not_keep_wide_tasks_from_starting_below_a_maximum(
    wide: float, narrow: float, max_slots: int
) -> None:
    bed = Bed(2, slots=4)
    bed.share(a=Share(max_slots=max_slots))
    bed.flood("wide", wide, key="a", backlog=8, needs=(("cpus", 3.0),))
    bed.flood("narrow", narrow, key="a", backlog=8)
    bed.flood("other", 0.1, key="other", backlog=8)
    bed.run(2.0)
    used = bed.shares(20.0)
    used["wide"] *= 3
    assert split({name: used[name] for name in ("wide", "narrow")}, ["wide", "narrow"]) == pytest.approx(
        [0.5, 0.5], abs=0.08
    )
    assert used["wide"] + used["narrow"] >= 0.6 * 20.0 * 4
    assert sum(used.values()) >= 0.9 * 20.0 * 8


def test_one_client_alternates_between_its_wide_and_narrow_tasks_below_a_maximum() -> None:
    bed = Bed(2, slots=4)
    bed.share(a=Share(max_slots=4))
    bed.guest("a", "a")
    bed.flood("other", 0.1, key="other", backlog=8)
    kinds = {"wide": (("cpus", 3.0),), "narrow": ()}
    tasks = {kind: [bed.task_id("a") for _ in range(40)] for kind in kinds}
    bed.seconds.update(dict.fromkeys(chain(*tasks.values()), 0.3))
    for kind, needs in kinds.items():
        bed.submit("a", ids=tasks[kind], needs=needs, retries=3)
    bed.run(12.0)
    assert all(len(bed.ended.intersection(tasks[kind])) >= 10 for kind in kinds)


@pytest.mark.parametrize("seconds", [0.1, 2.0])
def test_short_tasks_with_a_maximum_do_not_wait_behind_long_ones(seconds: float) -> None:
    bed = Bed(2, slots=4)
    bed.share(a=Share(max_slots=3))
    bed.flood("a", 0.02, key="a")
    bed.flood("b", seconds, key="b")
    bed.run(2.5)
    assert bed.shares(5.0)["a"] >= 0.9 * 3 * 5.0


def test_maximum_counts_the_tasks_of_a_worker_that_is_out_of_contact() -> None:
    bed = Bed(2, slots=4)
    bed.share(a=Share(max_slots=3))
    bed.flood("a", 2.0, key="a", backlog=8)
    bed.run(1.0)
    bed.break_connection("w0")
    for _ in range(20):
        bed.run(0.05)
        assert bed.slots_used["a"] <= 3


def test_old_use_no_longer_counts() -> None:
    bed = Bed(1, slots=2)
    early = bed.flood("early", 0.2, key="early")
    bed.run(100.0)
    bed.stop("early")
    bed.flood("between", 0.2, key="between", at=60.0)
    bed.run(60.0 + 1200.0)
    bed.stop("between")
    bed.run(30.0)
    bed.flood("again", 0.2, key="early")
    bed.flood("new", 0.2, key="new")
    used = bed.shares(10.0)
    assert early.used >= 100.0
    assert split(used, ["again", "new"]) == pytest.approx([0.5, 0.5], abs=0.05)


def test_recent_use_counts_more_than_earlier_use() -> None:
    """After the same use, the key that used the slots earlier has the lower standing."""
    bed = Bed(1, slots=2)
    for name in ("a", "b"):
        bed.flood(name, 0.2, key=name)
        bed.run(60.0)
        bed.stop(name)
        bed.run(60.0)
    bed.flood("a2", 0.2, key="a")
    bed.flood("b2", 0.2, key="b")
    used = bed.shares(4.0)
    assert used["a2"] > 1.5 * used["b2"]


@pytest.mark.parametrize("seconds", LENGTHS)
@pytest.mark.parametrize("kind", ["plain", "nested", "retried"])
def test_single_client_uses_all_slots(kind: str, seconds: float) -> None:
    bed = Bed(2, slots=4)
    bed.share(a=Share(weight=0.5, group="desk"), b=Share(weight=1000.0), group_desk=Share(weight=0.1))
    bed.flood("gone", 0.1, key="b")
    bed.run(5.0)
    bed.stop("gone")
    bed.run(65.0)
    bed.flood("a", seconds, key="a", **KINDS[kind])
    bed.run(2.0)
    used = bed.shares(20.0)["a"]
    delays = 2 * 0.5e-3 * 8 * 20 / seconds  # of the first retries only
    assert used >= 0.97 * 8 * 20.0 - (delays if kind == "retried" else 0.0)
