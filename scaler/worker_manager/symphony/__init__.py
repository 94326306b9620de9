"""Tasks in a session of IBM Spectrum Symphony, by one local agent that needs the product's client (`soamapi`)."""

from __future__ import annotations

from dataclasses import asdict
from importlib.util import find_spec

from scaler.errors import ConfigError
from scaler.paths import local_path
from scaler.plugins import WorkerManagerType
from scaler.processes import absolute
from scaler.worker_manager.offload import OffloadBackend
from scaler.worker_manager.symphony.session import LIBRARY, MISSING, SessionSettings, read_password
from scaler.worker_manager.symphony.settings import SymphonyConfig

TYPE = WorkerManagerType(
    backend="scaler.worker_manager.symphony:make_backend",
    settings="scaler.worker_manager.symphony.settings:SymphonyConfig",
)
EXECUTOR = "scaler.worker_manager.symphony.executor:SymphonyExecutor"
MOST_TASKS = 100_000
"""In the session at the same time when max_task_concurrency sets no limit."""


def make_backend(config: SymphonyConfig) -> OffloadBackend:
    """Make the backend of the type symphony. Raises ConfigError: no soamapi, no password, or no secret one."""
    if find_spec(LIBRARY) is None:
        raise ConfigError(MISSING)
    path = None if config.symphony_password_file is None else str(absolute(local_path(config.symphony_password_file)))
    read_password(path)
    settings = SessionSettings(
        application=config.service_name,
        user=config.symphony_user,
        password_file=path,
        session_name=config.session_name or config.worker_manager_id,
        session_priority=config.session_priority,
    )
    limit = config.max_task_concurrency
    return OffloadBackend(config, EXECUTOR, MOST_TASKS if limit < 0 else limit, asdict(settings))
