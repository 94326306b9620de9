"""The backend of mode worker: starts, stops and lists AWS Batch jobs that run workers.

A unit is a plain job, or a child of an array job: `JOB`, or `JOB:INDEX`, as the service names them for the worker too.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from scaler.config.worker import WORKER_CONFIG_VARIABLE
from scaler.errors import UsageError
from scaler.protocol.messages import UnitState
from scaler.worker_manager.aws.errors import AwsError
from scaler.worker_manager.aws.known_units import KnownUnits
from scaler.worker_manager.aws.reach import unreachable
from scaler.worker_manager.aws.stops import Stops
from scaler.worker_manager.aws_hpc.fleet import Fleet
from scaler.worker_manager.aws_hpc.place import Place
from scaler.worker_manager.aws_hpc.requests import Definition, Fields, fits, submission
from scaler.worker_manager.aws_hpc.service import BatchService, child_id
from scaler.worker_manager.aws_hpc.settings import AwsHpcConfig
from scaler.worker_manager.aws_hpc.ticket import WORKER_MODULE
from scaler.worker_manager.aws_hpc.verdicts import STOP_REASON
from scaler.worker_manager.backend import Backend, BackendError, Capacity, Unit

STOP_GRACE_SECONDS = 25.0
"""How long running tasks of a worker that is stopped may take: Batch kills its container 30 s after SIGTERM."""
MANAGER_STOP_SECONDS = 20.0
"""How long the manager may take to have Batch accept that all jobs end. Nobody waits for their end."""
LISTING_SHARE = 0.9
"""Jobs are listed at most once in this part of a heartbeat, however often something else happens."""
DOUBT_SECONDS = 20.0
"""A SubmitJob that was not answered and is not listed after this time has started nothing."""
MAX_ARRAY = 10_000

_log = logging.getLogger(__name__)


def make_backend(config: AwsHpcConfig) -> Backend:
    """Return the backend of the configuration's mode. Raises UsageError and, in mode worker, AwsError."""
    if config.mode == "worker":
        return BatchBackend(config)
    from scaler.worker_manager.aws_hpc.executor import offload_backend  # noqa: PLC0415 (mode worker does without)

    return offload_backend(config)


class BatchBackend:
    """A `Backend`. service: of boto3 by default. Raises UsageError, and AwsError when AWS cannot be asked."""

    def __init__(self, config: AwsHpcConfig, service: BatchService | None = None) -> None:
        self._place = Place.of(config)
        self._service = BatchService(self._place) if service is None else service
        self._session = secrets.token_hex(4)
        self._count = 0
        self._definition = self._service.definition()
        slots = max(1, int(self._definition.vcpus))
        self._request = _worker_request(config, self._place, self._definition, slots)
        limit, jobs = config.max_task_concurrency, config.max_concurrent_jobs
        units = jobs if limit < 0 else min(jobs, -(-limit // slots))
        self.capacity = Capacity(
            unit_slots=slots,
            max_slots=units * slots,
            max_units=units,
            running_is_joined=False,
            stop_seconds=MANAGER_STOP_SECONDS,
            outlive_manager=True,
        )
        self._known = KnownUnits(slots, first_state=UnitState.PENDING)
        self._fleet = Fleet(self._service, self._known, slots)
        self._stops = Stops(self._try_stop)
        self._listing_seconds = config.heartbeat_interval_seconds * LISTING_SHARE
        self._listed_at: float | None = None
        self._doubt: tuple[str, int, float] | None = None
        """Name and size of a submission that was not answered, and when."""
        if warning := unreachable("workers on AWS Batch", config.worker_scheduler_address, config.aws_endpoint_url):
            _log.warning("%s, or choose mode offload, which needs none", warning)

    def start(self, count: int) -> list[str]:
        started = [unit_id for unit_id in self._settle_doubt() if not self._known.knows(unit_id)]
        self._known.started(started)
        count -= len(started)
        while count > 0:
            size = min(count, MAX_ARRAY)
            self._count += 1
            name = self._place.job_name(self._session, self._count)
            request = self._request | {"jobName": name} | ({"arrayProperties": {"size": size}} if size > 1 else {})
            try:
                job_id = self._service.submit(request)
            except AwsError as error:
                if error.is_uncertain:
                    self._doubt = (name, size, time.monotonic())
                raise BackendError(str(error), started) from error
            self._known.started(unit_ids := _unit_ids(job_id, size))
            started += unit_ids
            count -= size
        return started

    def stop(self, unit_ids: Sequence[str]) -> None:
        self._stops.stop(self._known.to_stop(unit_ids))

    def list(self) -> list[Unit]:
        now = time.monotonic()
        if self._listed_at is None or now - self._listed_at >= self._listing_seconds:
            self._fleet.look()
            self._listed_at = now
        return self._known.units()

    def fileno(self) -> int | None:
        return None

    def close(self) -> None:
        if self._doubt is not None:
            try:
                self.stop(self._settle_doubt())
            except BackendError as error:
                _log.error("a start of jobs that AWS Batch did not answer may have left some: %s", error)
        if self._stops.refused:
            _log.error(
                "these jobs may be left: %s; end each with "
                "`aws batch terminate-job --region %s --reason left --job-id JOB`",
                ", ".join(sorted(self._stops.refused)),
                self._place.aws_region,
            )
        self._service.close()

    def _settle_doubt(self) -> Sequence[str]:
        """Return what a start that was not answered has started. Raises BackendError while nobody can know.

        Batch has no token that makes a repeated start harmless, but lists jobs by their names after a while.
        """
        if self._doubt is None:
            return []
        name, size, since = self._doubt
        asked_at = time.monotonic()
        job_id = self._service.find(name)
        if job_id is None and asked_at - since < DOUBT_SECONDS:
            raise BackendError("AWS Batch did not answer SubmitJob: looking whether the jobs are there")
        self._doubt = None
        return [] if job_id is None else _unit_ids(job_id, size)

    def _try_stop(self, unit_id: str) -> Callable[[str], None] | AwsError:
        try:
            self._service.terminate(unit_id, STOP_REASON)
        except AwsError as error:
            if error.kind != "refused":
                return error
            if self._known.is_new(unit_id):
                # The children of an array that was submitted just now are not there yet.
                return AwsError("AWS Batch does not know a job yet that was submitted just now", "broken")
            return self._known.gone
        return self._known.stopping


def _unit_ids(job_id: str, size: int) -> list[str]:
    return [child_id(job_id, index, size) for index in range(size)]


def _worker_request(config: AwsHpcConfig, place: Place, definition: Definition, slots: int) -> Fields:
    """Return the request that all starts share. Raises UsageError when it is longer than Batch allows."""
    worker = config.worker_config("", slots, unit_id_from="batch", stop_grace_seconds=STOP_GRACE_SECONDS)
    # Log files of the manager's machine are none of its containers'.
    document = replace(worker, logging_paths=("/dev/stdout",), logging_config_file=None).to_json()
    variables = {WORKER_CONFIG_VARIABLE: document}
    # A unit is one attempt: another one would be another worker under the same id.
    request = submission(place, definition, "", WORKER_MODULE, variables, size=1, repeat=False)
    if not fits(request, definition):
        raise UsageError(
            f"what the workers are told takes {len(document)} characters, and AWS allows 8,192 with all the rest: "
            "shorten per_worker_capabilities or preload"
        )
    return request
