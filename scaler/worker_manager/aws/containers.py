"""What containers on ECS and Batch have in common: their image, worker configuration and exit codes."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib.metadata import version
from typing import Any

from scaler._version import __version__
from scaler.config.addresses import is_loopback, local_address
from scaler.config.worker_managers import WorkerManagerConfig
from scaler.errors import UsageError
from scaler.worker_manager.aws.calls import steady

MAX_OVERRIDES_CHARACTERS = 8192
"""Of all container overrides together. Source: RunTask in the API reference of ECS, which also runs Batch's jobs."""


def require_image(image: str | None, setting: str) -> str:
    """Return the image of the settings. Raises UsageError with the commands that make one.

    There is no default: a container that installs Scaler by its name gets whatever project has that name on its index.
    """
    if image is not None:
        return image
    python, cloudpickle = f"{sys.version_info.major}.{sys.version_info.minor}", version("cloudpickle")
    raise UsageError(
        f"{setting} is missing: workers need an image that has this version of scaler. Make one in a checkout of it: "
        f"docker build -f docker/worker.Dockerfile --build-arg PYTHON_VERSION={python} "
        f"--build-arg REQUIREMENTS=cloudpickle=={cloudpickle} -t REGISTRY/scaler-worker:{__version__} . && "
        f"docker push REGISTRY/scaler-worker:{__version__}, and give that name as {setting}"
    )


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


def unreachable(what: str, address: str, endpoint_url: str | None) -> str:
    """Return a warning when workers on AWS cannot reach their scheduler; empty when they can, or run elsewhere."""
    if endpoint_url is not None or not is_loopback(local_address(address)):
        return ""
    return (
        f"{what} cannot reach the scheduler at {address}: set worker_scheduler_address to the address that they know "
        "it by"
    )
