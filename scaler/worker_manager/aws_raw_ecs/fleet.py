"""The tasks of one manager, as ECS shows them.

ECS shows what is new with a delay, and may show again what was before. So what was seen, started or stopped here is
remembered for a while against what it says.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from scaler.protocol.messages import UnitState
from scaler.worker_manager.aws.known_units import LISTED_SECONDS, KnownUnits
from scaler.worker_manager.aws.session import AwsCalls
from scaler.worker_manager.aws_raw_ecs.definition import started_by
from scaler.worker_manager.aws_raw_ecs.settings import AwsRawEcsConfig
from scaler.worker_manager.aws_raw_ecs.tasks import MAX_DESCRIBED, age_seconds, reason_of, state_of, unit_id_of
from scaler.worker_manager.backend import Unit

_log = logging.getLogger(__name__)
_ENDED = (UnitState.FAILED, UnitState.STOPPED)


class Fleet:
    """Looks at all tasks with the manager's mark, and notes them in `known`. For one thread."""

    def __init__(self, config: AwsRawEcsConfig, ecs: AwsCalls, known: KnownUnits) -> None:
        self._config = config
        self._ecs = ecs
        self._known = known
        self._mark = started_by(config)
        self._settled_at: float | None = None
        """When all tasks of earlier processes must have been listed; None before the first listing."""

    def look(self) -> None:
        """Ask ECS. Raises AwsError."""
        now = time.monotonic()
        if self._settled_at is None:
            self._settled_at = now + LISTED_SECONDS
        listed = self._list("RUNNING")
        if now < self._settled_at:
            listed += self._list("STOPPED")  # of an earlier process, and some may not have ended yet
        asked = dict.fromkeys(
            [*self._known.alive, *(unit_id for unit_id in listed if not self._known.has_ended(unit_id))]
        )
        for unit_ids in _batches(list(asked)):
            self._describe(unit_ids)

    def _list(self, desired: Literal["RUNNING", "STOPPED"]) -> list[str]:
        pages = self._ecs.pages(
            "ListTasks", cluster=self._config.ecs_cluster, startedBy=self._mark, desiredStatus=desired
        )
        return [unit_id_of(arn) for page in pages for arn in page["taskArns"]]

    def _describe(self, unit_ids: Sequence[str]) -> None:
        answer = self._ecs.call("DescribeTasks", cluster=self._config.ecs_cluster, tasks=list(unit_ids))
        missing = set(unit_ids)
        for shown in answer["tasks"]:
            unit_id = unit_id_of(shown["taskArn"])
            missing.discard(unit_id)
            self._note(unit_id, shown)
        for unit_id in self._known.missed(missing):
            _log.warning("ECS does not know the task %s any more", unit_id)

    def _note(self, unit_id: str, shown: dict[str, Any]) -> None:
        state = state_of(shown)
        age = age_seconds(shown, datetime.now(UTC))
        if state in _ENDED:
            # What had ended before this manager knew it is no failure of its starts.
            is_news = unit_id in self._known.alive
            unit = Unit(unit_id, state, self._config.ecs_task_cpu, age, reason_of(shown))
            self._known.ended(unit_id, unit if is_news else None)
            return
        task = self._known.found(unit_id, time.monotonic() - age)
        task.state = state
        task.reason = reason_of(shown)
        task.missing_since = None


def _batches(unit_ids: Sequence[str]) -> list[Sequence[str]]:
    return [unit_ids[at : at + MAX_DESCRIBED] for at in range(0, len(unit_ids), MAX_DESCRIBED)]
