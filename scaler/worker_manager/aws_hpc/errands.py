"""Jobs that nobody wants, and submissions that Batch has not answered: terminated, and looked for."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from scaler.protocol.messages import Outcome
from scaler.worker.executor import CallFailed, Report
from scaler.worker_manager.aws.errors import AwsError
from scaler.worker_manager.aws.known_units import LISTED_SECONDS
from scaler.worker_manager.aws_hpc.service import BatchService
from scaler.worker_manager.aws_hpc.tracking import DOUBT_SECONDS, Tracking
from scaler.worker_manager.aws_hpc.verdicts import STOP_REASON

STRANGER_SECONDS = 600.0
"""For so long a job is looked for that was given up, and terminated should it appear after all."""
STRANGER_PAUSE_SECONDS = 10.0
EARLIER_PAUSE_SECONDS = 5.0
"""Pause between listings of the jobs that earlier sessions have left."""
MAX_TERMINATE_TRIES = 100

_log = logging.getLogger(__name__)


class Errands:
    """What a round does beside looking how jobs are. lock guards the tracking."""

    def __init__(
        self,
        service: BatchService,
        tracking: Tracking,
        lock: threading.Condition,
        pool: ThreadPoolExecutor,
        *,
        doubt_seconds: float = DOUBT_SECONDS,
    ) -> None:
        self._service = service
        self._tracking = tracking
        self._lock = lock
        self._pool = pool
        self._doubt_seconds = doubt_seconds
        self._to_terminate: dict[str, int] = {}
        """Jobs, and how often that failed."""
        self._strangers: dict[str, float] = {}
        """Names of jobs that were given up, and until when they are looked for."""
        self._strangers_at = 0.0
        self._is_own: Callable[[str], bool] = lambda _: True
        self._earlier: set[str] = set()
        """Jobs of earlier sessions that were found."""
        self._earlier_at = math.inf
        """When to list them again; infinite when all of them must have been listed."""
        self._earlier_until = 0.0

    def terminate(self, job_ids: Iterable[str]) -> None:
        """Have jobs terminated by the next rounds. From any thread, with the lock held."""
        for job_id in job_ids:
            self._to_terminate.setdefault(job_id, 0)

    def are_left(self) -> bool:
        """Tell whether there is something to do. With the lock held."""
        return bool(self._to_terminate or self._strangers) or self._earlier_at < math.inf

    def run(self, report: Callable[[Report], None]) -> None:
        """Do what is to be done. Raises AwsError."""
        self._settle_doubts(report)
        self._find_earlier()
        self.end_unwanted()
        self._end_strangers()

    def begin(self, is_own: Callable[[str], bool]) -> None:
        """Terminate the jobs of earlier sessions; rounds look for those that are listed late. Raises AwsError.

        is_own: whether a job of this name was submitted by this session.
        """
        self._is_own = is_own
        self._earlier_at = time.monotonic()
        self._earlier_until = self._earlier_at + LISTED_SECONDS
        self._find_earlier()
        self.end_unwanted()

    def _find_earlier(self) -> None:
        now = time.monotonic()
        if now < self._earlier_at:
            return
        alive = self._service.alive()
        left = {job_id for job_id, job in alive.items() if not self._is_own(job["jobName"])} - self._earlier
        if left:
            _log.warning("terminating %d jobs that an earlier agent has left: their tasks are run again", len(left))
        with self._lock:
            self._earlier |= left
            self.terminate(left)
            self._earlier_at = now + EARLIER_PAUSE_SECONDS if now < self._earlier_until else math.inf

    def end_unwanted(self) -> None:
        """Terminate what nobody wants. Raises AwsError for the first that cannot be, when all were tried."""
        with self._lock:
            wanted = dict(self._to_terminate)
        errors = []
        for job_id, error in zip(wanted, self._pool.map(self._try_terminate, wanted), strict=True):
            with self._lock:
                if error is None or self._to_terminate[job_id] >= MAX_TERMINATE_TRIES:
                    del self._to_terminate[job_id]
                else:
                    self._to_terminate[job_id] += 1
            if error is not None:
                errors.append(error)
                if wanted[job_id] >= MAX_TERMINATE_TRIES:
                    _log.error("the job %s may still run: %s", job_id, error)
        # The children of an array that was submitted just now are not known yet.
        grave = [error for error in errors if error.kind != "refused"]
        if grave:
            raise grave[0]

    def unwanted(self) -> list[str]:
        """Return the jobs that are still to be terminated."""
        with self._lock:
            return list(self._to_terminate)

    def _settle_doubts(self, report: Callable[[Report], None]) -> None:
        with self._lock:
            doubts = self._tracking.doubts()
        for submission in doubts:
            asked_at = time.monotonic()
            job_id = self._service.find(submission.name)
            with self._lock:
                if job_id is not None:
                    self.terminate(self._tracking.accepted(submission, job_id))
                    continue
                if submission.doubt_since is None or asked_at - submission.doubt_since < self._doubt_seconds:
                    continue
                self._strangers[submission.name] = asked_at + STRANGER_SECONDS
                lost = self._tracking.refused(submission)
            text = "AWS Batch did not answer SubmitJob, and lists no such job"
            for task, attempt in lost:
                report(CallFailed(task, attempt, Outcome.NOT_STARTED, text))

    def _end_strangers(self) -> None:
        now = time.monotonic()
        if not self._strangers or now < self._strangers_at:
            return
        self._strangers_at = now + STRANGER_PAUSE_SECONDS
        for name, until in list(self._strangers.items()):
            job_id = self._service.find(name)
            if job_id is not None:
                self._service.terminate(job_id, STOP_REASON)
            if job_id is not None or now > until:
                with self._lock:
                    del self._strangers[name]

    def _try_terminate(self, job_id: str) -> AwsError | None:
        try:
            self._service.terminate(job_id, STOP_REASON)
        except AwsError as error:
            return error
        return None
