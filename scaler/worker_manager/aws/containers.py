"""What containers on ECS and Batch have in common beside what all containers have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from scaler.worker_manager.aws.calls import steady
from scaler.worker_manager.containers import exit_text, loopback_warning, require_image, worker_document

__all__ = ["MAX_OVERRIDES_CHARACTERS", "end_text", "require_image", "unreachable", "worker_document"]

MAX_OVERRIDES_CHARACTERS = 8192
"""Of all container overrides together. Source: RunTask in the API reference of ECS, which also runs Batch's jobs."""


def end_text(reason: str, containers: Iterable[Mapping[str, Any]], *, shown: bool = True) -> str:
    """Return why containers ended as display text: a reason, their exit codes with signals, and their own reasons.

    shown: the reason is part of the text.
    """
    parts = [reason] if shown else []
    for container in containers:
        if (code := container.get("exitCode")) is not None:
            parts.append(exit_text(code))
        if (own := steady(container.get("reason") or "")) not in reason:
            parts.append(own)
    return "; ".join(part.rstrip(".") for part in parts if part)


def unreachable(what: str, address: str, endpoint_url: str | None) -> str:
    """Return a warning when workers on AWS cannot reach their scheduler; empty when they can, or run elsewhere."""
    return "" if endpoint_url is not None else loopback_warning(what, address)
