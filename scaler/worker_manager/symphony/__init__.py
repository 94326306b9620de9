"""Runs tasks in an IBM Spectrum Symphony session through one local agent. Requires Symphony's `soamapi`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from scaler.config.setting import Setting
from scaler.config.values import Limit, Name, Range
from scaler.config.worker_managers import TASKS_AT_ONCE, WorkerManagerConfig
from scaler.plugins import WorkerManagerType

TYPE = WorkerManagerType(
    backend="scaler.worker_manager.symphony.executor:make_backend",
    settings="scaler.worker_manager.symphony:SymphonyConfig",
)


@dataclass(frozen=True, kw_only=True)
class SymphonyConfig(WorkerManagerConfig):
    """Worker manager symphony: tasks in a Symphony session."""

    runs_elsewhere = True

    type: Literal["symphony"] = "symphony"
    service_name: Annotated[Name, Setting(metavar="NAME")]
    """Application whose service runs the tasks."""
    symphony_user: Annotated[str, Setting(metavar="NAME")] = "Guest"
    """User to connect as."""
    symphony_password_file: Annotated[str | None, Setting(default_text="no password", metavar="PATH")] = None
    """File whose first line is the password; must be readable only by its owner."""
    session_name: Annotated[Name | None, Setting(default_text="worker_manager_id", metavar="NAME")] = None
    """Session name to show in Symphony's tools."""
    session_priority: Annotated[
        Annotated[int, Range(ge=1, le=10_000)] | None, Setting(default_text="the application's")
    ] = None
    """Session priority, 1 to 10000. Higher-priority sessions get hosts first."""
    max_task_concurrency: Annotated[Limit, TASKS_AT_ONCE] = 1000
    """Maximum concurrent tasks in the session; -1: no limit."""
