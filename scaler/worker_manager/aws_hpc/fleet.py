"""The jobs of one manager that are units, as AWS Batch shows them. Reads only; not for two threads at once."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from scaler.protocol.messages import UnitState
from scaler.worker_manager.aws.known_units import LISTED_SECONDS, KnownUnits
from scaler.worker_manager.aws_hpc.service import BatchService, child_id
from scaler.worker_manager.aws_hpc.verdicts import STOP_REASON, reason_of
from scaler.worker_manager.backend import Unit

STUCK_SECONDS = 120.0
ADOPT_AGAIN_SECONDS = 60.0
"""Pause between listings once all jobs of earlier processes must have been listed. They find what an unanswered
SubmitJob has started after it was given up."""
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


class Fleet:
    """Looks at all jobs with the manager's mark, and notes them in `known`."""

    def __init__(self, service: BatchService, known: KnownUnits, slots: int) -> None:
        """slots: of each job."""
        self._service = service
        self._known = known
        self._slots = slots
        self._settled_at: float | None = None
        """When all jobs of earlier processes must have been listed; None before the first listing."""
        self._adopt_at = 0.0

    def look(self) -> None:
        """Ask Batch. Raises AwsError."""
        now = time.monotonic()
        if self._settled_at is None:
            self._settled_at = now + LISTED_SECONDS
        adopted: set[str] = set()
        if now < self._settled_at or now >= self._adopt_at:
            adopted = self._adopt(now)
            self._adopt_at = now + ADOPT_AGAIN_SECONDS
        missing = dict.fromkeys(self._known.alive)
        for unit_id, shown in self._service.describe(list(missing)).items():
            missing.pop(unit_id, None)
            self._note(unit_id, shown, now, is_new=unit_id in adopted)
        for unit_id in self._known.missed(missing):
            _log.warning("AWS Batch does not know the job %s any more", unit_id)

    def _adopt(self, now: float) -> set[str]:
        """Add the jobs that are listed and were unknown: those of an earlier process of this manager. Returns them.

        A job that was submitted just before a restart is listed with a delay, so one listing is not enough.
        """
        adopted = set()
        for job_id, summary in self._service.alive().items():
            size = int((summary.get("arrayProperties") or {}).get("size", 1))
            for index in range(size):
                unit_id = child_id(job_id, index, size)
                if not self._known.knows(unit_id):
                    self._known.found(unit_id, now - _age_seconds(summary))
                    adopted.add(unit_id)
        return adopted

    def _note(self, unit_id: str, shown: Mapping[str, Any], now: float, *, is_new: bool) -> None:
        job = self._known.alive[unit_id]
        state = _STATES.get(str(shown["status"]), UnitState.PENDING)
        reason = reason_of(shown)
        if state in _ENDED:
            if state is UnitState.FAILED and str(shown.get("statusReason", "")).startswith(STOP_REASON):
                state = UnitState.STOPPED
            # What had ended before this manager knew it is no failure of its starts.
            news = None if is_new else Unit(unit_id, state, self._slots, now - job.born_at, reason)
            self._known.ended(unit_id, news)
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
