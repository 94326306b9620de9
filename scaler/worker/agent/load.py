"""What an agent and its processors use of the machine, for heartbeats."""

from __future__ import annotations

import os
from typing import NamedTuple

import psutil


class Load(NamedTuple):
    cpu_percent: float
    rss_bytes: int


class LoadMeter:
    """Measures a few processes, each since the time before."""

    def __init__(self) -> None:
        self._processes: dict[int, psutil.Process] = {}

    def measure(self, pids: set[int]) -> dict[int, Load]:
        """Return the load of this process and of these, by pid, without those that are gone."""
        wanted = pids | {os.getpid()}
        for pid in set(self._processes) - wanted:
            del self._processes[pid]
        found: dict[int, Load] = {}
        for pid in wanted:
            try:
                process = self._processes.get(pid)
                if process is None:
                    process = self._processes[pid] = psutil.Process(pid)
                with process.oneshot():
                    found[pid] = Load(process.cpu_percent(None), process.memory_info().rss)
            except psutil.Error:
                self._processes.pop(pid, None)
        return found
