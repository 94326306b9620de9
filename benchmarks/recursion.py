"""A chain of tasks on one worker, in which each task waits for the next: the CPU time per level.

python benchmarks/recursion.py [--short] [--systems a,b] [--rounds 3]
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.processes import cpu_seconds, processes
from benchmarks.rows import Figure, Row, run_script
from benchmarks.systems import Start
from benchmarks.tasks import check, warm_up

ROW = Row(
    title="{depth} tasks that wait for one another: ms of CPU per task",
    figures=(Figure("ms", 10.0, is_higher_better=False),),
    full={"depth": 300},
    short={"depth": 20},
    systems=("scaler", "dask"),
    limit_seconds=300.0,
)


def scenario(start: Start, depth: int) -> dict[str, float]:
    system = start(1)
    warm_up(system, 1)
    check(system.recursion(2) == 2, "a short recursion")
    before = sum(cpu_seconds(processes()).values())
    check(system.recursion(depth) == depth, "a recursion")
    after = sum(cpu_seconds(processes()).values())  # includes processes that waited, which stay for a while
    system.close()
    return {"ms": 1000 * (after - before) / depth}


if __name__ == "__main__":
    run_script("recursion")
