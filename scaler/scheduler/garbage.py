"""Garbage collection that no step waits long for.

Reference counts free tasks, groups, and messages. Cycles remain only from departed peers and errors, a few kilobytes
each. By default, Python would visit all live tasks each time their number grows by a quarter: with a million queued
tasks, the loop would stop for most of a second.
"""

from __future__ import annotations

import asyncio
import gc
import platform
from collections.abc import Callable

from scaler.processes import give_memory_back

YOUNG_OBJECTS = 10_000
"""New objects per collection of the youngest generation, which takes about 2 ms."""
YOUNG_COLLECTIONS = 10
"""Young collections per collection of the middle generation, which takes about 20 ms."""
NEVER = 1_000_000_000
FULL_COLLECTION_SECONDS = 30.0
"""Seconds between full collections, while these are cheap."""
MAX_LIVING_TASKS = 50_000
"""Live tasks above which a full collection would take longer than a step may."""
COUNTS_REFERENCES = platform.python_implementation() != "PyPy"
"""PyPy collects incrementally instead."""


def configure_collector() -> None:
    """Configure garbage collection. Call once, after all imports."""
    if not COUNTS_REFERENCES:
        return
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, YOUNG_COLLECTIONS, NEVER)


def collect_when_small(living_tasks: int) -> None:
    """Collect all garbage, unless live tasks would make that slow.

    Also returns memory to the system: freed payloads are fragmented, and the C library would keep their memory forever.
    """
    if COUNTS_REFERENCES and living_tasks <= MAX_LIVING_TASKS:
        gc.collect()
        give_memory_back()


async def collect_garbage(living_tasks: Callable[[], int]) -> None:
    """Collect cyclic garbage periodically, instead of whenever many tasks arrive."""
    configure_collector()
    while True:
        await asyncio.sleep(FULL_COLLECTION_SECONDS)
        collect_when_small(living_tasks())
