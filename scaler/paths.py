"""User-supplied paths in settings, flags, variables, and calls."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from scaler.errors import UsageError
from scaler.texts import shown

UNSUPPORTED = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM, errno.ENOLCK})
"""Errors of file systems without hard links, locks, or directory sync: FAT, SMB, FUSE, 9p."""


def local_path(text: str | os.PathLike[str]) -> Path:
    """Return a path on this host. Expands `~` and `~USER`; relative paths start at the working directory. Shells do not
    expand `~` in files, in variables of services, and in `--flag=~/path`. Raises UsageError if the home directory is
    unknown, such as in a container without HOME and without an entry for the user."""
    if not isinstance(text, str | os.PathLike):
        raise UsageError(f"a path must be a str or pathlib.Path, not {shown(text)}")
    try:
        return Path(text).expanduser()
    except RuntimeError:
        name = Path(text).parts[0]
        why = "HOME is not set, and this user has no passwd entry" if name == "~" else "there is no such user"
        unknown = f"the home directory {name} is unknown ({why})"
        raise UsageError(f"{str(text)!r}: {unknown}: write the full path") from None


def sync_directory(path: Path) -> None:
    """Sync a directory's entries to disk, if the file system supports that. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
    finally:
        os.close(descriptor)
