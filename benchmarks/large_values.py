"""Tasks with arguments of 10 MB that return a number, then tasks with results of 10 MB.

All tasks of a kind are submitted at once. Values are random and do not compress. MB/s counts each value once.

    python benchmarks/large_values.py [--short] [--systems a,b] [--rounds 3]
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.rows import Figure, Row, run_script
from benchmarks.systems import Start
from benchmarks.tasks import check, warm_up

BLOCK = 1_000_000
BLOCKS = 10

ROW = Row(
    title="{values} arguments of 10 MB / then {values} results of 10 MB: MB/s",
    # Arguments have no aim as a ratio: the executor reached 190 MB/s when the aim was set, but 400 to 500 on other
    # machines, where a third of such an aim would be four fifths of the absolute one.
    figures=(Figure("arguments", 600), Figure("results", 600, of_executor=1.5)),
    full={"values": 50},
    short={"values": 10},
)


def block(number: int) -> Any:
    return np.random.default_rng(number).integers(0, 256, BLOCK, dtype=np.uint8)


def take(array: Any) -> int:
    return int(array[0]) + int(array[-1]) + len(array)


def make(number: int) -> Any:
    return np.tile(block(number), BLOCKS)


def scenario(start: Start, values: int) -> dict[str, float]:
    arrays = [make(number) for number in range(values)]
    expected = [take(array) for array in arrays]
    megabytes = values * BLOCK * BLOCKS / 1e6
    system = start(2)
    warm_up(system, 2)
    began = time.perf_counter()
    taken = system.gather([system.submit(take, array) for array in arrays])
    seconds = time.perf_counter() - began
    check(taken == expected, "tasks with large arguments")

    began = time.perf_counter()
    made = system.gather([system.submit(make, number) for number in range(values)])
    back_seconds = time.perf_counter() - began
    check(all(np.array_equal(mine, theirs) for mine, theirs in zip(arrays, made, strict=True)), "large results")
    system.close()
    return {"arguments": megabytes / seconds, "results": megabytes / back_seconds}


if __name__ == "__main__":
    run_script("large_values")
