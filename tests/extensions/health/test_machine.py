"""Kernel data about a worker's machine or container."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaler.extensions.health.machine import UNKNOWN, MachineFigures, MachineMeter


class Machine:
    """Kernel files below a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 400 kB\n")
        self.ticks(0, 0)

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def ticks(self, used: int, stolen: int) -> None:
        self.write("proc/stat", f"cpu {used} 0 0 0 0 0 0 {stolen} 7 0\ncpu0 1 2 3\n")

    def quota(self, name: str, periods: int, throttled: int) -> None:
        self.write(f"sys/fs/cgroup/{name}/cpu.stat", f"nr_periods {periods}\nnr_throttled {throttled}\nusage_usec 9\n")

    def meter(self) -> MachineMeter:
        return MachineMeter(self.root, str(self.root))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_memory_usage_is_the_machines_unavailable_memory(machine: Machine) -> None:
    assert machine.meter().measure().memory_percent == pytest.approx(60.0)


def test_memory_usage_is_the_containers_if_limited(machine: Machine) -> None:
    machine.write("proc/self/cgroup", "0::/job\n")
    machine.write("sys/fs/cgroup/job/memory.max", "512000\n")
    machine.write("sys/fs/cgroup/job/memory.stat", "anon 256000\nfile 99999\nshmem 128000\n")
    assert machine.meter().measure().memory_percent == pytest.approx(75.0)


@pytest.mark.parametrize(("line", "folder"), [("0::/a/job\n", "a"), ("3:cpu,cpuacct:/a/job\n1:memory:/x\n", "cpu/a")])
def test_quota_of_any_parent_cgroup_limits_the_cpu(machine: Machine, line: str, folder: str) -> None:
    machine.write("proc/self/cgroup", line)
    machine.quota(f"{folder}/job", 0, 0)
    machine.quota(folder, 100, 90)
    meter = machine.meter()
    machine.quota(folder, 110, 94)
    assert meter.measure().cpu_granted_percent == pytest.approx(60.0)
    machine.quota(folder, 112, 96)
    assert meter.measure().cpu_granted_percent == pytest.approx(60.0), "too few periods for a new value"
    machine.quota(folder, 130, 96)
    assert meter.measure().cpu_granted_percent == pytest.approx(90.0)


def test_cpu_time_stolen_by_a_hypervisor_counts_as_withheld(machine: Machine) -> None:
    machine.ticks(1000, 10)
    meter = machine.meter()
    machine.ticks(1070, 40)
    assert meter.measure().cpu_granted_percent == pytest.approx(70.0)


def test_values_in_no_file_are_unknown(tmp_path: Path) -> None:
    assert MachineMeter(tmp_path, str(tmp_path / "none")).measure() == MachineFigures(UNKNOWN, UNKNOWN, 0, 0)
