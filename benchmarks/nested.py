"""Fibonacci numbers by tasks that submit tasks and wait. Every call is a separate task, even for equal numbers.

The executor's workers cannot submit tasks.

    python benchmarks/nested.py [--short] [--systems a,b] [--rounds 3]
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.rows import PLATFORMS, Figure, Row, run_script
from benchmarks.systems import Start
from benchmarks.tasks import check, warm_up

ROW = Row(
    title="nested fibonacci({number}): s",
    figures=(Figure("s", 0.6, is_higher_better=False, of_executor=1.0, is_ratio_aimed=True),),
    full={"number": 10},
    short={"number": 8},
    systems=PLATFORMS,
    limit_seconds=300.0,
)


def scenario(start: Start, number: int) -> dict[str, float]:
    system = start(2)
    warm_up(system, 2)
    began = time.perf_counter()
    result = system.fibonacci(number)
    seconds = time.perf_counter() - began
    check(result == fibonacci(number), "nested tasks")
    system.close()
    return {"s": seconds}


def fibonacci(number: int) -> int:
    return number if number < 2 else fibonacci(number - 1) + fibonacci(number - 2)


if __name__ == "__main__":
    run_script("nested")
