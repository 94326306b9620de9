"""Speed and failures of each function on each worker. Pure."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from scaler.scheduler.core.rooms import Paced
from scaler.scheduler.core.state import Timing

MOST_PACED = 128
"""Tasks in a pace after which all counts are halved."""
MAX_PACES = 32
"""Functions per worker whose pace is kept: the most recently started ones."""


@dataclass(slots=True)
class Pace:
    """Recent tasks of one function on one worker, compared per batch with the mean of all workers at the time."""

    tasks: float = 0
    failed: float = 0
    ran_us: float = 0
    usual_us: float = 0
    """Time that the completed attempts would have taken by the mean of all workers."""

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

    def measure(self, timing: Timing, tasks: float, ran_us: float, usual_us: float) -> None:
        """Add a batch; see `Timing.refresh`."""
        pace = self.get(timing) or self.begin(timing)
        pace.tasks += tasks
        pace.ran_us += ran_us
        pace.usual_us += usual_us
        if pace.tasks >= MOST_PACED:
            pace.tasks /= 2
            pace.failed /= 2
            pace.ran_us /= 2
            pace.usual_us /= 2


class WorkerPaces(Paced):
    """Paces by worker."""

    def __init__(self) -> None:
        self.by_worker: dict[bytes, Paces] = {}

    def measured(self, worker: bytes, timing: Timing, tasks: float, ran_us: float, usual_us: float) -> None:
        self._of(worker).measure(timing, tasks, ran_us, usual_us)

    def failed(self, worker: bytes, timing: Timing, *, has_run: bool) -> None:
        self._of(worker).fail(timing, has_run=has_run)

    def left(self, worker: bytes) -> None:
        self.by_worker.pop(worker, None)

    def _of(self, worker: bytes) -> Paces:
        found = self.by_worker.get(worker)
        if found is None:
            found = self.by_worker[worker] = Paces()
        return found
