"""Every configuration model under one name, each loaded when it is first asked for.

Loaded one by one because a worker's process needs `WorkerConfig` alone, and not the tenth of a second that importing
pydantic takes.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scaler.config.launcher import LauncherConfig
    from scaler.config.logging import LoggingConfig
    from scaler.config.servers import ObjectStorageServerConfig, SchedulerConfig
    from scaler.config.top import TopConfig
    from scaler.config.webui import WebUiConfig
    from scaler.config.worker import WorkerConfig
    from scaler.config.worker_managers import ClusterConfig, WorkerManagerConfig

__all__ = [
    "ClusterConfig",
    "LauncherConfig",
    "LoggingConfig",
    "ObjectStorageServerConfig",
    "SchedulerConfig",
    "TopConfig",
    "WebUiConfig",
    "WorkerConfig",
    "WorkerManagerConfig",
]

_HOMES = {
    "ClusterConfig": "worker_managers",
    "LauncherConfig": "launcher",
    "LoggingConfig": "logging",
    "ObjectStorageServerConfig": "servers",
    "SchedulerConfig": "servers",
    "TopConfig": "top",
    "WebUiConfig": "webui",
    "WorkerConfig": "worker",
    "WorkerManagerConfig": "worker_managers",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"scaler.config.{home}"), name)
