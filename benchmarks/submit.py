"""No-ops, submitted one by one without waiting: the time from the first submit to the last result.

python benchmarks/submit.py [--short] [--systems a,b] [--rounds 3]
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.rows import Figure, Row, run_script
from benchmarks.systems import Start
from benchmarks.tasks import check, identity, warm_up

ROW = Row(
    title="{tasks:,} no-ops by `submit`, then all results: tasks/s",
    figures=(Figure("tasks/s", 30_000, of_executor=3.4, is_ratio_aimed=True),),
    full={"tasks": 10_000},
    short={"tasks": 3_000},
)


def scenario(start: Start, tasks: int) -> dict[str, float]:
    system = start(2)
    warm_up(system, 2)
    began = time.perf_counter()
    futures = [system.submit(identity, number) for number in range(tasks)]
    results = system.gather(futures)
    seconds = time.perf_counter() - began
    check(results == list(range(tasks)), "submit")
    system.close()
    return {"tasks/s": tasks / seconds}


if __name__ == "__main__":
    run_script("submit")
