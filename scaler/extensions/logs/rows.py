"""Rows of worker logs in monitors. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, NamedTuple

from scaler.monitor.columns import Column


class LogRow(NamedTuple):
    """A record of a worker's own log. id: unique within this scheduler. task: subject of the record."""

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
        time = datetime.fromtimestamp(self.at).astimezone().isoformat(timespec="milliseconds")
        return f"{time} {self.level} {self.worker}: {self.text}"
