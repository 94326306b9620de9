"""Slots go to the client with the least recent use, for any task durations."""

from __future__ import annotations

import random

import pytest

from tests.extensions.sharing.bed import Bed, split


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize(("long", "short"), [(2.0, 0.05), (0.5, 0.02), (0.2, 0.002), (1.0, 1.0)])
def test_clients_share_slots_by_time_whatever_the_lengths_of_their_tasks(
    workers: int, long: float, short: float
) -> None:
    bed = Bed(workers, slots=2)
    bed.flood("long", long)
    bed.flood("short", short)
    assert split(bed.shares(10.0), ["long", "short"]) == pytest.approx([0.5, 0.5], abs=0.05)


@pytest.mark.parametrize("first", [0, 4, 64])
@pytest.mark.parametrize(("long", "short"), [(2.0, 0.05), (0.5, 0.02)])
def test_shares_hold_in_every_window_of_ten_seconds(long: float, short: float, first: int) -> None:
    """The client with the long tasks begins with short ones, so that its mean duration misleads."""
    bed = Bed(1, slots=2)
    bed.flood("long", lambda number: 0.05 if number < first else long, backlog=4)
    bed.flood("short", short, backlog=4)
    seconds = [bed.shares(1.0)["long"] for _ in range(40)]
    windows = [sum(seconds[begin : begin + 10]) for begin in (0, *range(8, 30))]
    assert windows == pytest.approx([10.0] * len(windows), rel=0.05)


def test_lengths_that_vary_within_one_client_count_as_they_are() -> None:
    random.seed(1)
    bed = Bed(4, slots=2)
    bed.flood("varied", lambda _: random.choice([0.01, 0.01, 0.01, 3.0]))
    bed.flood("even", 0.1)
    assert split(bed.shares(30.0), ["varied", "even"]) == pytest.approx([0.5, 0.5], abs=0.05)


def test_client_that_arrives_later_gets_its_share_at_once() -> None:
    bed = Bed(2, slots=2)
    bed.flood("first", 1.0)
    bed.run(3.0)
    late = bed.flood("late", 0.1)
    bed.run(3.0)
    assert bed.floods["late"].used >= 0.5 * 3.0 * 4 * 0.9
    assert late.longest_wait <= 1.1


def test_client_that_used_the_cluster_alone_is_not_kept_out_for_more_than_ten_seconds() -> None:
    bed = Bed(1, slots=2)
    alone = bed.flood("alone", 0.2)
    bed.run(300.0)
    bed.flood("new", 0.2)
    alone.longest_wait = 0.0
    bed.run(30.0)
    assert alone.longest_wait <= 11.0
    assert split(bed.shares(10.0), ["alone", "new"]) == pytest.approx([0.5, 0.5], abs=0.05)


def test_nested_tasks_count_for_the_client_outside_all_tasks() -> None:
    bed = Bed(2, slots=2)
    bed.flood("nesting", 0.01, nested=(20, 0.3))
    bed.flood("plain", 0.1)
    bed.run(2.0)
    assert split(bed.shares(20.0), ["nesting", "plain"]) == pytest.approx([0.5, 0.5], abs=0.05)


def test_many_clients_share_equally() -> None:
    bed = Bed(4, slots=2)
    names = [f"c{number}" for number in range(20)]
    for number, name in enumerate(names):
        bed.flood(name, 0.02 * (1 + number % 5))
    assert split(bed.shares(20.0), names) == pytest.approx([1 / 20] * 20, rel=0.1)


def test_tasks_with_different_needs_share_the_slots_that_fit_both() -> None:
    bed = Bed(2, slots=2)
    bed.flood("plain", 0.5)
    bed.flood("large", 0.05, needs=(("cpus", 1.0),))
    assert split(bed.shares(20.0), ["plain", "large"]) == pytest.approx([0.5, 0.5], abs=0.05)
