"""Makes the parts of extensions that a scheduler's process has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from scaler.config.servers import SchedulerConfig
from scaler.plugins import extensions, load
from scaler.scheduler.core.rooms import Rooms


def part(reference: str) -> Callable[..., Any]:
    """Return what makes a part of an extension."""
    return cast("Callable[..., Any]", load(reference))


def make_rooms(config: SchedulerConfig) -> Rooms:
    """Return the extensions that a scheduler with these settings has."""
    return Rooms([part(each.scheduler)(config) for each in extensions(config.extensions) if each.scheduler])
