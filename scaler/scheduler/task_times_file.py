"""Task durations of the cluster, kept in `state_directory` across restarts."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Sequence
from pathlib import Path

from scaler.paths import local_path
from scaler.scheduler.core.state import BUCKETS
from scaler.scheduler.files import FileWriter, replace
from scaler.scheduler.server import SchedulerServer

NAME = "task_times.json"
WRITE_SECONDS = 5.0
_log = logging.getLogger(__name__)


class TaskTimesFile:
    """Counts of tasks by duration. Losing the file loses only an estimate."""

    def __init__(self, directory: Path, writer: FileWriter) -> None:
        self._path = directory / NAME
        self._file = writer.file("state_directory", self._path, self._replace, only_latest=True)

    def read(self) -> list[float]:
        """Return the last counts; empty if the file is missing or damaged."""
        try:
            counts = [float(count) for count in json.loads(self._path.read_text())]
            if len(counts) > BUCKETS or not all(0 <= count < math.inf for count in counts):
                raise ValueError(f"it must have at most {BUCKETS} counts of tasks")
        except FileNotFoundError:
            return []
        except (OSError, ValueError, TypeError, OverflowError, RecursionError) as error:
            _log.warning("%s is not used: %s", self._path, error)
            return []
        return counts

    def write(self, counts: Sequence[float]) -> None:
        """Queue counts to be written. Never blocks or raises."""
        self._file.put([round(count, 3) for count in counts])

    def _replace(self, counts: list[float], _lost: int) -> None:
        replace(self._path, json.dumps(counts).encode())


class TaskTimesPart:
    """Restores the task durations, and saves them every `WRITE_SECONDS` and at the end."""

    def __init__(self, frame: SchedulerServer) -> None:
        self._file = TaskTimesFile(local_path(frame.config.state_directory), frame.files)
        self._times, self._loop = frame.elastic.demand.task_times, frame.loop
        self._times.restore(self._file.read())
        self._timer = self._loop.call_later(WRITE_SECONDS, self._write)

    def close(self) -> None:
        self._write()
        self._timer.cancel()

    def _write(self) -> None:
        self._file.write(self._times.counts)
        self._timer = self._loop.call_later(WRITE_SECONDS, self._write)
