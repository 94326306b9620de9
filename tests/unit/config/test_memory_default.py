"""By default, a server uses half of the memory that its cgroup leaves it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from scaler.config import servers
from scaler.processes import MemoryCgroup, usable_memory


def test_the_limit_of_a_service_is_found_above_its_own_cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "proc/meminfo": "MemTotal: 16000000 kB\n",
        "proc/self/cgroup": "0::/system.slice/scaler.service\n",
        "proc/self/ns/cgroup": "",
        "sys/fs/cgroup/system.slice/memory.max": "2000000000\n",
        "sys/fs/cgroup/system.slice/scaler.service/memory.max": "max\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(servers, "usable_memory", partial(usable_memory, tmp_path))
    assert servers.default_memory_limit_bytes() == 1_000_000_000
    (tmp_path / "sys/fs/cgroup/system.slice/memory.max").write_text("max\n")
    assert servers.default_memory_limit_bytes() == 8_192_000_000


@pytest.mark.parametrize(
    "lines",
    [
        "anon 5\nfile 100\nshmem 7\nactive_file 90\n",
        "cache 1\nrss 2\nshmem 1\ntotal_cache 107\ntotal_rss 5\ntotal_shmem 7\n",  # version 1
    ],
)
def test_a_cgroup_uses_what_its_processes_have_and_share_and_not_the_cache_of_files(tmp_path: Path, lines: str) -> None:
    (tmp_path / "memory.stat").write_text(lines)
    assert MemoryCgroup(tmp_path, 1000).used_bytes() == 12
    assert MemoryCgroup(tmp_path / "gone", 1000).used_bytes() == 0


def test_the_processes_of_a_cgroup_are_those_of_the_cgroups_below_too(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "cgroup.procs").write_text("1\n2\n")
    (tmp_path / "below/cgroup.procs").write_text("3\n")
    assert MemoryCgroup(tmp_path, 1000).pids() == {1, 2, 3}
