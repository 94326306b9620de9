"""SIGKILL for a process that runs tasks, one second after their submission: correct results, and the time taken.

The time ends when every future has ended, or at the limit. The table omits it if most results are missing.

    python benchmarks/killed.py [--short] [--systems a,b] [--rounds 3]
"""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.rows import Figure, Row, run_script
from benchmarks.systems import Pending, Start
from benchmarks.tasks import pause, warm_up

TASK_SECONDS = 0.05
GIVE_UP_SECONDS = 60.0

ROW = Row(
    title="SIGKILL a process that runs tasks, {tasks} x 50 ms: correct results, % / s",
    figures=(Figure("right %", 100, must_hold=True), Figure("s", 5.6, is_higher_better=False)),
    full={"tasks": 200, "kill_after_ms": 1_000},
    short={"tasks": 40, "kill_after_ms": 300},
)


def scenario(start: Start, tasks: int, kill_after_ms: int) -> dict[str, float]:
    system = start(2)
    victim = min(warm_up(system, 2))
    began = time.perf_counter()
    futures = [system.submit(pause, TASK_SECONDS, number) for number in range(tasks)]
    time.sleep(kill_after_ms / 1000)
    os.kill(victim, signal.SIGKILL)
    right = sum(is_right(future, number, began + GIVE_UP_SECONDS) for number, future in enumerate(futures))
    seconds = time.perf_counter() - began
    system.close()
    return {"right %": 100 * right / tasks, "s": seconds if right > tasks / 2 else math.nan}


def is_right(future: Pending, expected: int, deadline: float) -> bool:
    try:
        return bool(future.result(max(deadline - time.perf_counter(), 0.01)) == expected)
    except Exception:  # noqa: BLE001 (any exception means that the result is missing)
        return False


if __name__ == "__main__":
    run_script("killed")
