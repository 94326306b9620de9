"""CPUs, memory, temporary files, and disk space of this process, within the limits of all its cgroups."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

_ROOT = Path("/")
_UNKNOWN_MEMORY_BYTES = 4 * 1024**3
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 (only where no directory for temporary files is writable)


def cgroups(controller: str, root: Path = _ROOT) -> Iterator[Path]:
    """Yield the directories of cgroups (v1 and v2) that can limit this process, its own first."""
    with contextlib.suppress(OSError, ValueError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and controller not in controllers.split(","):
                continue
            # A cgroup outside this process's cgroup namespace has a path such as /../other.
            parts = [part for part in PurePosixPath(path).parts[1:] if part != ".."]
            for name in (controller, controllers) if controllers else ("", "unified"):
                mount = root / "sys/fs/cgroup" / name
                if mount.is_dir():
                    for depth in range(len(parts), -1, -1):
                        yield mount.joinpath(*parts[:depth])
                    if controllers:
                        break  # "cpu" and "cpu,cpuacct" name the same mount


def usable_cpus(root: Path = _ROOT) -> int:
    """Return the CPUs of this process by affinity and cgroup quotas, rounded up; at least 1."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for folder in cgroups("cpu", root):
        with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
            if (file := folder / "cpu.max").exists():
                quota, period = file.read_text("ascii").split()
            else:
                quota = (folder / "cpu.cfs_quota_us").read_text("ascii")
                period = (folder / "cpu.cfs_period_us").read_text("ascii")
            if (share := int(quota) / int(period)) > 0:  # "max" and -1: no quota
                cpus = min(cpus, math.ceil(share))
    return max(1, cpus)


def usable_memory(root: Path = _ROOT) -> tuple[int, str]:
    """Return the memory limit of this process's cgroup or machine, and a name for either; (0, "") if unknown."""
    try:
        machine_bytes = _machine_bytes(root)
        space = (root / "proc/self/ns/cgroup").stat().st_ino
    except (OSError, ValueError, StopIteration):
        return 0, ""
    cgroup = memory_cgroup(root)
    return (machine_bytes, "machine") if cgroup is None else (cgroup.limit_bytes, f"cgroup {space} {cgroup.folder}")


def default_memory_limit_bytes(root: Path = _ROOT) -> int:
    """Return half of the memory of this process's machine, container, or service."""
    if sys.platform == "win32":
        return _UNKNOWN_MEMORY_BYTES // 2
    return (usable_memory(root)[0] or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")) // 2


class MemoryCgroup(NamedTuple):
    folder: Path
    limit_bytes: int

    def used_bytes(self) -> int:
        values = numbers_in(self.folder / "memory.stat")
        # Version 1 has two names for each value: without and with descendant cgroups.
        is_first = "total_rss" in values
        return sum(values.get(name, 0) for name in (("total_rss", "total_shmem") if is_first else ("anon", "shmem")))

    def pids(self) -> set[int]:
        found: set[int] = set()
        for path in self.folder.rglob("cgroup.procs"):
            with contextlib.suppress(OSError):
                found.update(map(int, path.read_text("ascii").split()))
        return found


def numbers_in(path: Path) -> dict[str, int]:
    """Return the numbers in a kernel file by the word before each number. Empty if the file cannot be read."""
    values: dict[str, int] = {}
    with contextlib.suppress(OSError, ValueError):
        for line in path.read_text("ascii", "replace").splitlines():
            name, number, *_ = line.split()
            values[name] = int(number)
    return values


def memory_cgroup(root: Path = _ROOT) -> MemoryCgroup | None:
    """Return the cgroup with the tightest limit below the machine's memory, or None."""
    try:
        limit, tightest = _machine_bytes(root), None
    except (OSError, ValueError, StopIteration):
        return None
    for folder in cgroups("memory", root):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with contextlib.suppress(OSError, ValueError):
                found = int((folder / name).read_text("ascii"))
                if found < limit:
                    limit, tightest = found, folder
    return MemoryCgroup(tightest, limit) if tightest is not None else None


def temporary_directory() -> str:
    """Return a directory for temporary files or, if none is writable, for shared memory. Raises OSError if none is
    writable."""
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:
        if os.access(_SHARED_MEMORY, os.W_OK | os.X_OK):
            return _SHARED_MEMORY
        raise


class DiskSpace(NamedTuple):
    free_bytes: int = 0
    total_bytes: int = 0


def disk_space(folder: str = "") -> DiskSpace:
    """Return the space on the disk of a folder. Default: the disk of temporary files."""
    try:
        usage = shutil.disk_usage(folder or temporary_directory())
    except OSError:
        return DiskSpace()
    return DiskSpace(usage.free, usage.total)


def unique_name(kind: str) -> str:
    """Return a name unique to this process on any host. Containers may share host name and pid."""
    return f"{kind}-{socket.gethostname()}-{os.getpid()}-{os.urandom(4).hex()}"


def _machine_bytes(root: Path) -> int:
    lines = (root / "proc/meminfo").read_text("ascii").splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("MemTotal:"))) * 1024
