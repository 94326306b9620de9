"""The executor of mode offload: submits calls as AWS Batch jobs, and reports their results and failures.

One thread polls. What a poll learns from Batch it learns before it lists results: a job that had ended by then and has
no result in the list has left none. A result that exists counts for more than the status of its job.
"""

from __future__ import annotations

import json
import logging
import random
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from scaler.backoff import Backoff
from scaler.errors import ProtocolError, ScalerError
from scaler.protocol.messages import Outcome
from scaler.worker.call import Call, pack_call
from scaler.worker.executor import (
    CallFailed,
    CallFinished,
    CallKey,
    CallStarted,
    ExecutorDegraded,
    ExecutorError,
    Report,
)
from scaler.worker_manager.aws.calls import AwsClient, AwsError, aws_session
from scaler.worker_manager.aws_hpc import AwsHpcConfig
from scaler.worker_manager.aws_hpc.bundle import decompress
from scaler.worker_manager.aws_hpc.exits import NO_REASON, classify_exit, reason_of
from scaler.worker_manager.aws_hpc.requests import (
    JOB_MODULE,
    JOB_SPEC_VARIABLE,
    PARAMETER,
    Definition,
    Fields,
    InputFrom,
    JobSpec,
    encodings_for,
    fits,
    job_name,
    owns,
    submission,
)
from scaler.worker_manager.aws_hpc.service import ENDED, BatchService, ResultKey, SessionObjects, counts_of, index_in
from scaler.worker_manager.aws_hpc.tracking import (
    STUCK_SECONDS,
    UNANSWERED_SECONDS,
    Batch,
    CallSubmission,
    Tracking,
    batches_of,
    poll_interval,
)
from scaler.worker_manager.offload import OffloadBackend
from scaler.worker_manager.offload.config import OffloadConfig
from scaler.worker_manager.polled import STOP_REASON

THREADS = 8
"""Results that are read, and jobs that are terminated, at the same time."""
S3_READ_TIMEOUT_SECONDS = 60.0
MAX_OBJECT_BYTES = 5 * 1024**3
"""Of one PutObject. Source: the user guide of S3."""
OBSOLETE_AT_ONCE = 500
"""Obsolete objects that are removed together while there is work; the rest is removed when there is none."""
STUCK_LISTED = 100
POLL_BACKOFF = Backoff(0.5, 60.0)
DEGRADED_AFTER = 2
"""Failed polls in a row before the degraded reason is shown."""
CLOSE_SECONDS = 12.0
"""At the end, the termination of what is left is tried for this long."""
CLOSE_PAUSE_SECONDS = 0.5

_log = logging.getLogger(__name__)
_P = ParamSpec("_P")
_T = TypeVar("_T")


def offload_backend(config: AwsHpcConfig) -> OffloadBackend:
    """Return the backend of mode offload: one local agent."""
    limit = config.max_task_concurrency
    slots = config.max_concurrent_jobs if limit < 0 else min(limit, config.max_concurrent_jobs)
    return OffloadBackend(config, f"{__name__}:make_executor", max(1, slots), json.loads(config.to_json()))


def make_executor(config: OffloadConfig) -> BatchExecutor:
    """Return the executor of an agent. Raises UsageError."""
    return BatchExecutor(AwsHpcConfig.from_json(json.dumps(config.executor_settings)))


class BatchExecutor:
    """An `Executor`. Raises UsageError for an unknown region or profile."""

    def __init__(
        self,
        config: AwsHpcConfig,
        *,
        stuck_seconds: float = STUCK_SECONDS,
        unanswered_seconds: float = UNANSWERED_SECONDS,
    ) -> None:
        self._config = config
        self._stuck_seconds = stuck_seconds
        self._session = secrets.token_hex(4)
        aws = aws_session(config)
        self._service = BatchService(config, aws)
        s3 = AwsClient(config, "s3", session=aws, read_timeout_seconds=S3_READ_TIMEOUT_SECONDS)
        self._objects = SessionObjects(config, self._session, s3)
        self._pool = ThreadPoolExecutor(THREADS, "aws")
        self._lock = threading.Condition()
        """Guards the tracking and what follows it."""
        self._tracking = Tracking(time.monotonic(), unanswered_seconds=unanswered_seconds)
        self._is_closing = False
        self._has_updates = False
        self._report: Callable[[Report], None] = lambda _: None
        self._definition: Definition | None = None
        self._count = 0
        self._failed_polls = 0
        """In a row."""
        self._poll_error = ""
        self._stuck_reason = ""
        """Why jobs wait for long, as display text; empty when they do not."""
        self._degraded_reason = ""
        self._thread = threading.Thread(target=self._work, name="poller")

    # -- the executor's verbs

    def start(self, report: Callable[[Report], None]) -> None:
        """Check queue, job definition and bucket, and terminate what earlier sessions have left. Raises AwsError."""
        self._report = report
        self._service.check_queue()
        self._definition = self._service.definition()
        self._objects.check()
        self._find_unwanted()
        self._terminate_pending()
        self._thread.start()

    def run(self, calls: Sequence[Call]) -> None:
        taken: list[CallKey] = []
        for batch in batches_of([(call, pack_call(call)) for call in calls]):
            try:
                self._submit(batch)
            except AwsError as error:
                raise ExecutorError(str(error), taken) from error
            taken += batch.keys

    def cancel(self, keys: Sequence[CallKey]) -> None:
        self._locked(self._tracking.cancel, keys)
        self._wake()

    def close(self) -> None:
        """Terminate all jobs that are left, and remove all objects. Raises ScalerError that says what may be left."""
        with self._lock:
            self._is_closing = True
        self._wake()
        if self._thread.is_alive():
            self._thread.join()
        try:
            self._terminate_all()
        finally:
            self._pool.shutdown()
            self._service.close()
            self._objects.close()

    # -- submitting

    def _submit(self, batch: Batch) -> None:
        """Submit a batch. Raises AwsError when Batch did not take it."""
        if len(batch.data) > MAX_OBJECT_BYTES:
            text = f"the task and its arguments take {len(batch.data)} bytes, more than S3 takes at once"
            self._fail(batch.keys, Outcome.REJECTED, text)
            return
        self._count += 1
        request, call_key = self._request(self._count, batch)
        if call_key:
            self._objects.put(call_key, batch.data)
        made = self._locked(self._tracking.add, self._count, request["jobName"], batch.keys, call_key, time.monotonic())
        try:
            job_id = self._service.submit(request)
        except AwsError as error:
            with self._lock:
                if not error.is_uncertain:
                    self._tracking.refused(made)
                    raise
                self._tracking.unanswered(made, time.monotonic())
            _log.warning("%s; looking whether the job is there", error)
        else:
            self._locked(self._tracking.accepted, made, job_id)
        self._wake()

    def _request(self, number: int, batch: Batch) -> tuple[Fields, str]:
        """Return the request of a batch, and the key of the object for its calls; empty when the request has them."""
        assert self._definition is not None, "start comes first"
        for input_from, text in encodings_for(batch.data, len(batch.keys)):
            request = self._request_with(number, batch, self._definition, input_from, text)
            if fits(request, self._definition):
                return request, ""
        key = self._objects.call_key(number)
        return self._request_with(number, batch, self._definition, "s3", key), key

    def _request_with(
        self, number: int, batch: Batch, definition: Definition, input_from: InputFrom, text: str
    ) -> Fields:
        spec = JobSpec(
            region=self._config.aws_region,
            bucket=self._config.s3_bucket,
            results=self._objects.result_prefix(number),
            input_from=input_from,
            input="" if input_from == "parameter" else text,
        )
        return submission(
            self._config,
            definition,
            job_name(self._config, self._session, number),
            JOB_MODULE,
            {JOB_SPEC_VARIABLE: spec.to_json()},
            size=len(batch.keys),
            repeat=batch.repeat,
            parameters={PARAMETER: text} if input_from == "parameter" else None,
        )

    # -- the polling thread

    def _work(self) -> None:
        self._clear(self._objects.clear_others, "earlier sessions")
        while self._rest():
            try:
                self._poll()
            except AwsError as error:
                self._failed_polls += 1
                self._poll_error = str(error)
            else:
                self._failed_polls = 0
            failing = f"cannot see how jobs are: {self._poll_error}" if self._failed_polls >= DEGRADED_AFTER else ""
            text = "; ".join(filter(None, (failing, self._stuck_reason)))
            if text != self._degraded_reason:
                self._degraded_reason = text
                self._report(ExecutorDegraded(text))

    def _rest(self) -> bool:
        """Wait until the next poll is due. Returns False when the executor closes."""
        began = time.monotonic()
        backoff = POLL_BACKOFF.seconds(self._failed_polls, random.random())  # noqa: S311 (it spreads retries)
        with self._lock:
            while not self._is_closing:
                wait = None
                if self._failed_polls or not self._tracking.is_idle():
                    quiet = time.monotonic() - self._tracking.progress_at
                    interval = backoff or poll_interval(quiet, has_updates=self._has_updates)
                    wait = began + interval - time.monotonic()
                    if wait <= 0:
                        break
                self._lock.wait(wait)
            self._has_updates = False
            return not self._is_closing

    def _locked(self, function: Callable[_P, _T], *arguments: _P.args, **named: _P.kwargs) -> _T:
        with self._lock:
            return function(*arguments, **named)

    def _wake(self) -> None:
        with self._lock:
            self._has_updates = True
            self._lock.notify_all()

    def _poll(self) -> None:
        """Do one poll. Raises AwsError; the next poll starts over."""
        self._find_unanswered()
        self._find_unwanted()
        self._terminate_pending()
        known = self._locked(self._tracking.known)
        if known:
            self._poll_jobs(known)
        else:
            self._stuck_reason = ""
        obsolete = self._locked(self._tracking.take_obsolete, OBSOLETE_AT_ONCE)
        try:
            self._objects.delete(obsolete)
        except AwsError:
            self._locked(self._tracking.discard, obsolete)
            raise

    def _fail(self, keys: Iterable[CallKey], outcome: Outcome, text: str) -> None:
        for task, attempt in keys:
            self._report(CallFailed(task, attempt, outcome, text))

    # -- pending terminations

    def _find_unanswered(self) -> None:
        unanswered = self._locked(self._tracking.without_id)
        for made in unanswered:
            asked_at = time.monotonic()
            job_id = self._service.find(made.name)
            failed: list[CallKey] = []
            with self._lock:
                if job_id is not None:
                    self._tracking.accepted(made, job_id)
                else:
                    failed = self._tracking.not_listed(made, asked_at)
            self._fail(failed, Outcome.NOT_STARTED, "AWS Batch did not answer SubmitJob, and lists no such job")

    def _find_unwanted(self) -> None:
        now = time.monotonic()
        if not self._locked(self._tracking.is_search_due, now):
            return
        jobs = {job_id: str(job["jobName"]) for job_id, job in self._service.alive().items()}
        if new := self._locked(self._tracking.listed, jobs, self._is_own, now):
            _log.warning("terminating %d jobs of earlier agents or unanswered requests: their tasks are run again", new)

    def _is_own(self, name: str) -> bool:
        return owns(self._config, name, self._session)

    def _terminate_pending(self) -> None:
        """Terminate jobs. Raises AwsError for the first that cannot be, after all were tried."""
        with self._lock:
            job_ids = list(self._tracking.terminations)
        errors = list(self._pool.map(self._try_terminate, job_ids))
        for job_id, error in zip(job_ids, errors, strict=True):
            is_tried_again = self._locked(self._tracking.terminated, job_id, is_done=error is None)
            if not is_tried_again:
                _log.error("the job %s may still run: %s", job_id, error)
        # A refusal may be about children of an array that was submitted just now, which Batch does not know yet.
        for error in errors:
            if error is not None and error.kind != "refused":
                raise error

    def _try_terminate(self, job_id: str) -> AwsError | None:
        try:
            self._service.terminate(job_id, STOP_REASON)
        except AwsError as error:
            return error
        return None

    def _terminate_all(self) -> None:
        with self._lock:
            self._tracking.terminate([each.job_id for each in self._tracking.known()])
            without_id = self._tracking.without_id(only_unanswered=False)
        deadline = time.monotonic() + CLOSE_SECONDS
        error: AwsError | None = None
        while without_id or self._tracking.terminations:
            error = None
            try:
                for made in list(without_id):
                    if (job_id := self._service.find(made.name)) is not None:
                        self._service.terminate(job_id, STOP_REASON)
                        without_id.remove(made)
                self._terminate_pending()
            except AwsError as failure:
                error = failure
            if not (without_id or self._tracking.terminations) or time.monotonic() > deadline:
                break
            time.sleep(CLOSE_PAUSE_SECONDS)
        if self._count:
            self._clear(self._objects.clear, "this session")
        if left := list(self._tracking.terminations):
            raise ScalerError(
                f"these jobs may still run: {', '.join(left)}; end each with `aws batch terminate-job --region "
                f"{self._config.aws_region} --reason left --job-id JOB` ({error or 'they were not found'})"
            )

    def _clear(self, remove: Callable[[], int], whose: str) -> None:
        try:
            count = remove()
        except AwsError as error:
            _log.warning("objects of %s stay in S3 until they expire: %s", whose, error)
        else:
            if count:
                _log.info("removed %d objects of %s", count, whose)

    # -- jobs and their results

    def _poll_jobs(self, known: Sequence[CallSubmission]) -> None:
        described = self._service.describe(made.job_id for made in known)
        counts: dict[int, dict[str, int]] = {}
        for made in known:
            job = described.get(made.job_id)
            if job is None:
                lost = self._locked(self._tracking.not_found, made, time.monotonic())
                self._fail(lost, Outcome.WORKER_LOST, f"AWS Batch does not know the job {made.job_id} any more")
                continue
            made.not_found_since = None
            counts[made.number] = counts_of(job)
            self._poll_children(made, job, counts[made.number])
        with self._lock:
            ended = [(each.number, index) for each in known for index in sorted(each.ended & each.open)]
        listed = self._take_results()
        self._classify([position for position in ended if position not in listed])
        for made in known:
            has_lost = self._locked(self._tracking.has_lost_successes, made, counts.get(made.number, {}))
            if has_lost and made.size > 1:
                indexes = self._children(made, "SUCCEEDED")
                self._locked(self._tracking.ended, made, indexes)
        self._update_stuck_reason(known, described, counts)

    def _poll_children(self, made: CallSubmission, job: Fields, counts: Mapping[str, int]) -> None:
        if made.size == 1:
            statuses = [job["status"]] if job["status"] in ("RUNNING", *ENDED) else []
        else:
            statuses = self._locked(self._tracking.statuses_to_list, made, counts)
        for status in statuses:
            indexes = [0] if made.size == 1 else self._children(made, status)
            with self._lock:
                if status == "RUNNING":
                    for task, attempt in self._tracking.running(made, indexes, time.monotonic()):
                        self._report(CallStarted(task, attempt))
                else:
                    made.failed = len(indexes)
                    self._tracking.ended(made, indexes)

    def _children(self, made: CallSubmission, status: str) -> list[int]:
        return [index_in(child["jobId"]) for child in self._service.children(made.job_id, status)]

    def _take_results(self) -> set[tuple[int, int]]:
        """Read all awaited results. Returns number and index of all that exist."""
        found = self._objects.results()
        with self._lock:
            awaited = [result for result in found if self._tracking.is_awaited(result.number, result.index)]
            # Those that were taken stay listed until they are removed; late ones are not awaited.
            self._tracking.discard({result.key for result in found} - {result.key for result in awaited})
        errors = [error for error in self._pool.map(self._try_take, awaited) if error is not None]
        if errors:
            raise errors[0]
        return {(result.number, result.index) for result in found}

    def _try_take(self, result: ResultKey) -> AwsError | None:
        try:
            packed = self._objects.get(result.key)
        except AwsError as error:
            return error
        with self._lock:
            key = self._tracking.arrived(result.number, result.index, time.monotonic())
            self._tracking.discard([result.key])
        if key is None:
            return None
        try:
            data = decompress(packed)
        except ProtocolError as error:
            self._fail([key], Outcome.WORKER_LOST, f"the result of the task cannot be read: {error}")
        else:
            self._report(CallFinished(*key, data))
        return None

    def _classify(self, positions: Sequence[tuple[int, int]]) -> None:
        """Report why jobs ended without a result."""
        with self._lock:
            known = {each.number: each for each in self._tracking.known()}
        jobs = {known[number].job(index): (number, index) for number, index in positions if number in known}
        if not jobs:
            return
        for job_id, job in self._service.describe(jobs).items():
            if job["status"] not in ENDED:
                continue  # the list was out of date
            outcome, text = classify_exit(job, self._config.job_timeout_minutes)
            key = self._locked(self._tracking.failed, *jobs[job_id], time.monotonic())
            if key is not None:
                self._fail([key], outcome, text)

    def _update_stuck_reason(
        self, known: Sequence[CallSubmission], described: Mapping[str, Fields], counts: Mapping[int, Mapping[str, int]]
    ) -> None:
        is_stuck = self._locked(self._tracking.is_stuck, counts.values(), time.monotonic(), self._stuck_seconds)
        if not is_stuck:
            self._stuck_reason = ""
        elif not self._stuck_reason:
            waiting = next(each for each in known if "RUNNABLE" in counts.get(each.number, {}))
            jobs = [described[waiting.job_id]]
            if waiting.size > 1:
                first = list(self._service.children(waiting.job_id, "RUNNABLE"))[:STUCK_LISTED]
                jobs = list(self._service.describe(child["jobId"] for child in first).values())
            reason = next(filter(None, map(reason_of, jobs)), "")
            self._stuck_reason = (
                f"tasks wait in the job queue {self._config.job_queue} for more than {self._stuck_seconds / 60:g} "
                f"minutes, and none runs: {reason or NO_REASON}"
            )
