"""The `logging` records of tasks and preload hooks: lines on stderr, from INFO on, with the task's id.

The root logger has their handler, so that `basicConfig`, which `logging.info` calls too, adds none. A record that a
handler of the task takes is left to that handler, so no record appears twice. A task's stderr travels to its client, to
the monitors and to `client.logs`. Warnings and errors of no task, such as a preload hook's, become records of the
worker's own log.
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


class TaskRecords(logging.Handler):
    """Writes records to the stderr of the moment, which the running task's output is made of."""

    def __init__(
        self, config: LoggingConfig, running: Callable[[], bytes], report: Callable[[str, str, str], object]
    ) -> None:
        """running: returns the id of the running task, empty between tasks. report: takes level, logger and message."""
        super().__init__()
        is_json = config.logging_format == "json"
        self.setFormatter(JsonLines(_COMPONENT) if is_json else TextLines(_COMPONENT, with_ids=True))
        self._running = running
        self._own_level = _LEVELS[config.logging_level]
        self._report = report

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line. An error in a record's arguments is shown as Python shows it, and ends no task."""
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
        """Return whether a handler of the task takes the record, too."""
        logger: logging.Logger | None = logging.getLogger(record.name)
        while logger is not None:
            if any(each is not self and not isinstance(each, logging.NullHandler) for each in logger.handlers):
                return True
            logger = logger.parent if logger.propagate else None
        return False


def show_records(
    config: LoggingConfig, running: Callable[[], bytes], report: Callable[[str, str, str], object]
) -> None:
    """Show records from INFO, or a lower `logging_level`, on. A higher one silences only the worker itself."""
    # The last resort is for a task that removes the handlers of the root logger.
    logging.lastResort = records = TaskRecords(config, running, report)
    root = logging.getLogger()
    root.addHandler(records)
    set_level(config)


def set_level(config: LoggingConfig) -> None:
    """Set the level of the root logger. Done in the fork server, it saves processors from writing to every logger."""
    root = logging.getLogger()
    level = min(logging.INFO, _LEVELS[config.logging_level])
    if root.level != level:
        root.setLevel(level)
