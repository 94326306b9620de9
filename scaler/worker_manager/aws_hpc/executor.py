"""Runs calls as AWS Batch jobs. A polling thread owns the tracking and receives notes from the agent's thread. Jobs are
described before results are listed, so an ended job without a listed result has none."""

from __future__ import annotations

import logging
import random
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from queue import Empty, SimpleQueue

from scaler.backoff import Backoff
from scaler.errors import ProtocolError, ScalerError
from scaler.grammar import counted
from scaler.offload import call as c
from scaler.offload.call import Call, CallKey, ExecutorError
from scaler.protocol.messages import Outcome
from scaler.serialization import Buffer
from scaler.texts import escaped
from scaler.worker_manager.aws.calls import AwsError, Fields, aws_session, with_region
from scaler.worker_manager.aws.prices import FARGATE_MINIMUM_SECONDS
from scaler.worker_manager.aws_hpc import AwsHpcConfig, backend, objects
from scaler.worker_manager.aws_hpc.requests import call_request, job_price, owns
from scaler.worker_manager.aws_hpc.tracking import STUCK_SECONDS, CallSubmission, Tracking, batches_of, poll_interval
from scaler.worker_manager.offload import OffloadBackend, OffloadConfig, document_of
from scaler.worker_manager.polled import STOP_REASON

THREADS = 8  # to read results and terminate jobs
OBSOLETE_AT_ONCE = 500  # batch size for removing obsolete objects; all are removed when idle
POLL_BACKOFF = Backoff(0.5, 60.0)
DEGRADED_AFTER = 2  # consecutive failed polls before the degraded reason is shown
CLOSE_SECONDS = 12.0  # time limit for terminating the remaining jobs on close
CLOSE_PAUSE_SECONDS = 0.5

USUAL_DISPATCH_SECONDS = 45.0  # time from SubmitJob until the job runs, on Fargate and on running hosts

_log = logging.getLogger(__name__)


def make_backend(config: AwsHpcConfig) -> OffloadBackend:
    config = with_region(config)
    limit = config.max_task_concurrency
    slots = config.max_concurrent_jobs if limit < 0 else min(limit, config.max_concurrent_jobs)
    return OffloadBackend(
        config,
        f"{__name__}:make_executor",
        max(1, slots),
        document_of(config),
        usual_dispatch_seconds=USUAL_DISPATCH_SECONDS,
        unit_price=job_price(config, config.batch_cpu, config.batch_memory) or 0.0,
        unit_minimum_seconds=FARGATE_MINIMUM_SECONDS if config.is_fargate else 0.0,
        charges_tasks=True,
    )


def make_executor(config: OffloadConfig) -> BatchExecutor:
    return BatchExecutor(config.settings(AwsHpcConfig))


class BatchExecutor:
    """An `Executor` for AWS Batch. Raises UsageError for an unknown region or profile."""

    def __init__(self, config: AwsHpcConfig) -> None:
        self._config = config
        self._session = secrets.token_hex(4)
        aws = aws_session(config)
        self._service = backend.BatchService(config, aws)
        self._objects = backend.SessionObjects(config, self._session, aws)
        self._pool = ThreadPoolExecutor(THREADS, "aws")
        self._tracking = Tracking(time.monotonic())
        self._notes: SimpleQueue[Callable[[], object]] = SimpleQueue()  # queued changes to the tracking
        self._has_updates = False
        self._is_closing = False
        self._report: Callable[[c.Report], None] = lambda _: None
        self._definition = ""
        self._key = secrets.token_bytes(objects.KEY_BYTES)
        self._shared = objects.SharedObjects()
        self._count = 0
        self._failed_polls = 0
        self._poll_error = ""
        self._stuck_reason = ""  # why jobs have been waiting for a long time, for display
        self._degraded_reason = ""
        self._thread = threading.Thread(target=self._work, name="poller")

    # -- the `Executor` methods

    def start(self, report: Callable[[c.Report], None]) -> None:
        """Check queue, definition, and bucket, and terminate jobs of earlier sessions. Raises AwsError."""
        self._report = report
        self._service.check_queue()
        self._definition = self._service.definition()
        self._objects.check()
        self._find_unwanted()
        self._terminate_pending()
        self._thread.start()

    def run(self, calls: Sequence[Call]) -> None:
        taken: list[CallKey] = []
        for batch in batches_of(self._shared.pack(calls)):
            try:
                self._submit(batch)
            except AwsError as error:
                raise ExecutorError(str(error), taken) from error
            taken += [each.call.key for each in batch]

    def cancel(self, keys: Sequence[CallKey]) -> None:
        self._notes.put(partial(self._tracking.cancel, keys))

    def close(self) -> None:
        """Terminate all remaining jobs and remove all objects. Raises ScalerError that names possible leftovers."""
        self._is_closing = True
        self._notes.put(lambda: None)
        if self._thread.is_alive():
            self._thread.join()
        self._take_notes()
        try:
            self._terminate_all()
        finally:
            self._pool.shutdown()
            self._service.close()
            self._objects.close()

    def _submit(self, batch: Sequence[objects.PackedCall]) -> None:
        keys = [each.call.key for each in batch]
        data = objects.pack_bundle([self._key + each.data for each in batch])
        if len(data) > objects.MAX_DATA_BYTES:
            text = f"the task and its arguments take {len(data)} bytes, more than S3 accepts in one request"
            self._fail(keys, Outcome.REJECTED, text)
            return
        self._count += 1
        request, call_key = call_request(self._config, self._definition, self._session, self._count, len(keys))
        self._upload({name: block for each in batch for name, block in each.blocks.items()})
        self._objects.put(call_key, data)
        made = CallSubmission(self._count, request["jobName"], keys, call_key)
        # Record the submission before the job exists, because results of unknown submissions are removed.
        self._notes.put(partial(self._tracking.add, made, time.monotonic()))
        try:
            job_id = self._service.submit(request)
        except AwsError as error:
            if not error.is_uncertain:
                self._notes.put(partial(self._tracking.refused, made))
                raise
            self._notes.put(partial(self._tracking.unanswered, made, time.monotonic()))
            _log.warning("%s; checking whether the job exists", error)
        else:
            self._notes.put(partial(self._tracking.accepted, made, job_id))

    def _upload(self, blocks: Mapping[str, Buffer]) -> None:
        missing = [name for name in blocks if name not in self._shared.uploaded]
        uploads = {self._pool.submit(self._objects.put_object, name, blocks[name]): name for name in missing}
        for upload in as_completed(uploads):
            if upload.exception() is None:
                self._shared.uploaded.add(uploads[upload])
        for upload in uploads:
            upload.result()

    # -- the polling thread

    def _work(self) -> None:
        while self._rest():
            try:
                self._poll()
            except AwsError as error:
                self._failed_polls += 1
                self._poll_error = str(error)
            else:
                self._failed_polls = 0
            failing = f"cannot query jobs: {self._poll_error}" if self._failed_polls >= DEGRADED_AFTER else ""
            text = "; ".join(filter(None, (failing, self._stuck_reason)))
            if text != self._degraded_reason:
                self._degraded_reason = text
                self._report(c.ExecutorDegraded(text))

    def _rest(self) -> bool:
        began = time.monotonic()
        backoff = POLL_BACKOFF.seconds(self._failed_polls, random.random())  # noqa: S311 (jitter for retries)
        while not self._is_closing:
            wait = None
            if self._failed_polls or not self._tracking.is_idle():
                quiet = time.monotonic() - self._tracking.progress_at
                interval = backoff or poll_interval(quiet, has_updates=self._has_updates)
                wait = max(0.0, began + interval - time.monotonic())
            try:
                self._notes.get(timeout=wait)()
            except Empty:
                break
            self._has_updates = True
        self._has_updates = False
        return not self._is_closing

    def _take_notes(self) -> None:
        while not self._notes.empty():
            self._notes.get()()
            self._has_updates = True

    def _poll(self) -> None:
        self._find_unanswered()
        self._find_unwanted()
        self._terminate_pending()
        self._poll_jobs(self._tracking.known())
        obsolete = self._tracking.take_obsolete(OBSOLETE_AT_ONCE)
        try:
            self._objects.delete(obsolete)
        except AwsError:
            self._tracking.discard(obsolete)
            raise

    def _fail(self, keys: Iterable[CallKey], outcome: Outcome, text: str) -> None:
        for task, attempt in keys:
            self._report(c.CallFailed(task, attempt, outcome, text))

    # -- pending terminations

    def _find_unanswered(self) -> None:
        for made in self._tracking.without_id():
            if made.unanswered_since is None:
                continue
            asked_at = time.monotonic()
            job_id = self._service.find(made.name)
            if job_id is not None:
                self._tracking.accepted(made, job_id)
            else:
                failed = self._tracking.not_listed(made, asked_at)
                self._fail(failed, Outcome.NOT_STARTED, "AWS Batch did not answer SubmitJob, and lists no such job")

    def _find_unwanted(self) -> None:
        now = time.monotonic()
        if not self._tracking.is_search_due(now):
            return
        jobs = {job_id: str(job["jobName"]) for job_id, job in self._service.alive().items()}
        if new := self._tracking.listed(jobs, lambda name: owns(self._config, name, self._session), now):
            _log.warning(
                "terminating %s of earlier agents or unanswered requests: their tasks run again", counted(new, "job")
            )

    def _terminate_pending(self) -> None:
        attempts = {
            job_id: self._pool.submit(self._service.terminate, job_id, STOP_REASON)
            for job_id in self._tracking.terminations
        }
        first: BaseException | None = None
        for job_id, attempt in attempts.items():
            error = attempt.exception()
            if not self._tracking.terminated(job_id, is_done=error is None):
                _log.error("the job %s may still run: %s", job_id, error)
            # Batch may refuse to terminate a child of a new array that it does not list yet.
            if not (isinstance(error, AwsError) and error.kind == "refused"):
                first = first or error
        if first is not None:
            raise first

    def _terminate_all(self) -> None:
        self._tracking.cancel()
        deadline = time.monotonic() + CLOSE_SECONDS
        while True:
            error: AwsError | None = None
            try:
                for made in self._tracking.without_id():
                    if (job_id := self._service.find(made.name)) is not None:
                        self._tracking.accepted(made, job_id)
                self._terminate_pending()
            except AwsError as failure:
                error = failure
            if not (self._tracking.without_id() or self._tracking.terminations) or time.monotonic() > deadline:
                break
            time.sleep(CLOSE_PAUSE_SECONDS)
        if self._count:
            try:
                self._objects.clear()
            except AwsError as failure:
                _log.warning("objects of this session stay in S3 until they expire: %s", failure)
        if left := list(self._tracking.terminations):
            raise ScalerError(
                f"these jobs may still run: {', '.join(left)}; end each with `aws batch terminate-job --region "
                f"{self._config.aws_region} --reason left --job-id JOB` ({error or 'they were not found'})"
            )

    # -- jobs and their results

    def _poll_jobs(self, known: Sequence[CallSubmission]) -> None:
        described = self._service.describe(made.job_id for made in known)
        for made in known:
            if (job := described.get(made.job_id)) is None:
                lost = self._tracking.not_found(made, time.monotonic())
                self._fail(lost, Outcome.WORKER_LOST, f"AWS Batch no longer lists the job {made.job_id}")
            else:
                made.not_found_since, made.counts = None, backend.counts_of(job)
                self._list_children(made)
        ended = {made.job(index): (made.number, index) for made in known for index in sorted(made.ended & made.open)}
        if known:
            listed = self._take_results()
            self._classify({job_id: position for job_id, position in ended.items() if position not in listed})
        for made in known:
            if made.has_lost_successes():
                made.ended.update(self._children(made, "SUCCEEDED"))
        self._update_stuck_reason(described)

    def _list_children(self, made: CallSubmission) -> None:
        for status in made.statuses_to_list():
            indexes = self._children(made, status)
            if status == "RUNNING":
                for key in self._tracking.running(made, indexes, time.monotonic()):
                    self._report(c.CallStarted(*key))
            else:
                made.failed = len(indexes)
                made.ended.update(indexes)

    def _children(self, made: CallSubmission, status: str) -> list[int]:
        return [0] if made.size == 1 else self._service.children(made.job_id, status)

    def _take_results(self) -> set[tuple[int, int]]:
        found = self._objects.results()
        self._take_notes()  # results may belong to submissions made since the poll began
        awaited = {position for position in found if self._tracking.is_awaited(*position)}
        # Unawaited: results already read but still listed, and results of closed calls.
        self._tracking.discard(key for position, key in found.items() if position not in awaited)
        readings = {self._pool.submit(self._read, found[position], *position): position for position in awaited}
        error: AwsError | None = None
        for reading in as_completed(readings):
            position, failure = readings.pop(reading), reading.exception()
            if isinstance(failure, AwsError):
                error = error or failure
                continue
            self._tracking.discard([found[position]])
            job_id = self._tracking.job_of(*position)
            key = self._tracking.over(*position, time.monotonic(), has_result=True)
            assert key is not None, "only notes change which results are awaited"
            if isinstance(failure, ProtocolError):
                _log.error("refused a result: %s object=%s", failure, escaped(found[position]))
                self._tracking.terminate(filter(None, [job_id]))  # the job may still run while the task is retried
                self._fail([key], Outcome.WORKER_LOST, f"the result of the task cannot be read: {failure}")
            else:
                self._report(c.CallFinished(*key, reading.result()))
        if error is not None:
            raise error
        return set(found)

    def _read(self, key: str, number: int, index: int) -> memoryview:
        return objects.verified(self._key, number, index, self._objects.get(key))

    def _classify(self, jobs: dict[str, tuple[int, int]]) -> None:
        for job_id, job in self._service.describe(jobs).items():
            if job["status"] not in backend.ENDED:
                continue  # still running: the list was outdated
            if backend.has_not_read(job):
                self._shared.uploaded.clear()  # upload all objects again, because some may be missing
            outcome, text = backend.classify_exit(job, self._config.job_timeout_minutes)
            key = self._tracking.over(*jobs[job_id], time.monotonic(), has_result=False)
            if key is not None:
                self._fail([key], outcome, text)

    def _update_stuck_reason(self, described: dict[str, Fields]) -> None:
        if not self._tracking.is_stuck(time.monotonic(), STUCK_SECONDS):
            self._stuck_reason = ""
        elif not self._stuck_reason:
            waiting = next(each for each in self._tracking.known() if "RUNNABLE" in each.counts)
            self._stuck_reason = (
                f"no task of the job queue {self._config.job_queue} has started for more than {STUCK_SECONDS / 60:g} "
                f"minutes: {self._service.waiting_reason(described[waiting.job_id])}"
            )
