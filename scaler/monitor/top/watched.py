"""What the screens need of the outside."""

from __future__ import annotations

from typing import Protocol

from scaler.monitor.model import Model
from scaler.protocol.messages import TaskLog


class Watched(Protocol):
    """What the screen needs of a connection: a MonitorConnection, or a test's own."""

    address: str
    model: Model

    @property
    def connected(self) -> bool: ...
    @property
    def trouble(self) -> str: ...
    async def explain(self, task_id: str) -> str: ...
    async def log(self, task_id: str) -> TaskLog: ...
