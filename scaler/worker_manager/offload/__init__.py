"""A worker whose tasks run elsewhere: a local agent in front of an executor. Nothing connects inward."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import cast

from scaler.config.worker import WorkerConfig
from scaler.config.worker_managers import WorkerManagerConfig
from scaler.errors import ConfigError
from scaler.worker.executor import Executor
from scaler.worker_manager.backend import Capacity, units_credential
from scaler.worker_manager.local_agents import LocalAgents

COMMAND = (sys.executable, "-P", "-m", "scaler.worker_manager.offload")
CLOSE_SECONDS = 20.0
"""An agent that was told to end has so long, after the grace of its tasks, to end what it has running elsewhere."""

_KILL_SECONDS = 2.0


@dataclass(frozen=True, kw_only=True)
class OffloadConfig(WorkerConfig):
    """One agent whose `slots` tasks run elsewhere."""

    executor: str
    """What makes the executor: module:factory."""
    executor_settings: dict[str, object] = field(default_factory=dict)
    """The executor's own, as JSON values. No secrets: the environment of a process is no place for them."""
    task_minimum_seconds: float = 0.0
    """A task that takes less is paid for as long."""


def load_executor(config: OffloadConfig) -> Executor:
    """Make the executor that the configuration names. Raises ConfigError, or what the factory raises."""
    module, _, factory = config.executor.partition(":")
    try:
        make = cast("Callable[[OffloadConfig], Executor]", getattr(importlib.import_module(module), factory))
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"executor {config.executor!r} cannot be loaded as module:factory: {error}") from error
    return make(config)


class OffloadBackend(LocalAgents):
    """A `Backend` of one unit: an agent with `slots` slots."""

    def __init__(
        self,
        config: WorkerManagerConfig,
        executor: str,
        slots: int,
        settings: Mapping[str, object],
        *,
        stop_grace_seconds: float = WorkerConfig.stop_grace_seconds,
        usual_dispatch_seconds: float = 0.0,
        task_price: float | None = None,
        task_minimum_seconds: float = 0.0,
    ) -> None:
        """executor: what makes it, module:factory. settings: the executor's own, as JSON values without secrets.

        stop_grace_seconds: how long running tasks go on when the agent is asked to end. usual_dispatch_seconds: see
        `Capacity`. task_price: of a task and hour, each charged for task_minimum_seconds at least; None: the unit is
        charged, as the setting unit_price says.
        """

        def document(unit_id: str, unit_slots: int) -> OffloadConfig:
            worker = config.worker_config(unit_id, unit_slots, stop_grace_seconds=stop_grace_seconds)
            return OffloadConfig(
                **vars(worker),
                executor=executor,
                executor_settings=dict(settings),
                task_minimum_seconds=task_minimum_seconds,
            )

        stop_seconds = stop_grace_seconds + CLOSE_SECONDS
        super().__init__(
            Capacity(
                slots,
                slots,
                1,
                starting=1,
                stop_seconds=stop_seconds + _KILL_SECONDS,
                usual_dispatch_seconds=usual_dispatch_seconds,
                unit_price=task_price or 0.0,
                unit_minimum_seconds=task_minimum_seconds,
                charges_tasks=task_price is not None,
            ),
            config.worker_manager_id,
            COMMAND,
            document,
            credential=partial(units_credential, config),
            stop_grace_seconds=stop_seconds,
        )
