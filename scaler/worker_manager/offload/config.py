"""What one offload agent needs to know: a worker's document with the executor and its settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

from scaler.config.worker import WorkerConfig


@dataclass(frozen=True, kw_only=True)
class OffloadConfig(WorkerConfig):
    """One agent whose `slots` tasks run elsewhere."""

    executor: str
    """What makes the executor: module:factory."""
    executor_settings: dict[str, object] = field(default_factory=dict)
    """The executor's own, as JSON values. No secrets: the environment of a process is no place for them."""

    @classmethod
    def around(cls, worker: WorkerConfig, executor: str, settings: Mapping[str, object]) -> OffloadConfig:
        """Return a worker's document with an executor's."""
        fields = {item.name: getattr(worker, item.name) for item in dataclasses.fields(worker)}
        return cls(**fields, executor=executor, executor_settings=dict(settings))
