"""The executor of mode offload: hands tasks on as AWS Batch jobs, and reports what became of them."""

from __future__ import annotations

import logging
import random
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from scaler.errors import ScalerError
from scaler.protocol.messages import Outcome
from scaler.worker.call import Call, pack_call
from scaler.worker.executor import CallFailed, CallKey, ExecutorDegraded, ExecutorError, Report
from scaler.worker_manager.aws.errors import AwsError
from scaler.worker_manager.aws.session import AwsClient, aws_session
from scaler.worker_manager.aws_hpc.batches import Batch, batches_of
from scaler.worker_manager.aws_hpc.errands import Errands
from scaler.worker_manager.aws_hpc.objects import Objects
from scaler.worker_manager.aws_hpc.pace import Pace
from scaler.worker_manager.aws_hpc.place import Place
from scaler.worker_manager.aws_hpc.requests import Definition, Fields, fits, parameters_for, places_for, submission
from scaler.worker_manager.aws_hpc.service import BatchService
from scaler.worker_manager.aws_hpc.settings import AwsHpcConfig
from scaler.worker_manager.aws_hpc.ticket import JOB_MODULE, TICKET_VARIABLE, InputFrom, Ticket
from scaler.worker_manager.aws_hpc.tracking import DOUBT_SECONDS, STUCK_SECONDS, Tracking
from scaler.worker_manager.aws_hpc.verdicts import STOP_REASON
from scaler.worker_manager.aws_hpc.watch import Watch
from scaler.worker_manager.offload.config import OffloadConfig

if TYPE_CHECKING:
    from scaler.worker_manager.offload import OffloadBackend

THREADS = 8
"""Results that are read, and jobs that are terminated, at the same time."""
S3_READ_TIMEOUT_SECONDS = 60.0
CLOSE_SECONDS = 12.0
"""For so long the termination of what is left is tried at the end."""
CLOSE_PAUSE_SECONDS = 0.5

_log = logging.getLogger(__name__)


def offload_backend(config: AwsHpcConfig) -> OffloadBackend:
    """Return the backend of mode offload: one local agent."""
    from scaler.worker_manager.offload import OffloadBackend  # noqa: PLC0415 (only the manager needs it)

    limit = config.max_task_concurrency
    slots = config.max_concurrent_jobs if limit < 0 else min(limit, config.max_concurrent_jobs)
    return OffloadBackend(config, f"{__name__}:make_executor", max(1, slots), Place.of(config).to_json())


def make_executor(config: OffloadConfig) -> BatchExecutor:
    """Make the executor of an agent. Raises UsageError."""
    return BatchExecutor(Place.from_json(config.executor_settings))


class BatchExecutor:
    """An `Executor`. Raises UsageError when region or profile cannot be."""

    def __init__(
        self, place: Place, *, stuck_seconds: float = STUCK_SECONDS, doubt_seconds: float = DOUBT_SECONDS
    ) -> None:
        self._place = place
        self._session = secrets.token_hex(4)
        aws = aws_session(place)
        self._service = BatchService(place, aws)
        s3 = AwsClient(place, "s3", session=aws, read_timeout_seconds=S3_READ_TIMEOUT_SECONDS)
        self._objects = Objects(place, self._session, s3)
        self._pool = ThreadPoolExecutor(THREADS, "aws")
        self._lock = threading.Condition()
        self._tracking = Tracking(time.monotonic())
        self._errands = Errands(self._service, self._tracking, self._lock, self._pool, doubt_seconds=doubt_seconds)
        self._watch = Watch(
            place,
            self._service,
            self._objects,
            self._tracking,
            self._errands,
            self._lock,
            self._pool,
            stuck_seconds=stuck_seconds,
        )
        self._pace = Pace()
        self._definition: Definition | None = None
        self._count = 0
        self._is_closing = False
        self._has_news = False
        self._trouble = ""
        self._thread = threading.Thread(target=self._work, name="watch")

    def start(self, report: Callable[[Report], None]) -> None:
        """Look whether all is there, and end what an earlier session has left. Raises AwsError."""
        self._watch.report = report
        self._service.check_queue()
        self._definition = self._service.definition()
        self._objects.check()
        self._errands.begin(lambda name: self._place.is_of_session(name, self._session))
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
        with self._lock:
            self._errands.terminate(self._tracking.cancel(keys))
        self._wake()

    def close(self) -> None:
        """Terminate all jobs that are left, and remove all objects. Raises ScalerError that says what may be left."""
        with self._lock:
            self._is_closing = True
        self._wake()
        if self._thread.is_alive():
            self._thread.join()
        try:
            self._end_all()
        finally:
            self._pool.shutdown()
            self._service.close()
            self._objects.close()

    # -- handing on

    def _submit(self, batch: Batch) -> None:
        """Raises AwsError when the calls were not handed on."""
        if batch.is_too_large:
            text = f"the task and its arguments take {len(batch.data)} bytes, more than S3 takes at once"
            for task, attempt in batch.keys:
                self._watch.report(CallFailed(task, attempt, Outcome.REJECTED, text))
            return
        self._count += 1
        number = self._count
        request, call_key = self._request(number, batch)
        if call_key:
            self._objects.put(call_key, batch.data)
        with self._lock:
            made = self._tracking.add(number, request["jobName"], batch.keys, call_key, time.monotonic())
        try:
            job_id = self._service.submit(request)
        except AwsError as error:
            with self._lock:
                if error.is_uncertain:
                    self._tracking.doubtful(made, time.monotonic())
                    _log.warning("%s; looking whether the job is there", error)
                else:
                    self._tracking.refused(made)
            if not error.is_uncertain:
                raise
        else:
            with self._lock:
                self._tracking.accepted(made, job_id)
        self._wake()

    def _request(self, number: int, batch: Batch) -> tuple[Fields, str]:
        """Return the request of a batch, and the key that its calls go to; empty when they are in the request."""
        assert self._definition is not None, "start comes first"
        for input_from, text in places_for(batch.data, len(batch.keys)):
            request = self._request_with(number, batch, self._definition, input_from, text)
            if fits(request, self._definition):
                return request, ""
        key = self._objects.call_key(number)
        return self._request_with(number, batch, self._definition, "s3", key), key

    def _request_with(
        self, number: int, batch: Batch, definition: Definition, input_from: InputFrom, text: str
    ) -> Fields:
        ticket = Ticket(
            region=self._place.aws_region,
            bucket=self._place.s3_bucket,
            results=self._objects.result_prefix(number),
            input_from=input_from,
            input="" if input_from == "parameter" else text,
        )
        return submission(
            self._place,
            definition,
            self._place.job_name(self._session, number),
            JOB_MODULE,
            {TICKET_VARIABLE: ticket.to_json()},
            size=len(batch.keys),
            repeat=batch.repeat,
            parameters=parameters_for(input_from, text),
        )

    # -- the thread that looks

    def _work(self) -> None:
        self._clear_others()
        while self._rest():
            try:
                self._watch.look()
            except AwsError as error:
                self._pace.failed(str(error), random.random())  # noqa: S311 (it spreads retries)
            else:
                self._pace.succeeded()
            self._say_trouble()

    def _rest(self) -> bool:
        """Wait until it is time to look again. Returns False when there is nothing to look for any more."""
        began = time.monotonic()
        with self._lock:
            while not self._is_closing:
                is_idle = self._tracking.is_idle() and not self._errands.are_left()
                wait = None
                if not is_idle or self._pace.is_failing:
                    quiet = time.monotonic() - self._tracking.progress_at
                    wait = began + self._pace.wait_seconds(quiet, self._has_news) - time.monotonic()
                    if wait <= 0:
                        break
                self._lock.wait(wait)
            self._has_news = False
            return not self._is_closing

    def _wake(self) -> None:
        with self._lock:
            self._has_news = True
            self._lock.notify_all()

    def _say_trouble(self) -> None:
        text = "; ".join(filter(None, (self._pace.trouble, self._watch.stuck)))
        if text != self._trouble:
            self._trouble = text
            self._watch.report(ExecutorDegraded(text))

    def _clear_others(self) -> None:
        try:
            left = self._objects.clear_others()
        except AwsError as error:
            _log.warning("objects of earlier sessions stay in S3 until they expire: %s", error)
        else:
            if left:
                _log.info("removed %d objects that earlier sessions have left", left)

    def _clear_own(self) -> None:
        try:
            self._objects.clear()
        except AwsError as error:
            _log.warning("objects of this session stay in S3 until they expire: %s", error)

    # -- the end

    def _end_all(self) -> None:
        with self._lock:
            known = [each.job_id for each in self._tracking.known()]
            unanswered = self._tracking.unanswered()
            self._errands.terminate(known)
        deadline = time.monotonic() + CLOSE_SECONDS
        error: AwsError | None = None
        while unanswered or self._errands.unwanted():
            error = None
            try:
                for doubted in list(unanswered):
                    if (job_id := self._service.find(doubted.name)) is not None:
                        self._service.terminate(job_id, STOP_REASON)
                        unanswered.remove(doubted)
                self._errands.end_unwanted()
            except AwsError as failure:
                error = failure
            if not (unanswered or self._errands.unwanted()) or time.monotonic() > deadline:
                break
            time.sleep(CLOSE_PAUSE_SECONDS)
        if self._count:
            self._clear_own()
        if left := self._errands.unwanted():
            raise ScalerError(
                f"these jobs may still run: {', '.join(left)}; end each with `aws batch terminate-job --region "
                f"{self._place.aws_region} --reason left --job-id JOB` ({error or 'they were not found'})"
            )
