"""Requirements that a client sends: from a list, a `requirements.txt`, a `uv.lock`, or the packages of this program."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from scaler.errors import UsageError
from scaler.extensions.environment.installer import Listed, file_of, own_versions, packed, uv_command
from scaler.extras import DISTRIBUTION
from scaler.paths import local_path
from scaler.pins import parsed
from scaler.protocol.messages import INLINE_LIMIT_BYTES
from scaler.texts import shown

AUTO = "auto"
MAX_BYTES = INLINE_LIMIT_BYTES - 64
MAX_ERROR_CHARACTERS = 600
EXPORT_SECONDS = 120.0
_TOOLS = frozenset({"pip", "uv"})
_UPLOAD = "send its code with client.upload instead"
_OPTION = re.compile(r"(-[rcef](?!-)|--(?:requirement|constraint|editable|find-links)\b)[=\s]*(.*)")


def requirements_of(environment: object) -> bytes:
    """Return the packed requirements of an `environment` option; empty for an empty list. Raises
    UsageError."""
    if environment == AUTO:
        return _auto(tuple(sys.path))
    constraints: list[str] = []
    try:
        if isinstance(environment, str | os.PathLike):
            path = local_path(environment).absolute()
            if path.name == "uv.lock":
                return _of_lock(path, path.stat().st_mtime_ns, path.with_name("pyproject.toml").stat().st_mtime_ns)
            return _limited(Listed(tuple(_of_file(path, constraints, 0)), tuple(constraints)))
        if isinstance(environment, list | tuple) and all(isinstance(each, str) for each in environment):
            found = sorted(set(_checked(environment, Path.cwd(), constraints, 0)))
            return _limited(Listed(tuple(found), tuple(constraints)))
    except OSError as error:
        name = str(error.filename)
        if isinstance(environment, str) and name == str(local_path(environment).absolute()):
            name = environment
        hint = f"give a list: [{name!r}]" if name == environment and parsed(name) else "give a path or a list"
        raise UsageError(f"environment: cannot read {name!r}: {error.strerror}; {hint}") from None
    raise UsageError(f'environment is {shown(environment)}, but must be a list of requirements, a path, or "auto"')


def _limited(listed: Listed) -> bytes:
    if not listed.requirements:
        return b""
    found = packed(listed)
    if len(found) > MAX_BYTES:
        raise UsageError(f"environment: the compressed requirements have {len(found):,} bytes; limit: {MAX_BYTES:,}")
    return found


@functools.lru_cache(16)
def _of_lock(path: Path, *_changed: int) -> bytes:
    return _limited(Listed(tuple(_without_own(_checked(_exported(path), path.parent, [], 0)))))


def _of_file(path: Path, constraints: list[str], depth: int) -> Iterator[str]:
    if depth > 20:
        raise UsageError(f"environment: {path} includes itself")
    try:
        text = path.read_text("utf-8-sig").replace("\\\n", " ")
    except UnicodeDecodeError:
        raise UsageError(f"environment: {str(path)!r} is not text; give a list or a requirements file") from None
    return _checked(text.splitlines(), path.parent, constraints, depth + 1)


def _checked(lines: Iterable[str], folder: Path, constraints: list[str], depth: int) -> Iterator[str]:
    """Yield the requirements in lines and included files, without comments, with absolute paths and file times.

    Appends to `constraints`. Raises OSError, and UsageError for local code."""
    for given in lines:
        line = "" if given.lstrip().startswith("#") else given.partition(" #")[0].strip()
        kind, rest = match.groups() if (match := _OPTION.match(line)) else ("", "")
        if kind.endswith(("-r", "-requirement")):
            yield from _of_file(folder / rest, constraints, depth)
        elif kind.endswith(("-c", "-constraint")):
            constraints += _of_file(folder / rest, constraints, depth)
        elif kind.endswith(("-f", "-links")):
            yield f"--find-links {(folder / rest).absolute() if (folder / rest).exists() else rest}"
        elif kind or (line.startswith(".") and (folder / line).is_dir()):
            raise UsageError(f"environment: workers cannot install {line!r}, which only this machine has: {_UPLOAD}")
        elif line:
            line = str((folder / line).absolute()) if line.startswith(".") else line
            file = file_of(line)
            yield f"{line}  # changed {Path(file).stat().st_mtime_ns}" if file else line


def _exported(lock: Path) -> list[str]:
    """Return the requirements of a lock file. Raises UsageError."""
    uv = uv_command()
    if not uv:
        raise UsageError(f"environment: reading {lock} needs uv: pip install uv")
    command = [*uv, "export", "--frozen", "--no-hashes", "--no-dev", "--no-emit-project", "--format=requirements-txt"]
    command += ["--directory", str(lock.parent)]
    try:
        done = subprocess.run(
            command, check=True, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=EXPORT_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise UsageError(f"environment: uv has not read {lock} within {EXPORT_SECONDS:g} s") from None
    except subprocess.CalledProcessError as error:
        raise UsageError(
            f"environment: uv cannot read {lock}: {error.stderr.strip()[-MAX_ERROR_CHARACTERS:]}"
        ) from None
    return done.stdout.splitlines()


def _without_own(lines: Iterable[str]) -> Iterator[str]:
    """Yield requirements except Scaler and its dependencies: workers use their own versions."""
    own = {canonicalize_name(each.partition("==")[0]) for each in own_versions()} | {DISTRIBUTION}
    for line in lines:
        read = parsed(line)
        if read is None or canonicalize_name(read.name) not in own:
            yield line


@functools.lru_cache(2)
def _auto(_path: tuple[str, ...]) -> bytes:
    found: dict[str, str] = {}
    local: list[str] = []
    for each in distributions():
        name = canonicalize_name(each.metadata["Name"] or "")
        if name and name not in found and name not in local and name not in _TOOLS:
            if line := _pinned(name, each):
                found[name] = line
            else:
                local.append(name)
    if missing := [name for name in sorted(local) if name != DISTRIBUTION]:
        names = ", ".join(missing)
        text = f'environment="auto" omits packages that only this machine has: {names}; {_UPLOAD}'
        warnings.warn(text, stacklevel=2)
    return _limited(Listed(tuple(_without_own(found[name] for name in sorted(found)))))


def _pinned(name: str, distribution: Distribution) -> str:
    """Return the requirement of an installed package, or an empty string if only this machine has it."""
    origin: dict[str, Any] = json.loads(distribution.read_text("direct_url.json") or "{}")
    url = origin.get("url", "")
    if "vcs_info" in origin:
        return f"{name} @ {origin['vcs_info']['vcs']}+{url}@{origin['vcs_info']['commit_id']}"
    if not origin:
        return f"{name}=={distribution.version}"
    return f"{name} @ {url}" if "archive_info" in origin and not url.startswith("file:") else ""
