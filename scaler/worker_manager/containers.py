"""Image and worker configuration of containers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Any

from scaler._version import __version__
from scaler.config.addresses import is_loopback, local_address
from scaler.config.worker_managers import WorkerManagerConfig
from scaler.errors import UsageError
from scaler.processes import signal_name

CONTAINER = "worker"
WORKER_COMMAND = ("python", "-P", "-m", "scaler.worker")  # no file in the working directory shadows ours


def require_image(image: str | None, setting: str) -> str:
    if image is not None:
        return image
    raise UsageError(
        f"{setting} is missing: workers need an image that has this version of scaler. Make one "
        f"{making_an_image(setting)}"
    )


def making_an_image(setting: str) -> str:
    python, cloudpickle = f"{sys.version_info.major}.{sys.version_info.minor}", version("cloudpickle")
    return (
        f"in a checkout of it: docker build -f docker/worker.Dockerfile --build-arg PYTHON_VERSION={python} "
        f"--build-arg REQUIREMENTS=cloudpickle=={cloudpickle} -t REGISTRY/scaler-worker:{__version__} . && "
        f"docker push REGISTRY/scaler-worker:{__version__}, and give that name as {setting}"
    )


def worker_document(
    config: WorkerManagerConfig,
    slots: int,
    *,
    unit_id: str = "",
    unit_id_from: str = "unit_id",
    stop_grace_seconds: float,
) -> str:
    """Return the JSON of SCALER_WORKER_CONFIG for a container, which logs to stdout."""
    worker = config.worker_config(unit_id, slots, unit_id_from=unit_id_from, stop_grace_seconds=stop_grace_seconds)
    return replace(worker, logging_paths=("/dev/stdout",), logging_config_file=None).to_json()


def worker_container(containers: Sequence[dict[str, Any]], source: str) -> dict[str, Any]:
    """Return the container named `worker`, or the only one. source: names their origin in a UsageError."""
    named = [container for container in containers if container.get("name") == CONTAINER]
    if not named and len(containers) > 1:
        names = ", ".join(str(container.get("name")) for container in containers)
        raise UsageError(f"{source} has the containers {names}: call the one for the worker {CONTAINER!r}")
    return (named or list(containers))[0]


def exit_text(code: int) -> str:
    name = signal_name(code - 128)
    return f"exit code {code}{f' ({name})' if name else ''}"


def loopback_warning(what: str, address: str) -> str:
    if not is_loopback(local_address(address)):
        return ""
    return (
        f"{what} cannot reach the scheduler at {address}: set worker_scheduler_address to an address that they "
        "can reach"
    )
