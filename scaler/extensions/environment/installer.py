"""Installs packages with uv or pip, once per host, into folders that precede the worker's site-packages. Scaler's own
dependencies are pinned to the running versions.

A process holds a shared lock on each folder that it uses. To install a folder, a process locks the folder's state
exclusively, and during the first seconds also the host, which staggers the starts of installations. The kernel releases
the locks of a killed process.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import platform
import re
import shutil
import signal
import site
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import IO, Any, NamedTuple
from urllib.parse import unquote

from packaging.utils import canonicalize_name

from scaler.errors import ConfigError
from scaler.extras import DISTRIBUTION
from scaler.paths import local_path
from scaler.pins import locked, of_extra, parsed
from scaler.processes import end_with_parent

INSTALL_SECONDS = 1800.0
SLOW_SECONDS = 10.0
"""Seconds after which a running installation lets the next installation on this host start."""
FAILED_SECONDS = 30.0
"""Seconds for which a failed installation is not retried on this host."""
KEPT = 10
"""Maximum number of unused installed folders per host."""
STATE = ".state"
"""Suffix of a folder's state file, which is locked during an installation and records the reason for a failure."""
PACKED = ".requirements"
"""File in an installed folder with the packed requirements. Locking it protects the folder from removal."""
MAX_LINE_CHARACTERS = 200
ERROR_LINES = 3
_SHOWN = 3
_UV_FOLDERS = ("~/.local/bin", "~/.cargo/bin")
_CREDENTIALS = re.compile(r"(?<=://)[^\s/]+@")
_VARIABLES = {"PIP_USER": "0", "PIP_REQUIRE_VIRTUALENV": "0", "PIP_PREFIX": "", "PIP_ROOT": "", "PIP_DRY_RUN": "0"}
"""With other values, pip refuses --target, or installs nothing there."""
_OWN = sys.stdlib_module_names | {"scaler", DISTRIBUTION.replace("-", "_")}
"""Modules that tasks never import from a folder, as in a virtual environment. Backports would break the interpreter."""


class Listed(NamedTuple):
    requirements: tuple[str, ...]
    """Lines of a requirements file: options, then requirements."""
    constraints: tuple[str, ...] = ()


def packed(listed: Listed) -> bytes:
    return zlib.compress(json.dumps(listed).encode(), 9)


def unpacked(data: bytes) -> Listed:
    return Listed(*map(tuple, json.loads(zlib.decompress(data))))


def use(requirements: Sequence[str], say: Callable[[str], None]) -> None:
    """Make these packages importable in this process and its children. say: logs a text. Raises ConfigError."""
    folder, _ = provide(packed(Listed(tuple(requirements))), "requirements", say)  # locked until this process exits
    os.environ.update(variables_of(folder))
    sys.path.insert(0, str(folder))
    site.addsitedir(str(folder))  # for .pth files


def variables_of(folder: Path) -> dict[str, str]:
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH")))),
        "PATH": os.pathsep.join((str(folder / "bin"), os.environ.get("PATH", os.defpath))),
    }


def provide(data: bytes, what: str, say: Callable[[str], object] = bool) -> tuple[Path, int]:
    """Return the folder with the packages of packed requirements, and the descriptor of a lock that protects the
    folder. what: name of the packages in errors. Raises ConfigError."""
    given = unpacked(data)
    listed = given._replace(constraints=(*own_versions(), *given.constraints))
    names = [each.partition(" #")[0] for each in listed.requirements if not each.startswith("-")]
    more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    what = f"{what} ({_without_credentials(', '.join(names[:_SHOWN]))}{more})"
    cache = local_path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "scaler" / "packages"
    try:
        folder = cache / digest_of(*listed)
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (cache / "lock").open("w") as host:
            while (lock := _kept(folder)) < 0:
                say(f"waits to install {what}")
                fcntl.flock(host, fcntl.LOCK_EX)
                _clean(cache)
                with folder.with_suffix(STATE).open("a+", encoding="utf-8") as state:
                    if not _try_lock(state):
                        fcntl.flock(host, fcntl.LOCK_UN)
                        say(f"waits for another process on its host to install {what}")
                        fcntl.flock(state, fcntl.LOCK_SH)
                    elif not (folder / PACKED).exists():
                        say(f"installs {what}")
                        _install(folder, data, listed, what, state, host)
    except OSError as error:
        text = f"{what} cannot be installed into {cache}: {error.strerror or error}"
        raise ConfigError(f"{text}; set XDG_CACHE_HOME to use another directory") from error
    return folder, lock


def _kept(folder: Path) -> int:
    """Lock an installed folder against removal. Returns the lock's descriptor, or -1 if the folder does not exist."""
    with contextlib.suppress(FileNotFoundError):
        lock = os.open(folder / PACKED, os.O_RDWR)
        fcntl.flock(lock, fcntl.LOCK_SH)
        if os.path.samestat(os.fstat(lock), (folder / PACKED).stat()):
            os.utime(folder)
            return lock
        os.close(lock)
    return -1


def _try_lock(file: IO[Any]) -> bool:
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _clean(cache: Path) -> None:
    """Remove the least recently used folders that are not in use, and leftovers of killed processes and failures. The
    caller holds the host's lock."""
    installed: list[Path] = []
    for each in cache.iterdir():
        if not each.suffix and (each / PACKED).exists():
            installed.append(each)
            continue
        with contextlib.suppress(FileNotFoundError):  # the installation has just finished
            if each.is_dir() or (each.suffix and time.time() - each.stat().st_mtime > FAILED_SECONDS):
                with each.with_suffix(STATE).open("a") as state:
                    if _try_lock(state):
                        shutil.rmtree(each) if each.is_dir() else each.unlink()
    installed.sort(key=lambda each: each.stat().st_mtime, reverse=True)
    for each in installed[KEPT - 1 :]:
        with (each / PACKED).open("r+b") as lock:
            if _try_lock(lock):
                shutil.rmtree(each.rename(each.with_suffix(".old")))


def _install(folder: Path, data: bytes, listed: Listed, what: str, state: IO[str], host: IO[str]) -> None:
    """Install requirements, then create the folder. Releases the host's lock after SLOW_SECONDS. Raises ConfigError and
    OSError."""
    state.seek(0)
    if failure := state.read():
        raise ConfigError(failure)
    unfinished = folder.with_suffix(".new")
    unfinished.mkdir()
    try:
        for name, lines in listed._asdict().items():
            (unfinished / f".{name}.txt").write_text("".join(f"{each}\n" for each in lines), "utf-8")
        _run(unfinished, what, host)
        for each in unfinished.iterdir():
            if each.name.partition(".")[0].partition("-")[0] in _OWN:
                shutil.rmtree(each) if each.is_dir() else each.unlink()
        (unfinished / PACKED).write_bytes(data)
        unfinished.rename(folder)
    except ConfigError as error:
        state.write(text := f"{error}{_conflict(listed.requirements)}")
        raise ConfigError(text) from None
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _conflict(requirements: Sequence[str]) -> str:
    """Return a hint for the first requirement that excludes a version which Scaler pins, or an empty string."""
    own = dict(each.split("==") for each in own_versions())
    for each in filter(None, map(parsed, requirements)):
        version = own.get(canonicalize_name(each.name))
        if version and not each.specifier.contains(version, prereleases=True):
            return f"; {each} is in conflict with Scaler's own {each.name}=={version} on this worker"
    return ""


def _run(folder: Path, what: str, host: IO[str]) -> None:
    files = "-r", str(folder / ".requirements.txt"), "--constraint", str(folder / ".constraints.txt")
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(
            [*_installer(), "--target", str(folder), *files],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **_VARIABLES},
            preexec_fn=partial(end_with_parent, signal.SIGKILL, os.getpid()),  # noqa: PLW1509 (it takes no lock)
        )
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(SLOW_SECONDS)
            fcntl.flock(host, fcntl.LOCK_UN)
            process.wait(INSTALL_SECONDS)
        except subprocess.TimeoutExpired:
            raise ConfigError(f"{what} were not installed within {INSTALL_SECONDS:g} s") from None
        finally:
            process.kill()
            process.wait()
        output.seek(0)
        if process.returncode:
            lines = [line.strip() for line in output if line.strip()]
            text = "; ".join(line[:MAX_LINE_CHARACTERS] for line in lines[-ERROR_LINES:])
            raise ConfigError(f"{what} cannot be installed: {_without_credentials(text)}")


def _without_credentials(text: str) -> str:
    """Return a text without the users and passwords in its URLs."""
    return _CREDENTIALS.sub("", text)


def uv_command() -> list[str]:
    """Return the uv command, or an empty list."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *map(os.path.expanduser, _UV_FOLDERS)])
    if uv := shutil.which("uv", path=path):
        return [uv]
    return [sys.executable, "-m", "uv"] if importlib.util.find_spec("uv") else []


def _installer() -> list[str]:
    if uv := uv_command():
        return [*uv, "pip", "install", "-q", "--python", sys.executable]
    if not importlib.util.find_spec("pip"):
        raise ConfigError(f"requirements need uv, or pip in {sys.executable}: install one of them")
    return [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-input"]


def own_versions() -> list[str]:
    try:
        return locked(map(str, of_extra(requires(DISTRIBUTION) or [], "")))
    except PackageNotFoundError:
        return []


def digest_of(requirements: Sequence[str], constraints: Sequence[str]) -> str:
    """Return the folder's name: a digest of the list, its files, Python, machine, C library, and `constraints`."""
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
