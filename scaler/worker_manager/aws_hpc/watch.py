"""Looks how jobs are, takes their results, and terminates those that nobody wants: one round after the other.

What a round learns from Batch it learns before it lists results, so that a job which had ended by then and has no
result there has left none. Whatever the job's status says, a result that is there decides.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from scaler.errors import ProtocolError
from scaler.protocol.messages import Outcome
from scaler.worker.executor import CallFailed, CallFinished, CallStarted, Report
from scaler.worker_manager.aws.errors import AwsError
from scaler.worker_manager.aws_hpc.bundle import decompress
from scaler.worker_manager.aws_hpc.errands import Errands
from scaler.worker_manager.aws_hpc.objects import Objects, ResultKey
from scaler.worker_manager.aws_hpc.place import Place
from scaler.worker_manager.aws_hpc.requests import Fields
from scaler.worker_manager.aws_hpc.service import ENDED, BatchService, counts_of, index_in
from scaler.worker_manager.aws_hpc.tracking import (
    MISSING_SECONDS,
    STUCK_SECONDS,
    Submission,
    Tracking,
)
from scaler.worker_manager.aws_hpc.verdicts import reason_of, verdict_on

GARBAGE_AT_ONCE = 500
"""So many objects are removed together while there is work; the rest when there is none."""
STUCK_LISTED = 100
NO_REASON = "AWS Batch gives no reason; is the compute environment VALID, and large enough for the job?"


class Watch:
    """The rounds of one session. `look` and what it calls run in one thread; lock guards the tracking for others."""

    def __init__(
        self,
        place: Place,
        service: BatchService,
        objects: Objects,
        tracking: Tracking,
        errands: Errands,
        lock: threading.Condition,
        pool: ThreadPoolExecutor,
        *,
        stuck_seconds: float = STUCK_SECONDS,
    ) -> None:
        self._place = place
        self._service = service
        self._objects = objects
        self._tracking = tracking
        self.errands = errands
        self._lock = lock
        self._pool = pool
        self._stuck_seconds = stuck_seconds
        self.report: Callable[[Report], None] = lambda _: None
        self.stuck = ""
        """Why jobs wait for so long, for people; empty when they do not."""

    def look(self) -> None:
        """Do one round. Raises AwsError; the next round begins anew."""
        self.errands.run(self.report)
        with self._lock:
            known = self._tracking.known()
        if known:
            self._look_at(known)
        else:
            self.stuck = ""
        self._remove_garbage()

    # -- how jobs are

    def _look_at(self, known: Sequence[Submission]) -> None:
        described = self._service.describe(submission.job_id for submission in known)
        counts: dict[int, dict[str, int]] = {}
        for submission in known:
            job = described.get(submission.job_id)
            if job is None:
                self._miss(submission)
                continue
            submission.missing_since = None
            counts[submission.number] = counts_of(job)
            self._look_at_children(submission, job, counts[submission.number])
        ended = self._ended_before_listing(known)
        listed = self._take_results()
        self._judge([place for place in ended if place not in listed])
        for submission in known:
            with self._lock:
                has_lost = self._tracking.has_lost_successes(submission, counts.get(submission.number, {}))
            if has_lost and submission.size > 1:
                indexes = [index_in(child["jobId"]) for child in self._children(submission, "SUCCEEDED")]
                with self._lock:
                    self._tracking.ended(submission, indexes)
        self._look_whether_stuck(known, described, counts)

    def _look_at_children(self, submission: Submission, job: Fields, counts: dict[str, int]) -> None:
        if submission.size == 1:
            with self._lock:
                if job["status"] == "RUNNING":
                    self._say_started(submission, [0])
                elif job["status"] in ENDED:
                    self._tracking.ended(submission, [0])
            return
        with self._lock:
            statuses = self._tracking.statuses_to_list(submission, counts)
        for status in statuses:
            indexes = [index_in(child["jobId"]) for child in self._children(submission, status)]
            with self._lock:
                if status == "RUNNING":
                    self._say_started(submission, indexes)
                else:
                    submission.failed = len(indexes)
                    self._tracking.ended(submission, indexes)

    def _children(self, submission: Submission, status: str) -> list[Fields]:
        return list(self._service.children(submission.job_id, status))

    def _say_started(self, submission: Submission, indexes: Sequence[int]) -> None:
        for task, attempt in self._tracking.running(submission, indexes, time.monotonic()):
            self.report(CallStarted(task, attempt))

    def _miss(self, submission: Submission) -> None:
        now = time.monotonic()
        if submission.missing_since is None:
            submission.missing_since = now
        elif now - submission.missing_since > MISSING_SECONDS:
            with self._lock:
                lost = self._tracking.refused(submission)
            text = f"AWS Batch does not know the job {submission.job_id} any more"
            for task, attempt in lost:
                self.report(CallFailed(task, attempt, Outcome.WORKER_LOST, text))

    # -- what they have left

    def _ended_before_listing(self, known: Sequence[Submission]) -> list[tuple[int, int]]:
        with self._lock:
            return [(each.number, index) for each in known for index in sorted(each.ended & each.open)]

    def _take_results(self) -> set[tuple[int, int]]:
        """Read all results that are awaited. Returns the places of all that are there."""
        found = self._objects.results()
        with self._lock:
            awaited = [result for result in found if self._tracking.waits_for(result.number, result.index)]
            wanted = set(awaited)
            # Those that are taken stay listed until they are removed; late ones are nobody's.
            self._tracking.throw_away(result.key for result in found if result not in wanted)
        errors = [error for error in self._pool.map(self._try_take, awaited) if error is not None]
        if errors:
            raise errors[0]
        return {(result.number, result.index) for result in found}

    def _try_take(self, result: ResultKey) -> AwsError | None:
        try:
            packed = self._objects.get(result.key)
        except AwsError as error:
            return error
        report: Report
        with self._lock:
            key = self._tracking.take(result.number, result.index, time.monotonic())
            self._tracking.throw_away([result.key])
        if key is None:
            return None
        try:
            report = CallFinished(*key, decompress(packed))
        except ProtocolError as error:
            report = CallFailed(*key, Outcome.WORKER_LOST, f"the result of the task cannot be read: {error}")
        self.report(report)
        return None

    def _judge(self, places: Sequence[tuple[int, int]]) -> None:
        """Say of jobs that have ended without a result why."""
        with self._lock:
            known = {each.number: each for each in self._tracking.known()}
        jobs = {known[number].job(index): (number, index) for number, index in places if number in known}
        if not jobs:
            return
        for job_id, job in self._service.describe(jobs).items():
            if job["status"] not in ENDED:
                continue  # what was listed was out of date
            outcome, text = verdict_on(job, self._place.job_timeout_minutes)
            with self._lock:
                key = self._tracking.lose(*jobs[job_id], time.monotonic())
            if key is not None:
                self.report(CallFailed(*key, outcome, text))

    def _remove_garbage(self) -> None:
        with self._lock:
            keys = self._tracking.take_garbage(GARBAGE_AT_ONCE)
        try:
            self._objects.delete(keys)
        except AwsError:
            with self._lock:
                self._tracking.throw_away(keys)
            raise

    # -- what waits for ever

    def _look_whether_stuck(
        self, known: Sequence[Submission], described: dict[str, Fields], counts: dict[int, dict[str, int]]
    ) -> None:
        with self._lock:
            is_stuck = self._tracking.is_stuck(counts.values(), time.monotonic(), self._stuck_seconds)
        if not is_stuck:
            self.stuck = ""
            return
        if self.stuck:
            return
        waiting = [each for each in known if "RUNNABLE" in counts.get(each.number, {})]
        reason = self._reason_to_wait(waiting[0], described[waiting[0].job_id])
        self.stuck = (
            f"tasks wait in the job queue {self._place.job_queue} for more than {self._stuck_seconds / 60:g} minutes, "
            f"and none runs: {reason or NO_REASON}"
        )

    def _reason_to_wait(self, submission: Submission, job: Fields) -> str:
        if submission.size == 1:
            return reason_of(job)
        first = [child["jobId"] for child in self._children(submission, "RUNNABLE")[:STUCK_LISTED]]
        reasons = [reason_of(child) for child in self._service.describe(first).values()]
        return next(filter(None, reasons), "")
