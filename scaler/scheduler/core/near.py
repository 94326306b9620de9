"""Interface of the part that places tasks with the option `near`. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scaler.scheduler.core.ready import Give, ReadyQueue, Side
from scaler.scheduler.core.state import Task, Worker


class Nearness:
    """Workers preferred by tasks with a `near` term: by default, such tasks are refused. The core queries it only for
    them. Times are core time."""

    refusal = "tasks with near need the extension 'near', which this scheduler lacks"
    """Why such tasks are refused; empty if they are not."""
    again_at = math.inf
    """Time of the next placement of tasks that wait for a preferred worker. Each placement resets it."""

    def offer(
        self, _queue: ReadyQueue, _sides: Sequence[Side], _prefetch: bool, _budget: int, _give: Give, _now: float, /
    ) -> int | None:
        """Offer a queue to workers on these sides. Returns the number of tasks placed; None: any worker will do."""
        return None

    def may_move(self, _task: Task, _worker: Worker, _idle: Worker, _now: float, /) -> bool:
        """Return whether a task queued on a worker should move to an idle one."""
        return True

    def left(self, _worker: Worker, /) -> None:
        """Forget a worker."""

    def why_waits(self, _task: Task, /) -> str:
        """Describe a ready task's preference and its reason, or return an empty string."""
        return ""
