"""How far imap runs ahead of the consumed results."""

from __future__ import annotations

import heapq

import pytest

from scaler.extensions.maps.window import FIRST_ITEMS, MAX_ITEMS, Window


def settle(window: Window, workers: int, seconds_per_item: float, travel_seconds: float = 0.001) -> int:
    """Keep the window full of items that run one by one on this many workers; return the final size."""
    free_at = [0.0] * workers
    for _ in range(40):
        for _ in range(window.items):
            began = max(heapq.heappop(free_at), 0.0)
            heapq.heappush(free_at, began + seconds_per_item)
            window.ended(travel_seconds + began, seconds_per_item)
        free_at = [0.0] * workers
        if not window.starved(window.items):
            break
    return window.items


@pytest.mark.parametrize("workers", [1, 2, 8, 40, 300, 2000])
def test_slow_items_keep_all_workers_busy_with_a_short_queue(workers: int) -> None:
    items = settle(Window(None, None), workers, 1.0)
    assert items >= workers
    assert items <= max(FIRST_ITEMS, 4 * workers)


def test_window_doubles_up_to_its_maximum() -> None:
    window = Window(None, None)
    sizes = []
    for _ in range(100):
        window.ended(0.0, 1.0)
        window.starved(window.items)
        sizes.append(window.items)
    assert sizes[0] == 2 * FIRST_ITEMS
    assert max(sizes) == MAX_ITEMS


def test_results_behind_a_slow_one_do_not_pile_up() -> None:
    window = Window(None, None)
    window.ended(0.0, 1.0)
    assert not window.starved(FIRST_ITEMS // 2 - 1)
    assert window.starved(FIRST_ITEMS // 2)


def test_requested_size_is_kept() -> None:
    window = Window(10, None)
    window.ended(0.0, 1.0)
    assert not window.starved(10)
    assert window.items == 10
