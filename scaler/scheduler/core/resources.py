"""Counts the resources that tasks occupy on their workers, from dispatch on. This module counts slots; the `resources`
extension counts and reserves memory, GPUs, and CPUs. Pure."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from scaler.needs import Needs, Offers
from scaler.protocol.messages import WorkerDetails

MISSING = (
    "tasks with memory, gpu, cpus, resources, or limits need the extension 'resources', which this scheduler lacks"
)


def offers_of(details: WorkerDetails, worker: bytes = b"") -> Offers:
    return Offers.of(details.capabilities, details.slots, details.memory_bytes or math.inf, worker)


@dataclass(slots=True, eq=False)
class Claims:
    """Resources that a worker's tasks occupy, beyond one slot each."""

    offers: Offers
    slots: int
    by_task: dict[bytes, tuple[Needs, tuple[int, ...]]] = field(default_factory=dict, init=False)
    """Needs and GPU indexes of the counted tasks."""
    extra: float = field(default=0, init=False)
    """Slots occupied beyond one per unblocked task. While positive, no task is prefetched."""
    reserved: Any = field(default=None, init=False)
    """The `ReadyQueue` that freed slots are reserved for."""
    may_exceed: bool = field(default=False, init=False)
    """Whether tasks may exceed the offers until some end, because a blocked task resumed or a restarted scheduler
    adopted tasks."""

    def count(self, _needs: Needs, _queue: Any, /) -> int:
        """Return how many tasks with these needs fit into resources that are free and not reserved for other queues."""
        return sys.maxsize

    def is_kept_for(self, queue: Any) -> bool:
        return self.reserved is queue

    def reserve(self, queue: Any) -> None:
        self.reserved = queue

    def claim(self, task: bytes, needs: Needs, reported: tuple[int, ...] | None = None) -> None:
        """Claim a task's resources. Call before `Worker.take`. reported: GPUs that the task already has."""
        self.by_task[task] = needs, self._take(needs, reported)
        self.may_exceed = self.may_exceed or reported is not None
        self.extra += needs.width(self.offers, self.slots) - 1

    def release(self, task: bytes, is_blocked: bool) -> None:
        if task in self.by_task:
            if not is_blocked:
                self._widen(task, -1)
            self._give_back(*self.by_task.pop(task))

    def block(self, task: bytes, is_blocked: bool) -> None:
        """Block or unblock a task. A blocked task lends out its slots, but not its memory or GPUs."""
        if task in self.by_task:
            self._widen(task, -1 if is_blocked else 1)
        self.may_exceed = self.may_exceed or not is_blocked

    def _widen(self, task: bytes, sign: int) -> None:
        self.extra += sign * (self.by_task[task][0].width(self.offers, self.slots) - 1)

    def _take(self, _needs: Needs, _reported: tuple[int, ...] | None) -> tuple[int, ...]:
        """Claim resources other than slots. Returns the indexes of GPUs."""
        return ()

    def _give_back(self, _needs: Needs, _devices: tuple[int, ...]) -> None: ...


class ResourceRules:
    """Interface of the `resources` extension. Without it, tasks that need counted resources are refused."""

    reservations: Collection[Any] = ()

    def refusal(self, needs: Needs) -> str:
        """Return why tasks with these needs are refused, or an empty string."""
        return MISSING if needs.claims or needs.cpus else ""

    def room(self, _queue: Any, /) -> int:
        """Return how many tasks from a queue the cluster's limits now admit."""
        return sys.maxsize

    def within_limits(self, wanted: Callable[[Any], int]) -> Callable[[Any], int]:
        """Return a function like `Turns.wanted`, but with its total capped by the limits."""
        return wanted

    def limited(self, _queue: Any, _task: Any = None, /) -> str:
        """Describe the limit that a queue's tasks wait for, or return an empty string. _task: the task to explain."""
        return ""

    def deadlock(self, _task: Any, /) -> str:
        """Explain that a task waits for a limit that its enclosing tasks use up, or return an empty string."""
        return ""

    def joined(self, worker: Any) -> Claims:
        """Return the claims of a new worker."""
        return Claims(worker.offers, worker.slots)

    def left(self, _worker: Any, /) -> None: ...

    def expire(self, _now: float, /) -> None:
        """End expired reservations. Called before a placement if there are `reservations`."""

    def reserves(self, _queue: Any, _placed: int, _now: float, _waits: bool, /) -> bool:
        """Record the tasks placed in a pass over a queue of counted tasks. Returns whether a reservation is due.
        _waits: its next task waits only for resources (see `ReadyQueues.which_wait`)."""
        return False

    def reserve(self, _queue: Any, _workers: Sequence[Any], _now: float, /) -> Any:
        """Reserve resources for a queue's first task on one of these workers. Returns the worker, or None."""
        return None

    def shortage(self, queue: Any, willing: Sequence[Any]) -> str:
        """Return why no worker can run this queue's tasks, or an empty string. willing: workers that accept tasks."""
        if any(worker.count(queue.needs, queue) for worker in willing):
            return ""
        return f"it runs alone and waits for a worker without other tasks, such as {emptiest(willing).title}"


def emptiest(workers: Sequence[Any]) -> Any:
    return max(workers, key=lambda each: each.slots - each.busy - each.claims.extra)
