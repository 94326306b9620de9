"""Task durations of the cluster, kept in `state_directory` across restarts."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Sequence
from pathlib import Path

from scaler.extensions.interface import Performer
from scaler.scheduler.core.state import BUCKETS
from scaler.scheduler.files import FileWriter, replace
from scaler.scheduler.rooms import Surroundings

NAME = "task_times.json"
_log = logging.getLogger(__name__)


class TaskTimesFile(Performer):
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

    def perform(self, work: Sequence[float]) -> None:
        """Queue counts to be written."""
        self._file.put([round(count, 3) for count in work])

    def _replace(self, counts: list[float], _lost: int) -> None:
        replace(self._path, json.dumps(counts).encode())


def times_file(_config: object, around: Surroundings) -> TaskTimesFile | None:
    if around.state_directory is None:
        return None
    file = TaskTimesFile(around.state_directory, around.files)
    around.tell(file.read())
    return file
