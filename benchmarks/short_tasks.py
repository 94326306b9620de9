"""Tasks of 10 ms by `submit`: the shortest possible time on two workers divided by the time taken.

Tasks sleep, so this row measures the system rather than the cores.

    python benchmarks/short_tasks.py [--short] [--systems a,b] [--rounds 3]
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.rows import Figure, Row, run_script
from benchmarks.systems import Start
from benchmarks.tasks import check, pause, warm_up

WORKERS = 2
TASK_SECONDS = 0.01

ROW = Row(
    title="{tasks} tasks of 10 ms: share of the ideal",
    figures=(Figure("share", 0.97, of_executor=1.01),),
    full={"tasks": 400},
    short={"tasks": 100},
)


def scenario(start: Start, tasks: int) -> dict[str, float]:
    system = start(WORKERS)
    warm_up(system, WORKERS)
    began = time.perf_counter()
    results = system.gather([system.submit(pause, TASK_SECONDS, number) for number in range(tasks)])
    seconds = time.perf_counter() - began
    check(results == list(range(tasks)), "tasks of 10 ms")
    system.close()
    return {"share": tasks * TASK_SECONDS / WORKERS / seconds}


if __name__ == "__main__":
    run_script("short_tasks")
