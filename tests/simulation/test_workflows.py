"""Graphs of tasks on hosts with limited links: they take little longer than their work, and move little."""

from __future__ import annotations

import pytest

from tests.short_forms import short_form
from tests.simulation.transfers import MB
from tests.simulation.workflows import chain, layered, many, map_reduce, shuffle


def test_chain_stays_on_its_host() -> None:
    figures = chain(50, 200)
    assert figures.ratio < 1.05
    assert figures.moved_bytes == 0


@pytest.mark.parametrize(("slots", "chains"), [(1, 8), (2, 3)])
def test_chains_stay_on_their_hosts_even_if_all_slots_are_busy(slots: int, chains: int) -> None:
    assert chain(20, 200, chains, slots=slots, others=300).moved_bytes < 0.02 * chains * 20 * 200 * MB


def test_map_reads_local_data_with_little_tree_overhead() -> None:
    figures = map_reduce()
    assert figures.ratio < 1.25
    assert figures.moved_bytes < 0.05 * 64 * 100 * MB


def test_shuffle_takes_as_long_as_its_links_which_stay_busy() -> None:
    figures = shuffle()
    assert figures.ratio < 1.25
    assert figures.busiest < 1.3


@pytest.mark.parametrize("seed", short_form(range(3)))
def test_random_graph_takes_little_longer_than_its_work_and_transfers(seed: int) -> None:
    assert layered(seed).ratio < 1.25


def test_small_graphs_keep_every_invariant() -> None:
    assert shuffle(parts=16, slots=2, checked=True).ratio < 1.25
    assert layered(1, hosts=4, layers=6, width=24, checked=True).ratio < 1.3


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_chains_on_many_hosts_take_as_long_as_the_longest(soak: bool) -> None:
    hosts = 1_000 if soak else 100
    assert many(hosts, 4, 4 * hosts).ratio < 1.1
