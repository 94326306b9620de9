"""Where a component writes its log, and how."""

from __future__ import annotations

from typing import Annotated

from scaler.config.kinds import Level, Paths
from scaler.config.setting import Setting, SettingsModel
from scaler.config.worker import LoggingFormat, WorkerConfig


class LoggingConfig(SettingsModel):
    """Logging."""

    logging_level: Annotated[Level, Setting("-ll")] = WorkerConfig.logging_level
    """Least level that is written: DEBUG, INFO, WARNING, ERROR or CRITICAL."""
    logging_format: LoggingFormat = WorkerConfig.logging_format
    """Lines of text for people, or one JSON object a line."""
    logging_paths: Annotated[Paths, Setting("-lp", metavar="PATH")] = WorkerConfig.logging_paths
    """Files that the log is appended to; /dev/stdout and /dev/stderr are the process's own."""
    logging_config_file: Annotated[str | None, Setting("-lcf", metavar="FILE")] = None
    """A file of Python's logging configuration (INI, or JSON of a dictionary) in place of the keys above."""
