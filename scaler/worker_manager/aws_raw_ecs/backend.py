"""The worker manager's backend on ECS: starts, stops and lists tasks."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from scaler.worker_manager.aws.errors import AwsError
from scaler.worker_manager.aws.known_units import KnownUnits
from scaler.worker_manager.aws.reach import unreachable
from scaler.worker_manager.aws.session import AwsCalls, AwsClient
from scaler.worker_manager.aws.stops import Stops
from scaler.worker_manager.aws_raw_ecs.fleet import Fleet
from scaler.worker_manager.aws_raw_ecs.launches import Launches, with_hint
from scaler.worker_manager.aws_raw_ecs.settings import AwsRawEcsConfig
from scaler.worker_manager.aws_raw_ecs.tasks import STOP_REASON
from scaler.worker_manager.backend import BackendError, Capacity, Unit

MANAGER_STOP_SECONDS = 20.0
"""How long the manager may take to have ECS accept that all tasks stop. Nobody waits for their end."""
LISTING_SHARE = 0.9
"""Tasks are listed at most once in this part of a heartbeat, however often something else happens."""

_log = logging.getLogger(__name__)


class EcsBackend:
    """Starts, stops and lists ECS tasks: a `Backend`. ecs: boto3's by default. Raises UsageError."""

    def __init__(self, config: AwsRawEcsConfig, ecs: AwsCalls | None = None) -> None:
        self._config = config
        self._ecs: AwsCalls = AwsClient(config, "ecs") if ecs is None else ecs
        limit, cpus = config.max_task_concurrency, config.ecs_task_cpu
        units = None if limit < 0 else -(-limit // cpus)
        self.capacity = Capacity(
            unit_slots=cpus,
            max_slots=-1 if units is None else units * cpus,
            max_units=units,
            running_is_joined=False,
            stop_seconds=MANAGER_STOP_SECONDS,
            outlive_manager=True,
        )
        self._known = KnownUnits(cpus, first_state=None)
        self._fleet = Fleet(config, self._ecs, self._known)
        self._stops = Stops(self._try_stop)
        self._launches = Launches(config, self._ecs)
        self._listing_seconds = config.heartbeat_interval_seconds * LISTING_SHARE
        self._listed_at: float | None = None
        if warning := unreachable("workers on ECS", config.worker_scheduler_address, config.aws_endpoint_url):
            _log.warning("%s", warning)

    def start(self, count: int) -> list[str]:
        try:
            started = self._launches.start(count, self._known.knows)
        except BackendError as error:
            self._known.started(error.started)
            raise
        self._known.started(started)
        return started

    def stop(self, unit_ids: Sequence[str]) -> None:
        self._stops.stop(self._known.to_stop(unit_ids))

    def list(self) -> list[Unit]:
        now = time.monotonic()
        if self._listed_at is None or now - self._listed_at >= self._listing_seconds:
            try:
                self._fleet.look()
            except AwsError as error:
                raise with_hint(error) from error
            self._listed_at = now
            self._launches.listed()
        return self._known.units()

    def fileno(self) -> int | None:
        return None

    def close(self) -> None:
        try:
            self.stop(self._launches.settle())
        except BackendError as error:
            _log.error("a start of tasks that ECS did not answer may have left some: %s", error)
        if self._stops.refused:
            _log.error(
                "these tasks may be left: %s; stop each with `aws ecs stop-task --region %s --cluster %s --task TASK`",
                ", ".join(sorted(self._stops.refused)),
                self._config.aws_region,
                self._config.ecs_cluster,
            )
        self._ecs.close()

    def _try_stop(self, unit_id: str) -> Callable[[str], None] | AwsError:
        try:
            answer = self._ecs.call("StopTask", cluster=self._config.ecs_cluster, task=unit_id, reason=STOP_REASON)
        except AwsError as error:
            if not _is_not_found(error):
                return error
            if self._known.is_new(unit_id):
                return AwsError("ECS does not know a task yet that was started just now", "broken")
            return self._known.gone
        if answer["task"].get("desiredStatus") != "STOPPED":
            return AwsError("ECS StopTask did not stop a task, and gave no reason", "broken")
        return self._known.stopping


def _is_not_found(error: AwsError) -> bool:
    return error.code == "InvalidParameterException" and "not found" in error.message
