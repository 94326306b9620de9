"""When the scheduler's process looks for cyclic garbage, and gives freed memory back.

Tasks, groups and messages are freed by their counts of references; cycles are left behind only by peers that are gone
and by errors, a few kilobytes each. Python's collector, as it is set by default, looks at all living tasks whenever
their number has grown by a quarter: with a million queued tasks it stops the loop for most of a second, and finds
nothing.
"""

from __future__ import annotations

import gc

from scaler.processes import give_memory_back

YOUNG_OBJECTS = 10_000
"""Objects made since the last look after which the young ones are looked at: some two milliseconds."""
YOUNG_LOOKS = 10
"""Looks at young objects after which those that survived them are looked at once more: some twenty milliseconds."""
NEVER = 1_000_000_000
FULL_SECONDS = 30.0
"""How often everything is looked at, while that is cheap."""
MAX_LIVING_TASKS = 50_000
"""With more living tasks, a look at everything would take longer than a step may."""


def configure_collector() -> None:
    """Set the collector of this process so that no step waits long for it. Call once, after all imports."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, YOUNG_LOOKS, NEVER)


def collect_when_small(living_tasks: int) -> None:
    """Look at everything, unless that takes too long now; what is left lying waits for a quieter time.

    Freed payloads lie scattered between what is in use, so the C library would keep their memory for ever by itself.
    """
    if living_tasks <= MAX_LIVING_TASKS:
        gc.collect()
        give_memory_back()
