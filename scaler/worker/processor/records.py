"""Log records of tasks and preload hooks, written to stderr at level INFO or above, with the task's id.

The handler is installed on the root logger, so that `basicConfig` adds none. Skips records handled by the task's own
handlers. Warnings and errors outside tasks go to the worker's own log.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

from scaler.config.setting import LoggingConfig
from scaler.logs import JsonLines, TextLines, about, message_of

_COMPONENT = "task"
_LEVELS = logging.getLevelNamesMapping()
_REPORTED = ("WARNING", "ERROR", "CRITICAL")
Report = Callable[[str, str, str], object]
"""Receives level, logger, and message."""


class TaskRecords(logging.Handler):
    """Writes records to the current stderr, which is part of the running task's output."""

    def __init__(self, config: LoggingConfig, running: Callable[[], bytes], report: Report) -> None:
        """running: returns the id of the running task, or ""."""
        super().__init__()
        is_json = config.logging_format == "json"
        self.setFormatter(JsonLines(_COMPONENT) if is_json else TextLines(_COMPONENT, with_ids=True))
        self._running = running
        self._own_level = _LEVELS[config.logging_level]
        self._report = report

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record. `logging` handles errors in its arguments, so they do not fail the task."""
        if self._is_handled(record):
            return
        try:
            task = self._running()
            record.__dict__.update(about(task=task.hex()))
            stream = sys.stderr
            if stream is not None:  # a task may have closed or removed it
                stream.write(self.format(record) + "\n")
                stream.flush()
            if not task and record.levelname in _REPORTED and record.levelno >= self._own_level:
                self._report(record.levelname, record.name, message_of(record))
        except Exception:  # noqa: BLE001 (as every handler of Python does)
            self.handleError(record)

    def _is_handled(self, record: logging.LogRecord) -> bool:
        logger: logging.Logger | None = logging.getLogger(record.name)
        while logger is not None:
            if any(each is not self and not isinstance(each, logging.NullHandler) for each in logger.handlers):
                return True
            logger = logger.parent if logger.propagate else None
        return False


def show_records(config: LoggingConfig, running: Callable[[], bytes], report: Report) -> None:
    """Shows records at or above the level given to `set_level`."""
    # lastResort is used by tasks that remove the root logger's handlers.
    logging.lastResort = records = TaskRecords(config, running, report)
    logging.getLogger().addHandler(records)


def set_level(config: LoggingConfig) -> None:
    """Set the root logger's level, INFO or a lower `logging_level`, before processors are forked. A higher level only
    applies to the worker itself."""
    logging.getLogger().setLevel(min(logging.INFO, _LEVELS[config.logging_level]))
