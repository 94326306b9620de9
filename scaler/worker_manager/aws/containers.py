"""Common parts of containers on ECS and Batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from scaler.errors import UsageError
from scaler.worker_manager.aws.calls import steady
from scaler.worker_manager.containers import exit_text, loopback_warning, making_an_image

MAX_OVERRIDES_CHARACTERS = 8192  # total of all overrides; source: RunTask in the ECS API reference


def platform_of(architecture: str) -> dict[str, str]:
    return {"cpuArchitecture": architecture, "operatingSystemFamily": "LINUX"}


def check_source(image: str | None, bucket: str, image_key: str, bucket_key: str) -> None:
    if image is None and not bucket:
        raise UsageError(
            f"{bucket_key} and {image_key} are missing: give {bucket_key} the name of a bucket, from which workers "
            f"install this version of scaler, or make an image that has it {making_an_image(image_key)}"
        )


def end_text(reason: str, containers: Iterable[Mapping[str, Any]], *, shown: bool = True) -> str:
    """Return why containers ended: the reason if known, exit codes with signals, and the containers' reasons."""
    parts = [reason] if shown else []
    for container in containers:
        if (code := container.get("exitCode")) is not None:
            parts.append(exit_text(code))
        if (own := steady(container.get("reason") or "")) not in reason:
            parts.append(own)
    return "; ".join(part.rstrip(".") for part in parts if part)


def unreachable(what: str, address: str, endpoint_url: str | None) -> str:
    """Return a warning if workers on AWS cannot reach their scheduler, or "". Skipped for custom endpoints."""
    return "" if endpoint_url is not None else loopback_warning(what, address)
