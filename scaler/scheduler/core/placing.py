"""Interfaces for extensions that place some tasks by special rules. Without them, such tasks are refused. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from scaler.needs import Needs
from scaler.scheduler.core.ready import Give, ReadyQueue, Side
from scaler.scheduler.core.state import Task, Worker


class Environments:
    """Tracks which workers prepare which environments."""

    refusal = "tasks with an environment need the extension 'environment', which this scheduler lacks"
    """Why tasks with an environment are refused; empty if they are not."""

    def prepares(self, _worker: Worker, _environment: bytes, /) -> bool:
        """Return whether a worker is preparing an environment, so that its tasks must wait."""
        return False

    def left(self, _worker: Worker, /) -> None:
        """Forget a worker."""

    def why_waits(self, _task: Task, /) -> str:
        """Describe how a ready task's environment delays it, or return an empty string."""
        return ""


class Nearness:
    """Workers preferred by tasks with a `near` term. Times are core time."""

    refusal = "tasks with 'near' need the extension 'near', which this scheduler lacks"
    """Why tasks with `near` are refused; empty if they are not."""
    again_at = math.inf
    """Time of the next placement of tasks that wait for a preferred worker. Each placement resets it."""

    def offer(
        self, _queue: ReadyQueue, _sides: Sequence[Side], _prefetch: bool, _budget: int, _give: Give, _now: float, /
    ) -> int | None:
        """Offer a queue to workers on these sides. Returns the number placed, or None if any worker will do."""
        return None

    def may_move(self, _task: Task, _worker: Worker, _idle: Worker, _now: float, /) -> bool:
        """Return whether a task queued on a worker should move to an idle worker."""
        return True

    def left(self, _worker: Worker, /) -> None: ...

    def why_waits(self, _task: Task, /) -> str:
        """Describe which workers a ready task prefers and why, or return an empty string."""
        return ""


class GangRules:
    """Tasks that start together."""

    def refusal(self, needs: Needs) -> str:
        """Return why tasks with these needs are refused, or an empty string."""
        return "gangs need the extension 'gangs', which this scheduler lacks" if needs.gang else ""

    def begin(self, placement: Any, tasks: Any) -> None:
        """Called once, before the first step, with the core's `Placement` and `Tasks`."""

    def began(self, group: Any) -> None:
        """Called when a group with `Needs.gang` gets its first live task."""

    def place(self, _queue: Any, _now: float, /) -> int:
        """Place all tasks of a queue with `Needs.gang`, or none. Returns the number of tasks placed."""
        return 0

    def shortage(self, _queue: Any, _willing: Sequence[Any], /) -> str:
        """Return why the tasks of a queue wait, although these workers accept tasks."""
        return ""
