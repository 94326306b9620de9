"""The tasks of one manager, as ECS shows them.

ECS shows what is new with a delay, and may show again what was before. So what was seen, started or stopped here is
remembered for a while against what it says.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from scaler.protocol.messages import UnitState
from scaler.worker_manager.aws.session import AwsCalls
from scaler.worker_manager.aws_raw_ecs.definition import started_by
from scaler.worker_manager.aws_raw_ecs.tasks import MAX_DESCRIBED, age_seconds, reason_of, state_of, unit_id_of
from scaler.worker_manager.backend import Unit

if TYPE_CHECKING:
    from scaler.config.cloud import AwsRawEcsConfig  # importing it takes a tenth of a second

MISSING_SECONDS = 60.0
"""A task that ECS does not know for so long does not exist."""
ENDED_UNITS_SHOWN = 64
ENDED_SHOWN_SECONDS = 300.0
ENDED_KNOWN_SECONDS = 7200.0
"""ECS shows stopped tasks for at least an hour."""

_log = logging.getLogger(__name__)
_ENDED = (UnitState.FAILED, UnitState.STOPPED)


@dataclass(slots=True)
class _Task:
    born_at: float
    """Monotonic; by our clock when we started it, by that of ECS otherwise."""
    state: UnitState | None = None
    """None: ECS has not shown it yet."""
    reason: str = ""
    is_stopping: bool = False
    missing_since: float | None = None


class Fleet:
    """All tasks with the manager's mark. Reads only; not to be used from two threads at once."""

    def __init__(self, config: AwsRawEcsConfig, ecs: AwsCalls) -> None:
        self._config = config
        self._ecs = ecs
        self._mark = started_by(config)
        self._tasks: dict[str, _Task] = {}
        self._shown: deque[tuple[float, Unit]] = deque(maxlen=ENDED_UNITS_SHOWN)
        self._ended: dict[str, float] = {}
        self._has_looked = False

    def started(self, unit_ids: Iterable[str]) -> None:
        """Take note of tasks that were started just now."""
        now = time.monotonic()
        for unit_id in unit_ids:
            self._tasks.setdefault(unit_id, _Task(now))

    def stopping(self, unit_id: str) -> None:
        """Take note that ECS has accepted to stop a task."""
        if (task := self._tasks.get(unit_id)) is not None:
            task.is_stopping = True

    def gone(self, unit_id: str) -> None:
        """Take note that ECS does not know a task any more."""
        self._tasks.pop(unit_id, None)

    def knows(self, unit_id: str) -> bool:
        """Tell whether a task was listed, or started here."""
        return unit_id in self._tasks or unit_id in self._ended

    def to_stop(self, unit_ids: Iterable[str]) -> list[str]:
        """Return those that are not stopping, and did not end, as far as is known."""
        return [
            unit_id
            for unit_id in unit_ids
            if unit_id not in self._ended and not ((task := self._tasks.get(unit_id)) and task.is_stopping)
        ]

    def is_new(self, unit_id: str) -> bool:
        """Tell whether ECS may not know a task yet, which has been started."""
        task = self._tasks.get(unit_id)
        return task is not None and time.monotonic() - task.born_at < MISSING_SECONDS

    def look(self) -> None:
        """Ask ECS. Raises AwsError."""
        now = time.monotonic()
        listed = self._list("RUNNING")
        if not self._has_looked:
            listed += self._list("STOPPED")  # some may not have ended yet
        asked = dict.fromkeys([*self._tasks, *(unit_id for unit_id in listed if unit_id not in self._ended)])
        for unit_ids in _batches(list(asked)):
            self._describe(unit_ids, now)
        self._has_looked = True
        self._ended = {key: at for key, at in self._ended.items() if now - at < ENDED_KNOWN_SECONDS}

    def units(self) -> list[Unit]:
        """Return what was seen last, with what was asked for since."""
        now = time.monotonic()
        while self._shown and now - self._shown[0][0] > ENDED_SHOWN_SECONDS:
            self._shown.popleft()
        alive = [
            Unit(
                unit_id,
                UnitState.STOPPING if task.is_stopping else task.state,
                self._config.ecs_task_cpu,
                now - task.born_at,
                task.reason,
            )
            for unit_id, task in self._tasks.items()
            if task.state is not None
        ]
        return alive + [unit for _, unit in self._shown]

    def _list(self, desired: Literal["RUNNING", "STOPPED"]) -> list[str]:
        pages = self._ecs.pages(
            "ListTasks", cluster=self._config.ecs_cluster, startedBy=self._mark, desiredStatus=desired
        )
        return [unit_id_of(arn) for page in pages for arn in page["taskArns"]]

    def _describe(self, unit_ids: Sequence[str], now: float) -> None:
        answer = self._ecs.call("DescribeTasks", cluster=self._config.ecs_cluster, tasks=list(unit_ids))
        missing = set(unit_ids)
        for shown in answer["tasks"]:
            unit_id = unit_id_of(shown["taskArn"])
            missing.discard(unit_id)
            self._note(unit_id, shown, now)
        for unit_id in missing:
            task = self._tasks.get(unit_id)
            if task is None:
                continue
            if task.missing_since is None:
                task.missing_since = now
            elif now - task.missing_since > MISSING_SECONDS:
                _log.warning("ECS does not know the task %s any more", unit_id)
                del self._tasks[unit_id]

    def _note(self, unit_id: str, shown: dict[str, Any], now: float) -> None:
        state = state_of(shown)
        age = age_seconds(shown, datetime.now(UTC))
        if state in _ENDED:
            task = self._tasks.pop(unit_id, None)
            self._ended[unit_id] = now
            if task is not None or self._has_looked:
                self._shown.append((now, Unit(unit_id, state, self._config.ecs_task_cpu, age, reason_of(shown))))
            return
        task = self._tasks.setdefault(unit_id, _Task(now - age))
        task.state = state
        task.reason = reason_of(shown)
        task.missing_since = None


def _batches(unit_ids: Sequence[str]) -> list[Sequence[str]]:
    return [unit_ids[at : at + MAX_DESCRIBED] for at in range(0, len(unit_ids), MAX_DESCRIBED)]
