"""The backend of mode worker. A unit is a job or an array child: `JOB` or `JOB:INDEX`, as in AWS_BATCH_JOB_ID."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scaler.config.worker import WORKER_CONFIG_VARIABLE
from scaler.errors import UsageError
from scaler.protocol.messages import UnitState
from scaler.worker_manager.aws.calls import AwsError, with_region
from scaler.worker_manager.aws.package import MAX_OVERRIDES_CHARACTERS, unreachable
from scaler.worker_manager.aws.resources import check_secrets
from scaler.worker_manager.aws_hpc import MAX_ARRAY_SIZE, AwsHpcConfig, requests
from scaler.worker_manager.aws_hpc.service import NO_REASON, BatchService, child_id, reason_of
from scaler.worker_manager.aws_hpc.tracking import STUCK_SECONDS, UNANSWERED_SECONDS
from scaler.worker_manager.backend import Backend, BackendError, Capacity, most_units, worker_document
from scaler.worker_manager.polled import STOP_REASON, PolledBackend, SeenUnit, Stopped

STOP_GRACE_SECONDS = 25.0  # for running tasks of a stopped worker; Batch kills the container 30 s after SIGTERM
USUAL_STARTUP_SECONDS = 45.0  # from SubmitJob to the connected worker, on Fargate and on running hosts
_STATES = {"RUNNING": UnitState.RUNNING, "SUCCEEDED": UnitState.STOPPED, "FAILED": UnitState.FAILED}
"""In all other states, the job is pending."""

_log = logging.getLogger(__name__)


def make_backend(config: AwsHpcConfig) -> Backend:
    config = with_region(config)
    if config.mode == "worker":
        return BatchBackend(config)
    from scaler.worker_manager.aws_hpc.executor import offload_backend  # noqa: PLC0415 (mode worker does without)

    return offload_backend(config)


class BatchBackend(PolledBackend):
    """Units are jobs. Raises UsageError, and AwsError if AWS does not answer."""

    def __init__(self, config: AwsHpcConfig) -> None:
        self._config = config
        self._service = BatchService(config)
        definition = self._service.definition()
        check_secrets(config, config.job_definition.partition(":")[0], definition.secrets, requests.SETUP)
        slots = max(1, int(definition.vcpus))
        jobs, allowed = config.max_concurrent_jobs, most_units(config.max_task_concurrency, slots)
        units = jobs if allowed is None else min(jobs, allowed)
        super().__init__(
            service="AWS Batch",
            noun="jobs",
            stop_by_hand=f"end each with `aws batch terminate-job --region {config.aws_region} "
            "--reason left --job-id JOB`",
            capacity=Capacity.of_units(
                slots,
                units,
                unit_memory_bytes=definition.memory_bytes,
                unit_price=requests.job_price(config, definition.vcpus, definition.memory_bytes / 1024**3) or 0.0,
                unit_minimum_seconds=requests.minimum_seconds(config),
                usual_startup_seconds=USUAL_STARTUP_SECONDS,
            ),
            heartbeat_seconds=config.heartbeat_interval_seconds,
        )
        document = worker_document(config, slots, unit_id_from="batch", stop_grace_seconds=STOP_GRACE_SECONDS)
        variables = {WORKER_CONFIG_VARIABLE: document}
        # A unit is one attempt: a second attempt would be another worker with the same id.
        self._request = requests.submission(
            config, definition, "", requests.WORKER_MODULE, variables, size=1, repeat=False
        )
        if not requests.fits(self._request, definition):
            raise UsageError(
                f"the workers' configuration takes {len(document)} characters, and AWS allows "
                f"{MAX_OVERRIDES_CHARACTERS:,} with all the rest: shorten per_worker_capabilities or preload"
            )
        self._session = secrets.token_hex(4)
        self._count = 0
        self._unanswered: tuple[str, int, float] | None = None  # name, size, and time of an unanswered submission
        if warning := unreachable("workers on AWS Batch", config.worker_scheduler_address, config.aws_endpoint_url):
            _log.warning("%s, or choose mode offload, which needs none", warning)

    def start_some(self, count: int) -> list[str]:
        size = min(count, MAX_ARRAY_SIZE)
        self._count += 1
        name = requests.job_name(self._config, self._session, self._count)
        request = self._request | {"jobName": name} | ({"arrayProperties": {"size": size}} if size > 1 else {})
        try:
            return _unit_ids(self._service.submit(request), size)
        except AwsError as error:
            if error.is_uncertain:
                self._unanswered = (name, size, time.monotonic())
            raise

    def started_unanswered(self) -> list[str]:
        # SubmitJob has no client token, but Batch eventually lists jobs by name.
        if self._unanswered is None:
            return []
        name, size, since = self._unanswered
        asked_at = time.monotonic()
        job_id = self._service.find(name)
        if job_id is None and asked_at - since < UNANSWERED_SECONDS:
            raise BackendError("AWS Batch did not answer SubmitJob: looking whether the jobs are there")
        self._unanswered = None
        return [] if job_id is None else _unit_ids(job_id, size)

    def stop_one(self, unit_id: str) -> Stopped:
        try:
            self._service.terminate(unit_id, STOP_REASON)
        except AwsError as error:
            if error.kind != "refused":
                raise
            return "not found"  # also for children of an array that was just submitted
        return "stopping"

    def list_ids(self, *, search: bool) -> Iterable[str]:
        if not search:
            return
        for job_id, summary in self._service.alive().items():
            yield from _unit_ids(job_id, int((summary.get("arrayProperties") or {}).get("size", 1)))

    def describe(self, unit_ids: Sequence[str]) -> dict[str, SeenUnit]:
        return {unit_id: _seen(job) for unit_id, job in self._service.describe(unit_ids).items()}

    def disconnect(self) -> None:
        self._service.close()


def _unit_ids(job_id: str, size: int) -> list[str]:
    return [child_id(job_id, index, size) for index in range(size)]


def _seen(job: Mapping[str, Any]) -> SeenUnit:
    state = _STATES.get(str(job["status"]), UnitState.PENDING)
    reason = reason_of(job)
    created = job.get("createdAt")
    age = 0.0 if created is None else max(0.0, time.time() - float(created) / 1000)  # clocks may differ
    if state is UnitState.FAILED and str(job.get("statusReason", "")).startswith(STOP_REASON):
        state = UnitState.STOPPED
    elif state in (UnitState.PENDING, UnitState.RUNNING) and job.get("isTerminated"):
        state = UnitState.STOPPING
    if job["status"] == "RUNNABLE" and (reason or age > STUCK_SECONDS):
        reason = f"RUNNABLE: {reason or NO_REASON}"
    return SeenUnit(state, age, reason)
