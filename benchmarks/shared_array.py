"""An array of 100 MB, sent once and used by many tasks: the time from before the send to the last result.

The executor would send the array with every task.

    python benchmarks/shared_array.py [--short] [--systems a,b] [--rounds 3]
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.rows import PLATFORMS, Figure, Row, run_script
from benchmarks.systems import Start
from benchmarks.tasks import check, warm_up

SLICE = 1_000

ROW = Row(
    title="{megabytes} MB array sent once, used by {tasks} tasks: s",
    figures=(Figure("s", 0.7, is_higher_better=False),),
    full={"megabytes": 100, "tasks": 200},
    short={"megabytes": 100, "tasks": 50},
    systems=PLATFORMS,
)


def part(array: Any, number: int) -> float:
    return float(array[number * SLICE : (number + 1) * SLICE].sum())


def scenario(start: Start, megabytes: int, tasks: int) -> dict[str, float]:
    array = np.random.default_rng(1).random(megabytes * 1_000_000 // 8)
    system = start(2)
    warm_up(system, 2)
    began = time.perf_counter()
    sent = system.put(array)
    results = system.gather([system.submit(part, sent, number) for number in range(tasks)])
    seconds = time.perf_counter() - began
    check(results == [part(array, number) for number in range(tasks)], "tasks on one array")
    system.close()
    return {"s": seconds}


if __name__ == "__main__":
    run_script("shared_array")
