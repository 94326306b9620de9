"""The jobs of one manager that are units, as AWS Batch shows them. Reads only; not for two threads at once."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from scaler.protocol.messages import UnitState
from scaler.worker_manager.aws_hpc.place import Place
from scaler.worker_manager.aws_hpc.service import BatchService, child_id
from scaler.worker_manager.aws_hpc.verdicts import STOP_REASON, reason_of
from scaler.worker_manager.backend import Unit

MISSING_SECONDS = 60.0
"""A job that Batch does not know for so long does not exist."""
ENDED_UNITS_SHOWN = 64
ENDED_SHOWN_SECONDS = 300.0
ENDED_KNOWN = 10_000
STUCK_SECONDS = 120.0
NO_REASON = "AWS Batch gives no reason; is the compute environment VALID, and large enough for the job?"
_STATES = {
    "SUBMITTED": UnitState.PENDING,
    "PENDING": UnitState.PENDING,
    "RUNNABLE": UnitState.PENDING,
    "STARTING": UnitState.PENDING,
    "RUNNING": UnitState.RUNNING,
    "SUCCEEDED": UnitState.STOPPED,
    "FAILED": UnitState.FAILED,
}
_ENDED = (UnitState.FAILED, UnitState.STOPPED)

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Job:
    born_at: float
    """Monotonic; by our clock when we submitted it, by that of Batch otherwise."""
    state: UnitState = UnitState.PENDING
    reason: str = ""
    is_stopping: bool = False
    missing_since: float | None = None


class Fleet:
    """All jobs with the manager's mark. What was started or stopped here counts for more than an older answer."""

    def __init__(self, place: Place, service: BatchService, slots: int) -> None:
        self._place = place
        self._service = service
        self._slots = slots
        self._jobs: dict[str, _Job] = {}
        self._shown: deque[tuple[float, Unit]] = deque(maxlen=ENDED_UNITS_SHOWN)
        self._ended: dict[str, None] = {}
        self._has_looked = False

    def started(self, unit_ids: Iterable[str]) -> None:
        """Take note of jobs that were submitted just now."""
        now = time.monotonic()
        for unit_id in unit_ids:
            self._jobs.setdefault(unit_id, _Job(now))

    def stopping(self, unit_id: str) -> None:
        """Take note that Batch has accepted to end a job."""
        if (job := self._jobs.get(unit_id)) is not None:
            job.is_stopping = True

    def gone(self, unit_id: str) -> None:
        """Take note that Batch does not know a job any more."""
        self._jobs.pop(unit_id, None)

    def to_stop(self, unit_ids: Iterable[str]) -> list[str]:
        """Return those that are not stopping, and did not end, as far as is known."""
        return [
            unit_id
            for unit_id in unit_ids
            if unit_id not in self._ended and not ((job := self._jobs.get(unit_id)) and job.is_stopping)
        ]

    def is_new(self, unit_id: str) -> bool:
        """Tell whether Batch may not know a job yet, which has been submitted."""
        job = self._jobs.get(unit_id)
        return job is not None and time.monotonic() - job.born_at < MISSING_SECONDS

    def look(self) -> None:
        """Ask Batch. Raises AwsError."""
        now = time.monotonic()
        is_first = not self._has_looked
        if is_first:
            self._adopt(now)
        missing = dict(self._jobs)
        for unit_id, shown in self._service.describe(list(self._jobs)).items():
            missing.pop(unit_id, None)
            self._note(unit_id, shown, now, is_first)
        self._has_looked = True
        for unit_id, job in missing.items():
            if job.missing_since is None:
                job.missing_since = now
            elif now - job.missing_since > MISSING_SECONDS:
                _log.warning("AWS Batch does not know the job %s any more", unit_id)
                self._jobs.pop(unit_id, None)

    def units(self) -> list[Unit]:
        """Return what was seen last, with what was asked for since."""
        now = time.monotonic()
        while self._shown and now - self._shown[0][0] > ENDED_SHOWN_SECONDS:
            self._shown.popleft()
        alive = [
            Unit(
                unit_id,
                UnitState.STOPPING if job.is_stopping else job.state,
                self._slots,
                now - job.born_at,
                job.reason,
            )
            for unit_id, job in self._jobs.items()
        ]
        return alive + [unit for _, unit in self._shown]

    def _adopt(self, now: float) -> None:
        """Find what an earlier process of this manager has left."""
        for job_id, summary in self._service.alive().items():
            size = int((summary.get("arrayProperties") or {}).get("size", 1))
            for index in range(size):
                self._jobs.setdefault(child_id(job_id, index, size), _Job(now - _age_seconds(summary)))

    def _note(self, unit_id: str, shown: Mapping[str, Any], now: float, is_first: bool) -> None:
        job = self._jobs[unit_id]
        state = _STATES.get(str(shown["status"]), UnitState.PENDING)
        reason = reason_of(shown)
        if state in _ENDED:
            del self._jobs[unit_id]
            self._ended[unit_id] = None
            if len(self._ended) > ENDED_KNOWN:
                del self._ended[next(iter(self._ended))]
            if state is UnitState.FAILED and str(shown.get("statusReason", "")).startswith(STOP_REASON):
                state = UnitState.STOPPED
            if not is_first:  # what had ended before this manager began is none of its news
                self._shown.append((now, Unit(unit_id, state, self._slots, now - job.born_at, reason)))
            return
        job.state = state
        job.missing_since = None
        job.is_stopping = job.is_stopping or bool(shown.get("isTerminated"))
        job.reason = reason
        if shown["status"] == "RUNNABLE" and (reason or now - job.born_at > STUCK_SECONDS):
            job.reason = f"RUNNABLE: {reason or NO_REASON}"


def _age_seconds(shown: Mapping[str, Any]) -> float:
    """Return how long a job has existed, in seconds. Clocks may differ; it is never below 0."""
    created = shown.get("createdAt")
    return 0.0 if created is None else max(0.0, time.time() - float(created) / 1000)
