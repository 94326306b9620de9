"""Resources of a machine or container: CPUs, memory, temporary files, disk space, and names."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scaler.host import default_memory_limit_bytes, unique_name, usable_cpus

ALL_CPUS = 64


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def v1(folder: str, quota: int) -> dict[str, str]:
    base = f"sys/fs/cgroup/{folder}"
    return {f"{base}/cpu.cfs_quota_us": f"{quota}\n", f"{base}/cpu.cfs_period_us": "100000\n"}


@pytest.mark.parametrize(
    ("line", "files", "cpus"),
    [
        ("0::/", {"sys/fs/cgroup/cpu.max": "200000 100000\n"}, 2),  # docker --cpus=2, with a cgroup namespace
        ("0::/", {"sys/fs/cgroup/cpu.max": "max 100000\n"}, ALL_CPUS),
        ("0::/", {"sys/fs/cgroup/cpu.max": "150000 100000\n"}, 2),
        ("0::/", {"sys/fs/cgroup/cpu.max": "10000 100000\n"}, 1),
        ("0::/", {"sys/fs/cgroup/cpu.max": "9900000 100000\n"}, ALL_CPUS),
        ("0::/", {"sys/fs/cgroup/cpu.max": "0 0\n"}, ALL_CPUS),
        ("0::/", {"sys/fs/cgroup/cpu.max": "nonsense"}, ALL_CPUS),
        (
            "0::/pod/container",  # the limit of a pod counts as its container's limit
            {"sys/fs/cgroup/pod/container/cpu.max": "800000 100000\n", "sys/fs/cgroup/pod/cpu.max": "300000 100000\n"},
            3,
        ),
        ("0::/../../other", {"sys/fs/cgroup/cpu.max": "300000 100000\n"}, 3),
        ("3:cpu,cpuacct:/docker/1f", v1("cpu/docker/1f", 200_000), 2),
        ("3:cpu,cpuacct:/docker/1f", v1("cpu,cpuacct", 200_000), 2),  # without a cgroup namespace, and no link "cpu"
        ("3:cpu:/\n0::/", v1("cpu", -1), ALL_CPUS),
        ("5:cpuset:/\n3:cpu:/a\n0::/", v1("cpu/a", 250_000), 3),
        ("4:memory:/a\n0::/", v1("cpu/a", 200_000), ALL_CPUS),
    ],
)
def test_cpus_are_limited_by_every_cgroup_of_either_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, files: dict[str, str], cpus: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(ALL_CPUS)))
    write(tmp_path, {"proc/self/cgroup": f"{line}\n"} | files)
    assert usable_cpus(tmp_path) == cpus


def test_service_limit_is_found_in_a_parent_cgroup(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": "MemTotal: 16000000 kB\n",
        "proc/self/cgroup": "0::/system.slice/scaler.service\n",
        "proc/self/ns/cgroup": "",
        "sys/fs/cgroup/system.slice/memory.max": "2000000000\n",
        "sys/fs/cgroup/system.slice/scaler.service/memory.max": "max\n",
    }
    write(tmp_path, files)
    assert default_memory_limit_bytes(tmp_path) == 1_000_000_000
    (tmp_path / "sys/fs/cgroup/system.slice/memory.max").write_text("max\n")
    assert default_memory_limit_bytes(tmp_path) == 8_192_000_000


def test_names_differ_for_equal_host_names_and_process_ids() -> None:
    assert len({unique_name("cluster") for _ in range(100)}) == 100


def test_cpu_quota_of_a_real_cgroup_counts(request: pytest.FixtureRequest) -> None:
    base = Path("/sys/fs/cgroup/cpu" if Path("/sys/fs/cgroup/cpu").is_dir() else "/sys/fs/cgroup")
    group = base / f"scaler-test-{os.getpid()}"
    try:
        group.mkdir()
        request.addfinalizer(group.rmdir)
        first = (group / "cpu.cfs_quota_us").exists()
        (group / ("cpu.cfs_quota_us" if first else "cpu.max")).write_text("90000" if first else "90000 100000")
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    shell = 'echo $$ > "$0" && exec "$1" -c "from scaler.host import *; print(usable_cpus())"'
    command = ["sh", "-c", shell, str(group / "cgroup.procs"), sys.executable]
    assert subprocess.check_output(command) == b"1\n"
