"""Memory per waiting task, in all processes: no-ops queue behind tasks that occupy both workers.

The figure is the memory growth per task, after memory has stopped growing. Then the workers are released, and all
results are checked.

    python benchmarks/memory.py [--short] [--systems a,b] [--rounds 3]
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.processes import memory_bytes, processes
from benchmarks.rows import Figure, Row, run_script
from benchmarks.systems import Start
from benchmarks.tasks import check, identity, warm_up

WORKERS = 2
LOOK_SECONDS = 0.5
SMALL_BYTES = 100_000
"""Growth below this between two readings counts as none."""

ROW = Row(
    title="memory per queued task, {tasks:,} tasks, all processes: B",
    figures=(Figure("B", 1_000, is_higher_better=False, of_executor=0.5),),
    full={"tasks": 10_000},
    short={"tasks": 5_000},
    limit_seconds=400.0,
)


def block(directory: str, number: int) -> int:
    """Report the start, and end on request."""
    (Path(directory) / f"runs-{number}").touch()
    while not (Path(directory) / "go").exists():
        time.sleep(0.02)
    return number


def scenario(start: Start, tasks: int) -> dict[str, float]:
    system = start(WORKERS)
    warm_up(system, WORKERS)
    with tempfile.TemporaryDirectory() as directory:
        blockers = [system.submit(block, directory, number) for number in range(WORKERS)]
        while len(list(Path(directory).glob("runs-*"))) < WORKERS:
            time.sleep(0.02)
        before = settled_bytes()
        futures = [system.submit(identity, number) for number in range(tasks)]
        after = settled_bytes()
        check(not any(future.done() for future in futures), "tasks that should wait")
        (Path(directory) / "go").touch()
        check(system.gather(blockers) == list(range(WORKERS)), "the blockers")
    check(system.gather(futures) == list(range(tasks)), "queued tasks")
    system.close()
    return {"B": (after - before) / tasks}


def settled_bytes() -> float:
    """Return the memory of all processes after it has stopped growing."""
    now = memory_bytes(processes())
    while True:
        time.sleep(LOOK_SECONDS)
        last, now = now, memory_bytes(processes())
        if now - last < SMALL_BYTES:
            return now


if __name__ == "__main__":
    run_script("memory")
