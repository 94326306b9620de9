"""What one offload agent needs to know: a worker's document with the executor and its settings."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

from scaler.config.worker import WorkerConfig
from scaler.errors import ConfigError
from scaler.worker.executor import Executor


@dataclass(frozen=True, kw_only=True)
class OffloadConfig(WorkerConfig):
    """One agent whose `slots` tasks run elsewhere."""

    executor: str
    """What makes the executor: module:factory."""
    executor_settings: dict[str, object] = field(default_factory=dict)
    """The executor's own, as JSON values. No secrets: the environment of a process is no place for them."""


def load_executor(config: OffloadConfig) -> Executor:
    """Make the executor that the configuration names. Raises ConfigError, or what the factory raises."""
    module, _, factory = config.executor.partition(":")
    try:
        make = cast("Callable[[OffloadConfig], Executor]", getattr(importlib.import_module(module), factory))
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"executor {config.executor!r} cannot be loaded as module:factory: {error}") from error
    return make(config)
