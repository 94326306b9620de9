"""One task at a time: submit a no-op, wait for its result, then submit the next.

python benchmarks/round_trip.py [--short] [--systems a,b] [--rounds 3]
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
    title="one task at a time: p50 / p99, ms",
    figures=(
        Figure("p50 ms", 0.8, is_higher_better=False),
        Figure("p99 ms", 2.0, is_higher_better=False, is_noisy=True),
    ),
    full={"times": 1_000},
    short={"times": 200},
)


def scenario(start: Start, times: int) -> dict[str, float]:
    system = start(2)
    warm_up(system, 2)
    taken = []
    for number in range(times):
        began = time.perf_counter()
        result = system.submit(identity, number).result()
        taken.append((time.perf_counter() - began) * 1000)
        check(result == number, "a round trip")
    system.close()
    taken.sort()
    return {"p50 ms": taken[times // 2], "p99 ms": taken[times * 99 // 100]}


if __name__ == "__main__":
    run_script("round_trip")
