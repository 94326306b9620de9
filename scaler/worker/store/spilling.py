"""Where the store of a host puts objects for which its memory has no room."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from scaler.object_storage.spill import SpillSpace
from scaler.paths import local_path

AUTO = "auto"
FREE_SHARE = 0.5
"""Of the free space of a disk that a store takes at most."""
_IN_MEMORY = frozenset({"tmpfs", "ramfs"})
_log = logging.getLogger(__name__)


def spill_space(directory: str) -> SpillSpace | None:
    """Return the space in this directory; None for none, or where nothing can be written, which a warning says."""
    if not directory:
        return None
    candidates = [tempfile.gettempdir(), "/var/tmp"] if directory == AUTO else [str(local_path(directory))]  # noqa: S108
    for each in candidates:
        if not os.access(each, os.W_OK | os.X_OK):
            text = "store_spill_directory=%s: cannot write there: what has no room in memory waits, and then fails"
            _log.warning(text, each)
        elif directory != AUTO or not _is_in_memory(each):
            limit_bytes = int(FREE_SHARE * shutil.disk_usage(each).free)
            return SpillSpace(each, limit_bytes, f"half of what was free in {each}")
    return None


def _is_in_memory(directory: str) -> bool:
    """Tell whether the files of a directory are in memory, as in many systems those of /tmp."""
    device = Path(directory).stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    with suppress(OSError), Path("/proc/self/mountinfo").open(encoding="utf-8", errors="replace") as mounts:
        for line in mounts:
            fields = line.split()
            if fields[2] == wanted:
                return fields[fields.index("-") + 1] in _IN_MEMORY
    return False
