"""Speed and failures of each function on each worker. Pure."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from dataclasses import dataclass

from scaler.scheduler.core.rooms import Paced
from scaler.scheduler.core.state import Timing

MOST_PACED = 128
"""Number of tasks at which the counts of a pace are halved."""
MAX_PACES = 32
"""Maximum number of functions with a pace per worker: the most recently started."""


@dataclass(slots=True)
class Pace:
    """Recent tasks of one function on one worker, compared, batch by batch, with the current mean of all workers."""

    tasks: float = 0
    failed: float = 0
    ran_us: float = 0
    usual_us: float = 0
    """Time that the completed attempts would have taken at the mean speed of all workers."""

    @property
    def ratio(self) -> float:
        return self.ran_us / self.usual_us if self.usual_us > 0 else 0.0


class Paces(OrderedDict[Timing, Pace]):
    def begin(self, timing: Timing) -> Pace:
        pace = self[timing] = Pace()
        if len(self) > MAX_PACES:
            self.popitem(last=False)
        return pace

    def fail(self, timing: Timing, *, has_run: bool) -> None:
        """Count a failed task. has_run: it raised an exception, so its duration is measured."""
        pace = self.get(timing) or self.begin(timing)
        pace.failed += 1
        pace.tasks += not has_run


class WorkerPaces(Paced):
    """Paces by worker."""

    def __init__(self) -> None:
        self.by_worker: defaultdict[bytes, Paces] = defaultdict(Paces)

    def measured(self, worker: bytes, timing: Timing, tasks: float, ran_us: float, usual_us: float) -> None:
        paces = self.by_worker[worker]
        pace = paces.get(timing) or paces.begin(timing)
        pace.tasks += tasks
        pace.ran_us += ran_us
        pace.usual_us += usual_us
        if pace.tasks >= MOST_PACED:
            pace.tasks /= 2
            pace.failed /= 2
            pace.ran_us /= 2
            pace.usual_us /= 2

    def failed(self, worker: bytes, timing: Timing, *, has_run: bool) -> None:
        self.by_worker[worker].fail(timing, has_run=has_run)

    def left(self, worker: bytes) -> None:
        self.by_worker.pop(worker, None)
