"""By default, a server uses half of the memory that its cgroup leaves it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from scaler.config import servers
from scaler.processes import usable_memory


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
