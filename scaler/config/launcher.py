"""A whole file: what `scaler FILE` starts."""

from __future__ import annotations

from collections import Counter

from pydantic import model_validator

from scaler.config.servers import ObjectStorageServerConfig, SchedulerConfig
from scaler.config.setting import SettingsModel
from scaler.config.webui import WebUiConfig
from scaler.config.worker_managers import WorkerManagerConfig


class LauncherConfig(SettingsModel):
    """Every component of one file, with the addresses by which they find each other filled in."""

    object_storage_server: ObjectStorageServerConfig | None = None
    """None: the scheduler has its own, or uses one that runs elsewhere."""
    scheduler: SchedulerConfig
    worker_managers: tuple[WorkerManagerConfig, ...] = ()
    """All of them, in the order of the file; `[cluster]` is one of them."""
    webui: WebUiConfig | None = None

    @model_validator(mode="after")
    def _components_fit_together(self) -> LauncherConfig:
        counts = Counter(manager.worker_manager_id for manager in self.worker_managers)
        twice = sorted(name for name, count in counts.items() if count > 1)
        if twice:
            raise ValueError(f"two worker managers have the same worker_manager_id: {', '.join(map(repr, twice))}")
        limit = self.scheduler.worker_timeout_seconds * 2 / 3
        for manager in self.worker_managers:
            # A worker starts nothing new after two thirds of its timeout without contact.
            if manager.heartbeat_interval_seconds >= limit:
                raise ValueError(
                    f"heartbeat_interval_seconds ({manager.heartbeat_interval_seconds:g}) of worker manager "
                    f"{manager.worker_manager_id!r} must be less than two thirds of the scheduler's "
                    f"worker_timeout_seconds ({self.scheduler.worker_timeout_seconds:g})"
                )
        return self
