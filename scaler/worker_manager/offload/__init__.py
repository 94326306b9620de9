"""Runs tasks remotely: a local agent passes them to an executor. The remote side needs no route to the scheduler."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar, cast

from scaler.config.setting import SettingsModel
from scaler.config.worker import WorkerConfig
from scaler.config.worker_managers import WorkerManagerConfig
from scaler.errors import ConfigError
from scaler.offload.call import Executor
from scaler.plugins import load
from scaler.worker_manager.backend import Capacity, units_credential
from scaler.worker_manager.baremetal_native import LocalAgents

COMMAND = (sys.executable, "-P", "-m", "scaler.worker_manager.offload.service")
CLOSE_SECONDS = 20.0  # time for an agent to cancel remote tasks, after their grace period

_KILL_SECONDS = 2.0
_Settings = TypeVar("_Settings", bound=SettingsModel)


@dataclass(frozen=True, kw_only=True)
class OffloadConfig(WorkerConfig):
    """Configuration of one agent that runs up to `slots` tasks remotely."""

    executor: str
    """The executor's factory, as module:factory."""
    executor_settings: dict[str, object] = field(default_factory=dict)
    """Settings of the executor, as JSON values. No secrets, because the settings are passed in the environment."""
    task_minimum_seconds: float = 0.0
    """Minimum billed duration of a task, in seconds."""

    def settings(self, kind: type[_Settings]) -> _Settings:
        """Return the settings that `document_of` stored in executor_settings."""
        return kind.from_json(json.dumps(self.executor_settings))


def document_of(config: SettingsModel) -> dict[str, object]:
    """Return settings as JSON values, for executor_settings."""
    return dict(json.loads(config.to_json()))


def load_executor(config: OffloadConfig) -> Executor:
    """Create the configured executor. Raises ConfigError and any error from the factory."""
    try:
        make = cast("Callable[[OffloadConfig], Executor]", load(config.executor))
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"executor {config.executor!r} cannot be loaded as module:factory: {error}") from error
    return make(config)


class OffloadBackend(LocalAgents):
    def __init__(
        self,
        config: WorkerManagerConfig,
        executor: str,
        slots: int,
        settings: Mapping[str, object],
        *,
        stop_grace_seconds: float = WorkerConfig.stop_grace_seconds,
        **facts: Any,
    ) -> None:
        """executor: its factory as module:factory. settings: JSON values for the executor, without secrets.
        stop_grace_seconds: grace period of running tasks when the agent stops. facts: further fields of `Capacity`."""
        stop_seconds = stop_grace_seconds + CLOSE_SECONDS
        capacity = Capacity.of_units(slots, 1, starting=1, stop_seconds=stop_seconds + _KILL_SECONDS, **facts)

        def document(unit_id: str, unit_slots: int) -> OffloadConfig:
            worker = config.worker_config(unit_id, unit_slots, stop_grace_seconds=stop_grace_seconds)
            return OffloadConfig(
                **vars(worker),
                executor=executor,
                executor_settings=dict(settings),
                task_minimum_seconds=capacity.unit_minimum_seconds,
            )

        super().__init__(
            capacity,
            config.worker_manager_id,
            COMMAND,
            document,
            credential=partial(units_credential, config),
            stop_grace_seconds=stop_seconds,
        )
