"""Installs packages with uv or pip into a folder that precedes the worker's site-packages. Scaler's own dependencies
are pinned to the running versions."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from scaler.errors import ConfigError
from scaler.extras import DISTRIBUTION
from scaler.pins import locked, of_extra
from scaler.processes import end_with_parent

INSTALL_SECONDS = 1800.0
MAX_LINE_CHARACTERS = 200
ERROR_LINES = 3
_UV_FOLDERS = ("~/.local/bin", "~/.cargo/bin")
_CREDENTIALS = re.compile(r"(?<=://)[^\s/]+@")


def install(requirements: Sequence[str], constraints: Sequence[str], folder: Path, what: str) -> None:
    """Install requirements, then create the folder. what: names them in errors. Raises ConfigError and OSError."""
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
            preexec_fn=partial(end_with_parent, signal.SIGKILL, os.getpid()),
        )
    except subprocess.TimeoutExpired:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise ConfigError(f"{what} were not installed within {INSTALL_SECONDS:g} s") from None
    finally:
        pins.unlink(missing_ok=True)
    if done.returncode:
        shutil.rmtree(unfinished, ignore_errors=True)
        lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        text = "; ".join(line[:MAX_LINE_CHARACTERS] for line in lines[-ERROR_LINES:])
        raise ConfigError(f"{what} cannot be installed: {without_credentials(text)}")
    unfinished.mkdir(exist_ok=True)  # uv creates no folder if there is nothing to install
    unfinished.rename(folder)


def without_credentials(text: str) -> str:
    """Return a text without the users and passwords in its URLs."""
    return _CREDENTIALS.sub("", text)


def uv_command() -> list[str]:
    """Return the command of uv, or an empty list."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *map(os.path.expanduser, _UV_FOLDERS)])
    if uv := shutil.which("uv", path=path):
        return [uv]
    return [sys.executable, "-m", "uv"] if importlib.util.find_spec("uv") else []


def _installer() -> list[str]:
    if uv := uv_command():
        return [*uv, "pip", "install", "-q", "--python", sys.executable]
    pip = [sys.executable, "-m", "pip"]
    if subprocess.run([*pip, "--version"], capture_output=True, check=False).returncode:
        raise ConfigError(f"requirements need uv, or pip in {sys.executable}: install one of them")
    return [*pip, "install", "-q", "--disable-pip-version-check", "--no-input"]


def own_versions() -> list[str]:
    try:
        declared = requires(DISTRIBUTION) or []
    except PackageNotFoundError:
        declared = []
    return locked(map(str, of_extra(declared, "")))
