"""A task waits for no task of lower priority that a worker received earlier but has not started."""

from __future__ import annotations

from typing import Any

import pytest

from tests.extensions.sharing.bed import WAY_SECONDS, Bed

ROUND_TRIP = 4 * WAY_SECONDS
"""The recall and its answer; the end of a task and the next one."""


def submit(bed: Bed, client: str, seconds: float, count: int = 1, **options: Any) -> list[bytes]:
    ids = [bed.task_id(client) for _ in range(count)]
    bed.seconds.update(dict.fromkeys(ids, seconds))
    bed.submit(client, ids=ids, **{"retries": 3, **options})
    bed.hear()
    return ids


@pytest.mark.parametrize("retries", [0, 3])
def test_urgent_task_starts_when_the_first_slot_is_free(retries: int) -> None:
    bed = Bed(1, slots=2)
    bed.guest("a")
    start = bed.now
    submit(bed, "a", 2.0, 4)
    bed.run(0.2)
    (urgent,) = submit(bed, "a", 2.0, priority=100, retries=retries)
    bed.run(8.0)
    assert bed.began[urgent] - start <= 2.0 + ROUND_TRIP


@pytest.mark.parametrize("workers", [1, 8])
@pytest.mark.parametrize(("length", "retries"), [(0.005, 3), (0.02, 0), (0.2, 3)])
def test_urgent_task_passes_a_flood_of_short_ones(workers: int, length: float, retries: int) -> None:
    bed = Bed(workers, slots=2)
    bed.flood("flood", length)
    bed.guest("a")
    bed.run(2.0)
    start = bed.now
    (urgent,) = submit(bed, "a", 0.1, priority=1, retries=retries)
    bed.run(1.0)
    assert bed.began[urgent] - start <= length + 2 * ROUND_TRIP


def test_tasks_of_lower_priority_return_to_the_worker_when_the_urgent_ones_have_started() -> None:
    bed = Bed(1, slots=2)
    bed.guest("a")
    low = submit(bed, "a", 0.3, 10)
    bed.run(0.1)
    submit(bed, "a", 0.3, 2, priority=1)
    bed.run(3.0)
    assert bed.ended.issuperset(low)


def test_urgent_task_does_not_speed_up_its_clients_other_tasks() -> None:
    bed = Bed(1, slots=2)
    greedy = bed.flood("greedy", 0.1)
    bed.flood("other", 0.1)
    bed.run(1.0)
    for _ in range(10):
        submit(bed, "greedy", 0.1, priority=1)
        bed.run(0.5)
    used = greedy.used / (greedy.used + bed.floods["other"].used)
    assert used == pytest.approx(0.5, abs=0.05)
