"""One `map` of a no-op over many items, with each system's default chunks.

The executor's default chunk is one item. opengris-scaler and Dask create one task per item.

    python benchmarks/map.py [--short] [--systems a,b] [--rounds 3]
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
    title="`map` of a no-op over {items:,} items, default chunking: items/s",
    figures=(Figure("items/s", 200_000, of_executor=34.0),),
    full={"items": 50_000},
    short={"items": 10_000},
    limit_seconds=600.0,
)


def scenario(start: Start, items: int) -> dict[str, float]:
    system = start(2)
    warm_up(system, 2)
    system.map(identity, range(100))
    began = time.perf_counter()
    results = system.map(identity, range(items))
    seconds = time.perf_counter() - began
    check(results == list(range(items)), "map")
    system.close()
    return {"items/s": items / seconds}


if __name__ == "__main__":
    run_script("map")
