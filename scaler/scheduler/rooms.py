"""Makes the parts of extensions that a scheduler's process has."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from scaler.config.servers import SchedulerConfig
from scaler.plugins import extensions, load
from scaler.scheduler.core.answers import ANSWERERS
from scaler.scheduler.core.rooms import Rooms, Subscriber
from scaler.scheduler.files import FileWriter


class Surroundings(NamedTuple):
    """What a performer has of the scheduler's process.

    tell: hands plain values, as in JSON, to the scheduler part of its extension, as a `Told`; on the loop only.
    state_directory: None without one.
    """

    loop: AbstractEventLoop
    files: FileWriter
    tell: Callable[[Any], None]
    state_directory: Path | None


def part(reference: str) -> Callable[..., Any]:
    """Return what makes a part of an extension."""
    return cast("Callable[..., Any]", load(reference))


def make_rooms(config: SchedulerConfig, subscribers: Sequence[Subscriber] = ()) -> Rooms:
    """Return the extensions that a scheduler with these settings has. subscribers: take changes after them."""
    parts = [part(each.scheduler)(config) for each in extensions(config.extensions) if each.scheduler]
    return Rooms(parts, subscribers, ANSWERERS)
