"""A cluster with a history."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scaler.config.servers import SchedulerConfig
from scaler.extensions.failures.core import Failures
from scaler.extensions.history.core import EndedTasks, History
from scaler.scheduler.core.changes import Noted
from scaler.scheduler.core.commands import ClockRead, Command, Perform, ShellObserved
from tests.unit.scheduler.driver import Cluster

UNIX = 1_700_000_000.0


class Recorded(Cluster):
    """Unix time minus the cluster's time is `UNIX` minus the start time in seconds."""

    def __init__(self, directory: Path | None = None, unix: float = UNIX) -> None:
        config = SchedulerConfig(bind_address="tcp://127.0.0.1:0", state_directory=str(directory or ""))
        self.history = History(config)
        self.parts = (Failures, lambda: self.history)
        super().__init__()
        self.unix_at_zero = unix - self.now
        self.written: list[Any] = []
        """Records for the performer."""
        self.observe(ClockRead(self.unix_at_zero), ShellObserved([Noted("started")]))

    @property
    def ended_tasks(self) -> EndedTasks:
        return self.history.ended

    @property
    def unix(self) -> float:
        return self.unix_at_zero + self.now

    def observe(self, *inputs: ClockRead | ShellObserved) -> None:
        self.step(*inputs)

    def step_once(self, *inputs: Any) -> list[Command]:
        commands = super().step_once(*inputs)
        self.written += [
            row for each in commands if isinstance(each, Perform) and each.extension == "history" for row in each.work
        ]
        return commands
