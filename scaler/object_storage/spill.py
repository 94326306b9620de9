"""Disk space to which an object storage spills objects."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from scaler.config.servers import SpillConfig
from scaler.errors import UsageError
from scaler.object_storage.mapped_files import write_segment
from scaler.paths import local_path


@dataclass(frozen=True, slots=True)
class SpillSpace:
    """A directory and the maximum bytes to write there; -1: no limit. limit_name: origin of the limit."""

    directory: str
    limit_bytes: int = -1
    limit_name: str = "spill_limit_bytes"

    @classmethod
    def of(cls, config: SpillConfig) -> SpillSpace | None:
        if not config.spill_directory:
            return None
        return cls(str(local_path(config.spill_directory)), config.spill_limit_bytes)

    def check_writable(self) -> None:
        """Raise UsageError if the directory is not writable. A full disk is not an error."""
        try:
            write_segment(self.directory, [[memoryview(b"x")]])
        except OSError as error:
            from scaler.journal.directory import DISK_IS_FULL  # noqa: PLC0415 (for failures only)

            if error.errno not in DISK_IS_FULL:
                advice = "set it to a writable directory"
                raise UsageError(f"spill_directory {self.directory}: {error.strerror}: {advice}") from None


AUTO = "auto"
FREE_SHARE = 0.5
"""Maximum share of a disk's free space that a store uses."""
_IN_MEMORY = frozenset({"tmpfs", "ramfs"})
_log = logging.getLogger(__name__)


def spill_space(directory: str) -> SpillSpace | None:
    """Return the space in this directory. None if there is no directory or, with a warning, if it is not writable."""
    if not directory:
        return None
    candidates = [tempfile.gettempdir(), "/var/tmp"] if directory == AUTO else [str(local_path(directory))]  # noqa: S108
    for each in candidates:
        if not os.access(each, os.W_OK | os.X_OK):
            text = "store_spill_directory=%s: cannot write there: objects that do not fit in memory wait and then fail"
            _log.warning(text, each)
        elif directory != AUTO or not _is_in_memory(each):
            limit_bytes = int(FREE_SHARE * shutil.disk_usage(each).free)
            return SpillSpace(each, limit_bytes, f"half of the free space in {each}")
    return None


def _is_in_memory(directory: str) -> bool:
    device = Path(directory).stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    with suppress(OSError), Path("/proc/self/mountinfo").open(encoding="utf-8", errors="replace") as mounts:
        for line in mounts:
            fields = line.split()
            if fields[2] == wanted:
                return fields[fields.index("-") + 1] in _IN_MEMORY
    return False
