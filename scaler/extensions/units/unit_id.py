"""Determines a worker's unit id and GPUs from its environment."""

from __future__ import annotations

import json
import math
import os
import re
import socket
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from scaler.config.worker import WorkerConfig
from scaler.errors import ConfigError
from scaler.needs import GPU

ANSWER_SECONDS = 2.0
ATTEMPTS = 5
"""A container's endpoint may be unavailable just after the start."""
PAUSE_SECONDS = 0.5


def with_unit(config: WorkerConfig, environment: Mapping[str, str]) -> WorkerConfig:
    """Return a worker's settings, including its unit id and GPUs. Raises ConfigError."""
    gpus = claim_gpus(config.per_worker_capabilities, environment)
    return replace(config, unit_id=learn_unit_id(config, environment), gpus=gpus)


def learn_unit_id(config: WorkerConfig, environment: Mapping[str, str]) -> str:
    """Return the worker's unit id. May block for seconds. Raises ConfigError if the id cannot be determined."""
    if config.unit_id_from == "unit_id":
        if not config.unit_id:
            raise ConfigError("unit_id is empty, and unit_id_from does not say how to determine it")
        return config.unit_id
    if not (name := config.unit_id_variable):
        raise ConfigError(f"unit_id_from = {config.unit_id_from!r}: must be unit_id, ecs or env:NAME")
    if not (value := environment.get(name, "")):
        raise ConfigError(f"unit_id_from = {config.unit_id_from!r}: {name} is not set, so this worker runs elsewhere")
    return _ecs_task_id(value) if config.unit_id_from == "ecs" else value


def _ecs_task_id(base: str) -> str:
    # Imported late: these modules import the email package (1 MB), and few workers need them.
    from http.client import HTTPException  # noqa: PLC0415
    from urllib.error import HTTPError  # noqa: PLC0415
    from urllib.request import ProxyHandler, build_opener  # noqa: PLC0415

    url = f"{base}/task"
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with build_opener(ProxyHandler({})).open(url, timeout=ANSWER_SECONDS) as answer:
                document = json.load(answer)
            arn = document.get("TaskARN") if isinstance(document, dict) else None
            if isinstance(arn, str) and (task_id := arn.rpartition("/")[2]):
                return task_id
            problem = "the answer has no TaskARN"
        except (OSError, ValueError, HTTPException) as error:
            problem = str(error) or type(error).__name__
            if isinstance(error, HTTPError):
                error.close()  # closes the response
        if attempt < ATTEMPTS:
            time.sleep(PAUSE_SECONDS)
    raise ConfigError(f"cannot determine the ECS task from {url}: {problem}")


VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"
_claims: list[socket.socket] = []


def claim_gpus(
    capabilities: Mapping[str, float | None], environment: Mapping[str, str], devices: Path = Path("/dev")
) -> tuple[str, ...]:
    """Claim as many GPUs as the capabilities offer, exclusively among the workers of a host, and return their names.
    Chooses from CUDA_VISIBLE_DEVICES or all GPUs. Shares GPUs if too few are free. Without GPUs on the host, returns
    numbers from 0. A claim is an abstract socket, which the kernel releases when the worker exits.
    """
    count = math.ceil(capabilities.get(GPU) or 0)
    if count <= 0:
        return ()
    given = environment.get(VISIBLE_VARIABLE, "")
    found = sorted(int(entry.name[6:]) for entry in devices.glob("nvidia*") if re.fullmatch(r"nvidia\d+", entry.name))
    names = [name.strip() for name in given.split(",") if name.strip()]
    names = names or [str(number) for number in found or range(count)]
    chosen: list[str] = []
    for name in names:
        if len(chosen) < count and _claim(name):
            chosen.append(name)
    others = [name for name in names if name not in chosen]
    return tuple(chosen + others[: count - len(chosen)])


def _claim(name: str) -> bool:
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0scaler-gpu-{os.getuid()}-{name}")
    except OSError:
        claim.close()
        return False
    _claims.append(claim)
    return True
