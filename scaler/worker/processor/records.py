"""The `logging` records of tasks and preload hooks: lines on stderr, at the level of the worker, with the task's id.

They replace what Python does with records without a handler. So a task that sets up logging by itself gets what it
asked for, and no record appears twice. A task's stderr travels to its client, to the monitors and to `client.logs`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

from scaler.config.setting import LoggingConfig
from scaler.logs import JsonLines, TextLines, about

_COMPONENT = "task"


class TaskRecords(logging.Handler):
    """Writes records to the stderr of the moment, which the running task's output is made of."""

    def __init__(self, config: LoggingConfig, running: Callable[[], bytes]) -> None:
        """running: returns the id of the running task, empty between tasks."""
        super().__init__(config.logging_level)
        is_json = config.logging_format == "json"
        self.setFormatter(JsonLines(_COMPONENT) if is_json else TextLines(_COMPONENT, with_ids=True))
        self._running = running

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line. An error in a record's arguments is shown as Python shows it, and ends no task."""
        try:
            record.__dict__.update(about(task=self._running().hex()))
            stream = sys.stderr
            if stream is not None:  # a task may have closed or removed it
                stream.write(self.format(record) + "\n")
                stream.flush()
        except Exception:  # noqa: BLE001 (as every handler of Python does)
            self.handleError(record)


def show_records(config: LoggingConfig, running: Callable[[], bytes]) -> None:
    """Have this process show records from the configured level on, as long as nothing else handles them."""
    logging.lastResort = TaskRecords(config, running)
    logging.getLogger().setLevel(config.logging_level)
