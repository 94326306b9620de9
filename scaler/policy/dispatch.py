"""Which tasks are worth giving to late slots, where a task begins only after a while, such as those of a batch service.
Pure.

A late slot has its task for the time that this takes to begin, and then for its duration. Other slots finish small
work before that. A task given to a late slot is paid for, and is not taken back: so late slots get tasks only where the
whole ends sooner by a fifth, and no more than that takes.
"""

from __future__ import annotations

from collections.abc import Sequence

from scaler.policy.capacity import SlotBatch, soonest_seconds, tasks_done

SOONER_SHARE = 0.8
"""With late slots, the work must end within this share of the time that it takes without them."""


def tasks_worth_giving(
    tasks: int, queued: int, task_seconds: float, others: Sequence[SlotBatch], late: Sequence[SlotBatch]
) -> int:
    """Return how many of the queued tasks late slots should get now, at most one each.

    tasks: all that have not ended, without those that late slots have; queued: those of them that have not begun.
    Without other slots, late ones get all.
    """
    free = min(queued, sum(batch.slots for batch in late))
    if free <= 0:
        return 0
    if not any(batch.slots > 0 for batch in others):
        return free
    alone = soonest_seconds(others, tasks, task_seconds)
    together = soonest_seconds([*others, *late], tasks, task_seconds)
    if together > SOONER_SHARE * alone:
        return 0
    return min(free, max(0, tasks - tasks_done(others, task_seconds, together)))
