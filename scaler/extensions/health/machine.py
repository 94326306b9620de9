"""Free memory, CPU, and disk of a worker's machine or container, as reported by the kernel."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from scaler.host import cgroups, disk_space, memory_cgroup, numbers_in
from scaler.protocol.messages import WorkerHeartbeat
from scaler.worker.agent.pool import ProcessorPool
from scaler.worker.agent.shell import Agent

UNKNOWN = 0.0
LEAST_GRANTED = 1.0
"""Percent. Lower measurements are raised to this value, since 0 means unknown."""
MIN_TICKS = 50
"""Minimum clock ticks (1/100 s, summed over CPUs) per measurement. With fewer ticks, the previous value is kept."""
MIN_PERIODS = 5


class MachineFigures(NamedTuple):
    """Fields of a heartbeat. UNKNOWN: not reported. memory_percent: used and not reclaimable. cpu_granted_percent:
    share of time during which neither a quota nor a hypervisor withheld a CPU. disk_bytes: 0 if unknown."""

    memory_percent: float = UNKNOWN
    cpu_granted_percent: float = UNKNOWN
    disk_free_bytes: int = 0
    disk_bytes: int = 0


class MachineMeter:
    """Reads a handful of small files per measurement, which takes about half a millisecond."""

    def __init__(self, root: Path = Path("/"), folder: str = "") -> None:
        """folder: path on the disk to measure; empty: the folder of temporary files."""
        self._root = root
        self._folder = folder
        self._cgroup = memory_cgroup(root)
        self._quotas = {
            file: (0, 0) for folder in cgroups("cpu", root) if "nr_periods" in numbers_in(file := folder / "cpu.stat")
        }
        """Periods and throttled periods of each cgroup with a CPU quota, at the last comparison."""
        self._ticks = (0, 0)
        self._withheld: dict[Path, float] = {}
        self.measure()

    def measure(self) -> MachineFigures:
        """Return the figures. CPU figures cover the time since the previous measurement."""
        self._measure_quotas()
        self._measure_steal()
        granted = min((max(LEAST_GRANTED, 100 - each) for each in self._withheld.values()), default=UNKNOWN)
        return MachineFigures(self._memory_percent(), granted, *disk_space(self._folder))

    def _memory_percent(self) -> float:
        if self._cgroup is not None:
            used = self._cgroup.used_bytes()
            return min(100.0, 100 * used / self._cgroup.limit_bytes) if used else UNKNOWN
        values = numbers_in(self._root / "proc/meminfo")
        try:
            return 100 * (1 - values["MemAvailable:"] / values["MemTotal:"])
        except (KeyError, ZeroDivisionError):
            return UNKNOWN

    def _measure_quotas(self) -> None:
        """Update the share of periods in which a cgroup exhausted its quota."""
        for path, (periods_before, throttled_before) in self._quotas.items():
            values = numbers_in(path)
            periods, throttled = values.get("nr_periods", 0), values.get("nr_throttled", 0)
            passed = periods - periods_before
            if passed >= MIN_PERIODS or not periods:
                self._quotas[path] = periods, throttled
                share = (throttled - throttled_before) / passed if periods_before and passed else 0.0
                self._withheld[path] = 100 * min(1.0, max(0.0, share))

    def _measure_steal(self) -> None:
        """Update the share of time during which the hypervisor ran other machines although this machine had work."""
        path = self._root / "proc/stat"
        try:
            ticks = [int(each) for each in path.read_text("ascii").split("\n", 1)[0].split()[1:9]]
            stolen = ticks[7]
        except (OSError, ValueError, IndexError):
            return
        total_before, stolen_before = self._ticks
        passed = sum(ticks) - total_before
        if passed >= MIN_TICKS:
            self._ticks = sum(ticks), stolen
            self._withheld[path] = 100 * (stolen - stolen_before) / passed if total_before else 0.0


def measure_machine(agent: Agent) -> None:
    """Add the figures to heartbeats of a worker whose tasks run on this machine."""
    meter = MachineMeter()

    def measure(heartbeat: WorkerHeartbeat) -> None:
        for name, figure in meter.measure()._asdict().items():
            setattr(heartbeat, name, figure)

    if isinstance(agent.executor, ProcessorPool):
        agent.on_heartbeat.append(measure)
