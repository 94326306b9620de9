"""Tasks in a session of IBM Spectrum Symphony, by one local agent that needs the product's client (`soamapi`)."""

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
    """Worker manager symphony: tasks of a Symphony session."""

    type: Literal["symphony"] = "symphony"
    service_name: Annotated[Name, Setting(metavar="NAME")]
    """The application whose service runs the tasks."""
    symphony_user: Annotated[str, Setting(metavar="NAME")] = "Guest"
    """Who connects."""
    symphony_password_file: Annotated[str | None, Setting(default_text="no password", metavar="PATH")] = None
    """File whose first line is the password; only its owner may read it."""
    session_name: Annotated[Name | None, Setting(default_text="worker_manager_id", metavar="NAME")] = None
    """Name of the session, as Symphony's own tools show it."""
    session_priority: Annotated[
        Annotated[int, Range(ge=1, le=10_000)] | None, Setting(default_text="the application's")
    ] = None
    """From 1 to 10000; sessions with a higher one get hosts first."""
    max_task_concurrency: Annotated[Limit, TASKS_AT_ONCE] = 1000
    """Most tasks that are in the session at the same time; -1: no limit."""

    @property
    def runs_elsewhere(self) -> bool:
        return True
