"""The rows of monitors about the logs of workers. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, NamedTuple

from scaler.protocol.monitor_columns import Column


class LogRow(NamedTuple):
    """A record of a worker's own log. id: tells it from all others of this scheduler. task: that it is about."""

    id: int = 0
    at: Annotated[float, Column("Time", "time", help="By the worker's clock")] = 0.0
    level: Annotated[str, Column("Level", rank=2)] = ""
    worker: Annotated[str, Column("Worker")] = ""
    worker_id: str = ""
    text: Annotated[str, Column("Message")] = ""
    logger: Annotated[str, Column("Logger", rank=3)] = ""
    task: str = ""

    @property
    def line(self) -> str:
        """The record as a line of text."""
        time = datetime.fromtimestamp(self.at).astimezone().isoformat(timespec="milliseconds")
        return f"{time} {self.level} {self.worker}: {self.text}"
