"""A few long tasks among many short ones, in three orders: the shortest possible time divided by the time taken.

One task in ten sleeps 100 ms, and the others 1 ms. *Adjacent*: the long tasks are consecutive, in the middle. *Every
tenth*: dealing out tasks in turns would give all long ones to the same worker. *Behind a 1 s task*: that task comes
first, followed by the order of *every tenth*.

    python benchmarks/imbalance.py [--short] [--systems a,b] [--rounds 3]
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.rows import Figure, Row, run_script
from benchmarks.systems import Start, System
from benchmarks.tasks import check, pause, warm_up

WORKERS = 2
LONG_SECONDS = 0.1
SHORT_SECONDS = 0.001
FIRST_SECONDS = 1.0
AIM = 0.96

ROW = Row(
    title="imbalance, {tasks} tasks: long ones adjacent / every tenth / behind a 1 s task: share of the ideal",
    figures=tuple(Figure(name, AIM, of_executor=1.0) for name in ("clump", "alternating", "behind")),
    full={"tasks": 200},
    short={"tasks": 40},
)


def scenario(start: Start, tasks: int) -> dict[str, float]:
    system = start(WORKERS)
    warm_up(system, WORKERS)
    few = tasks // 10
    before = (tasks - few) // 2
    clump = [SHORT_SECONDS] * before + [LONG_SECONDS] * few + [SHORT_SECONDS] * (tasks - few - before)
    alternating = [SHORT_SECONDS if number % 10 else LONG_SECONDS for number in range(tasks)]
    orders = {"clump": clump, "alternating": alternating, "behind": [FIRST_SECONDS, *alternating]}
    shares = {name: share_of_ideal(system, seconds) for name, seconds in orders.items()}
    system.close()
    return shares


def share_of_ideal(system: System, tasks: list[float]) -> float:
    began = time.perf_counter()
    results = system.gather([system.submit(pause, seconds, number) for number, seconds in enumerate(tasks)])
    taken = time.perf_counter() - began
    check(results == list(range(len(tasks))), "tasks of unequal length")
    return max(sum(tasks) / WORKERS, *tasks) / taken


if __name__ == "__main__":
    run_script("imbalance")
