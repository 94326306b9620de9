"""Packages required by a worker manager's tasks, installed once per host and list; see `installer`."""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import unquote

from scaler.errors import ConfigError
from scaler.extensions.environment.installer import install, own_versions, without_credentials
from scaler.paths import local_path


def provide(requirements: Sequence[str], say: Callable[[str], None]) -> Path:
    """Return the folder with these packages, installing them if necessary. say: for logs. Raises ConfigError."""
    constraints = own_versions()
    digest = digest_of(requirements, constraints)
    cache = cache_of("requirements")
    folder = cache / digest
    try:
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (cache / f"{digest}.lock").open("w") as lock:
            names = without_credentials(", ".join(requirements))
            if not folder.exists():
                say(f"waits for another worker that installs requirements: {names}")
                fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.exists():
                say(f"installs requirements: {names}")
                install(requirements, constraints, folder, f"requirements {names}")
    except OSError as error:
        raise ConfigError(
            f"requirements cannot be installed into {cache}: {error.strerror or error}; set XDG_CACHE_HOME to "
            "use another directory"
        ) from error
    return folder


def cache_of(kind: str) -> Path:
    return local_path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "scaler" / kind


def digest_of(requirements: Sequence[str], constraints: Sequence[str]) -> str:
    """Return a digest of the list, its files, Python, machine, C library, and own versions; names the folder."""
    digest = hashlib.sha256()
    for each in (sys.version, os.uname().machine, *platform.libc_ver(), *constraints, *sorted(requirements)):
        digest.update(f"{each}\n".encode())
    for each in sorted(requirements):
        if path := file_of(each):
            digest.update(Path(path).read_bytes())
    return digest.hexdigest()[:32]


def file_of(requirement: str) -> str:
    """Return the path of a requirement's local file, or an empty string."""
    text = requirement.partition(" #")[0].partition(" ;")[0].strip()
    path = unquote(text.partition("file://")[2].partition("#")[0]) or text
    is_path = "/" in path or path.endswith(".whl")
    return path if is_path and os.path.isfile(path) else ""  # noqa: PTH113 (a Path raises for long names)
