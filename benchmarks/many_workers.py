"""Many more workers than cores: the time until all are ready, their memory, and no-ops by `submit`.

All workers are ready when tasks of 20 ms have run in as many processes as there are workers.

    python benchmarks/many_workers.py [--short] [--systems a,b] [--rounds 3]
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.processes import memory_bytes, processes
from benchmarks.rows import Figure, Row, run_script
from benchmarks.systems import Start
from benchmarks.tasks import check, identity, wait_for_workers

ROW = Row(
    title="{workers} workers on these cores: no-ops/s / MB / s until all are ready",
    figures=(
        Figure("no-ops/s", 10_000, of_executor=1.8),
        Figure("MB", 1_000, is_higher_better=False, of_executor=2.2),
        Figure("s", 8, is_higher_better=False),
    ),
    full={"workers": 32, "tasks": 5_000},
    short={"workers": 8, "tasks": 2_000},
    limit_seconds=300.0,
)


def scenario(start: Start, workers: int, tasks: int) -> dict[str, float]:
    began = time.perf_counter()
    system = start(workers)
    wait_for_workers(system, workers)
    answered = time.perf_counter() - began
    system.gather([system.submit(identity, number) for number in range(100)])
    megabytes = memory_bytes(processes()) / 1e6

    began = time.perf_counter()
    results = system.gather([system.submit(identity, number) for number in range(tasks)])
    seconds = time.perf_counter() - began
    check(results == list(range(tasks)), "many workers")
    system.close()
    return {"no-ops/s": tasks / seconds, "MB": megabytes, "s": answered}


if __name__ == "__main__":
    run_script("many_workers")
