"""What containers on ECS and Batch have in common: their image, start command, worker configuration and exit codes."""

from __future__ import annotations

import re
import shlex
import signal
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib.metadata import version
from typing import Any
from urllib.parse import urlsplit

from scaler._version import __version__
from scaler.config.worker_managers import WorkerManagerConfig
from scaler.errors import UsageError
from scaler.worker_manager.aws.calls import steady

MAX_OVERRIDES_CHARACTERS = 8192
"""Of all container overrides together. Source: RunTask in the API reference of ECS, which also runs Batch's jobs."""


def default_image(python_version: str = f"{sys.version_info.major}.{sys.version_info.minor}") -> str:
    """Return the image of containers whose settings name none."""
    return f"python:{python_version}-slim"


def installing(
    config: WorkerManagerConfig, setting: str, text: str, image: str | None, command: str, extras: Iterable[str] = ()
) -> list[str]:
    """Return the command of a container that installs requirements before a shell command; empty if there are none.

    setting, text: the requirements. image: None for the default image, which lacks the packages that a worker needs in
    the same version as this process. extras: those of scaler that the command needs, beside that of the event loop.
    Raises UsageError when the text cannot be read.
    """
    try:
        requirements = shlex.split(text)
    except ValueError as error:
        raise UsageError(
            f"{setting} = {text!r}: {error}; requirements are separated by blanks, and one that has blanks itself "
            "stands in quotes"
        ) from None
    if image is None:
        named = {package_of(requirement) for requirement in requirements}
        extras = ",".join([*extras, *(["uvloop"] if config.event_loop == "uvloop" else [])])
        needed = {
            "scaler": f"scaler{extras and f'[{extras}]'}=={__version__}",
            "cloudpickle": f"cloudpickle=={version('cloudpickle')}",
        }
        requirements = [needed[name] for name in needed if name not in named] + requirements
    if not requirements:
        return []
    flags = ["--no-cache-dir", "--disable-pip-version-check", "--quiet"]
    return ["sh", "-c", f"{shlex.join(['pip', 'install', *flags, *requirements])} && exec {command}"]


def package_of(requirement: str) -> str:
    """Return the name of what a requirement installs: `scaler[x]>=1`, `scaler @ URL`, or a URL or path by its end."""
    named = re.match(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*($|[\[@<>=!~;])", requirement)
    if named and not requirement.endswith((".whl", ".tar.gz", ".zip")):
        name = named.group(1)
    else:
        name = re.split("[-@#]", requirement.rpartition("/")[2])[0].removesuffix(".git")
    return re.sub(r"[-_.]+", "-", name).lower()


def worker_document(config: WorkerManagerConfig, slots: int, *, unit_id_from: str, stop_grace_seconds: float) -> str:
    """Return the configuration of every worker of a manager, for SCALER_WORKER_CONFIG.

    Its log goes to the container's output: log files of the manager's machine do not exist there.
    """
    worker = config.worker_config("", slots, unit_id_from=unit_id_from, stop_grace_seconds=stop_grace_seconds)
    return replace(worker, logging_paths=("/dev/stdout",), logging_config_file=None).to_json()


def end_text(reason: str, containers: Iterable[Mapping[str, Any]], *, shown: bool = True) -> str:
    """Return why containers ended as display text: a reason, their exit codes with signals, and their own reasons.

    shown: the reason is part of the text.
    """
    parts = [reason] if shown else []
    for container in containers:
        if (code := container.get("exitCode")) is not None:
            signals = [each.name for each in signal.Signals if each + 128 == code]
            parts.append(f"exit code {code}{f' ({signals[0]})' if signals else ''}")
        if (own := steady(container.get("reason") or "")) not in reason:
            parts.append(own)
    return "; ".join(part.rstrip(".") for part in parts if part)


def is_loopback(address: str) -> bool:
    """Tell whether an address means another machine on every machine."""
    host = urlsplit(address).hostname or ""
    return host in ("localhost", "0.0.0.0", "::1", "") or host.startswith("127.")  # noqa: S104 (it is not bound)


def unreachable(what: str, address: str, endpoint_url: str | None) -> str:
    """Return a warning when workers on AWS cannot reach their scheduler; empty when they can, or run elsewhere."""
    if endpoint_url is not None or not is_loopback(address):
        return ""
    return (
        f"{what} cannot reach the scheduler at {address}: set worker_scheduler_address to the address that they know "
        "it by"
    )
