"""CPU time and memory of an idle system with two workers: all its processes and the client.

python benchmarks/idle.py [--short] [--systems a,b] [--rounds 3]
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.processes import cpu_seconds, cpu_seconds_since, memory_bytes, private_bytes, processes
from benchmarks.rows import Figure, Row, run_script
from benchmarks.systems import Start
from benchmarks.tasks import warm_up

SETTLE_SECONDS = 1.0

ROW = Row(
    title="idle, whole stack and client: MB / private MB / % of a core",
    figures=(
        Figure("MB", 200, is_higher_better=False, of_executor=4.5),
        Figure("private MB", 110, is_higher_better=False),
        Figure("CPU %", 1, is_higher_better=False),
    ),
    full={"seconds": 10},
    short={"seconds": 2},
)


def scenario(start: Start, seconds: int) -> dict[str, float]:
    system = start(2)
    warm_up(system, 2)
    time.sleep(SETTLE_SECONDS)
    everyone = processes()
    before = cpu_seconds(everyone)
    time.sleep(seconds)
    used = cpu_seconds_since(before)
    megabytes = memory_bytes(everyone) / 1e6
    private = private_bytes(everyone) / 1e6
    system.close()
    return {"MB": megabytes, "private MB": private, "CPU %": 100 * used / seconds}


if __name__ == "__main__":
    run_script("idle")
