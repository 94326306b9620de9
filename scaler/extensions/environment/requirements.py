"""Packages required by a worker manager's tasks, installed once per host and list into a folder that precedes the
worker's site-packages. Scaler's own dependencies are pinned to the running versions."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from scaler.errors import ConfigError
from scaler.extras import DISTRIBUTION
from scaler.paths import local_path
from scaler.pins import locked, of_extra

INSTALL_SECONDS = 1800.0
MAX_ERROR_CHARACTERS = 400
ERROR_LINES = 3
_UV_FOLDERS = ("~/.local/bin", "~/.cargo/bin")


def provide(requirements: Sequence[str], say: Callable[[str], None]) -> Path:
    """Return the folder with these packages, installing them if necessary. say: for logs. Raises ConfigError."""
    constraints = _own_versions()
    digest = _digest(requirements, constraints)
    cache = local_path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "scaler" / "requirements"
    folder = cache / digest
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / f"{digest}.lock").open("w") as lock:
            if not folder.exists():
                say(f"waits for another worker that installs requirements: {', '.join(requirements)}")
                fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.exists():
                say(f"installs requirements: {', '.join(requirements)}")
                _install(requirements, constraints, folder)
    except OSError as error:
        raise ConfigError(
            f"requirements cannot be installed into {cache}: {error.strerror or error}; set XDG_CACHE_HOME to "
            "use another directory"
        ) from error
    return folder


def _install(requirements: Sequence[str], constraints: Sequence[str], folder: Path) -> None:
    unfinished = folder.with_suffix(".new")
    shutil.rmtree(unfinished, ignore_errors=True)
    pins = folder.with_suffix(".constraints")
    pins.write_text("".join(f"{each}\n" for each in constraints))
    command = [*_installer(), "--target", str(unfinished), "--constraint", str(pins), *requirements]
    try:
        done = subprocess.run(
            command,
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=INSTALL_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(f"requirements were not installed within {INSTALL_SECONDS:g} s") from None
    finally:
        pins.unlink(missing_ok=True)
    if done.returncode:
        shutil.rmtree(unfinished, ignore_errors=True)
        lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        text = "; ".join(lines[-ERROR_LINES:])[:MAX_ERROR_CHARACTERS]
        raise ConfigError(f"requirements {', '.join(requirements)} cannot be installed: {text}")
    unfinished.mkdir(exist_ok=True)  # uv creates no folder if there is nothing to install
    unfinished.rename(folder)


def _installer() -> list[str]:
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *map(os.path.expanduser, _UV_FOLDERS)])
    if uv := shutil.which("uv", path=path):
        return [uv, "pip", "install", "-q", "--python", sys.executable]
    pip = [sys.executable, "-m", "pip"]
    if subprocess.run([*pip, "--version"], capture_output=True, check=False).returncode:
        raise ConfigError(f"requirements need uv, or pip in {sys.executable}: install one of them")
    return [*pip, "install", "-q", "--disable-pip-version-check", "--no-input"]


def _own_versions() -> list[str]:
    try:
        declared = requires(DISTRIBUTION) or []
    except PackageNotFoundError:
        declared = []
    return locked(map(str, of_extra(declared, "")))


def _digest(requirements: Sequence[str], constraints: Sequence[str]) -> str:
    """Return a digest of the list, files in it, Python, machine, and Scaler's dependencies. Names the folder."""
    digest = hashlib.sha256()
    for each in (sys.version, os.uname().machine, *constraints, *sorted(requirements)):
        digest.update(f"{each}\n".encode())
    for path in map(Path, sorted(requirements)):
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()[:32]
