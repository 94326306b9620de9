"""Private files: written atomically, and refused if other users can open them."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from shlex import quote

from scaler.errors import ConfigError, UsageError
from scaler.paths import UNSUPPORTED, sync_directory
from scaler.security.documents import MAX_CHARACTERS


def read_private(path: Path, most: int = MAX_CHARACTERS) -> str:
    """Return the text, up to `most` + 1 bytes. Raises ConfigError if the file is missing or not private."""
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            require_private(found, path)
            return file.read(most + 1).decode("utf-8", "replace")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None


def require_private(found: os.stat_result, path: Path) -> None:
    """Raise ConfigError with a remedy if a file or directory belongs to, or is accessible to, another user. Accepts
    files from an administrator, such as a mounted Kubernetes Secret: owned by root, read-only for one of this process's
    groups, and in a root-owned directory where no other user can replace files."""
    if sys.platform == "win32":
        return  # Windows uses access lists, so modes mean nothing
    mode, own = stat.S_IMODE(found.st_mode), os.geteuid()
    is_directory = stat.S_ISDIR(found.st_mode)
    if found.st_uid == own and not mode & 0o077:
        return
    if found.st_uid == 0:
        # Root's programs often run with root's primary group, which may have other members.
        groups = {*os.getgroups(), os.getegid()} if own else {*os.getgroups()} - {os.getegid()}
        if is_directory and (mode & stat.S_ISVTX or (own and not mode & 0o022)):
            return
        if not is_directory and not mode & 0o037 and found.st_gid in groups:
            return
    elif found.st_uid != own:
        raise ConfigError(f"{path} belongs to another user (uid {found.st_uid}): use your own copy")
    mend = f"chmod {700 if is_directory else 600} {quote(str(path))}"
    if found.st_uid != own:
        mend = "use your own copy, or in Kubernetes, set the secret's defaultMode: 0400 and the pod's fsGroup"
    raise ConfigError(f"other users can open {path} (mode {mode:04o}): {mend}")


def write_private(path: Path, text: str, *, replace: bool = False) -> None:
    """Write a file with mode 0600 atomically. Raises UsageError, or FileExistsError without `replace`."""
    try:
        write_atomically(path, text, replace=replace)
    except FileExistsError:
        raise
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None


def write_atomically(path: Path, text: str, *, replace: bool) -> None:
    """Write a file like `write_private`, but raise OSError instead of UsageError."""
    temporary = path.with_name(f".new-{os.urandom(8).hex()}")
    file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(file, "w", encoding="utf-8") as writer:  # noqa: PTH123 (of a descriptor)
            writer.write(text)
            writer.flush()
            os.fsync(file)
        if replace or not _link(temporary, path):
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(path.parent)


def _link(temporary: Path, path: Path) -> bool:
    """Hard-link a file. If unsupported, creates an empty file and returns False. Raises FileExistsError, OSError."""
    try:
        path.hardlink_to(temporary)
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        return False
    return True
