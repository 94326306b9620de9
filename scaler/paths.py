"""Paths as people write them in settings, flags, variables, and calls."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from scaler.errors import UsageError
from scaler.texts import shown

UNSUPPORTED = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM, errno.ENOLCK})
"""Errors of file systems without hard links, locks, or sync of directories: FAT, SMB, FUSE, 9p."""


def local_path(text: str | os.PathLike[str]) -> Path:
    """Return a path of this host. `~` and `~USER` are home directories; relative ones start at the working directory.

    Shells expand `~` themselves, but not in files, in variables of services, and in `--flag=~/path`. Raises UsageError
    when the home directory is not known: in a container, HOME may be missing, and the user may have no entry.
    """
    if not isinstance(text, str | os.PathLike):
        raise UsageError(f"a path is a text or a pathlib.Path, not {shown(text)}")
    try:
        return Path(text).expanduser()
    except RuntimeError:
        name = Path(text).parts[0]
        why = "HOME is not set, and this user has no entry" if name == "~" else "no user has this name"
        unknown = f"the home directory {name} is not known ({why})"
        raise UsageError(f"{str(text)!r}: {unknown}: write the whole path") from None


def sync_directory(path: Path) -> None:
    """Have the disk confirm a directory's entries, if its file system can. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
    finally:
        os.close(descriptor)
