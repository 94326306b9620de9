"""The time from the call that starts a system with two workers to the first result.

Imports happen earlier and do not count. The executor has no services to start.

    python benchmarks/start.py [--short] [--systems a,b] [--rounds 3]
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.rows import Figure, Row, run_script
from benchmarks.systems import Start
from benchmarks.tasks import check, identity

ROW = Row(title="start to first result: s", figures=(Figure("s", 1.2, is_higher_better=False),), full={}, short={})


def scenario(start: Start) -> dict[str, float]:
    began = time.perf_counter()
    system = start(2)
    result = system.submit(identity, 1).result()
    seconds = time.perf_counter() - began
    check(result == 1, "the first task")
    system.close()
    return {"s": seconds}


if __name__ == "__main__":
    run_script("start")
