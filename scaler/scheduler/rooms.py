"""Creates the parts of extensions in a scheduler's process."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

from scaler.config.servers import SchedulerConfig
from scaler.errors import UsageError
from scaler.plugins import extensions, load
from scaler.protocol.messages import ReadTable
from scaler.scheduler.core.answers import ANSWERERS
from scaler.scheduler.core.rooms import Rooms, Subscriber
from scaler.scheduler.files import FileWriter
from scaler.scheduler.guard import answer_table, guard


class Surroundings(NamedTuple):
    """Access of a performer to the scheduler's process.

    tell: passes a document (plain values, as in JSON) to the scheduler part of its extension, as a `Told`; only on the
    loop. state_directory: None if not set.
    """

    loop: AbstractEventLoop
    files: FileWriter
    tell: Callable[[Any], None]
    state_directory: Path | None


def part(reference: str) -> Callable[..., Any]:
    return cast("Callable[..., Any]", load(reference))


def make_rooms(config: SchedulerConfig, subscribers: Sequence[Subscriber] = ()) -> Rooms:
    """Return the extensions for these settings. Raises UsageError if one cannot start. subscribers: come after them."""
    parts: dict[str, Any] = {}
    tables: dict[str, Any] = {}
    for each in extensions(config.extensions):
        if each.scheduler:
            try:
                parts[each.name] = guard(each.name, part(each.scheduler)(config))
            except Exception as error:
                raise UsageError(f"the extension {each.name!r} cannot start: {error!r}") from error
            tables |= {table.name: parts[each.name] for table in each.found if not table.question}
    return Rooms([*parts.values()], subscribers, {**ANSWERERS, ReadTable: partial(answer_table, tables)})


def table_names(config: SchedulerConfig) -> str:
    """Return the tables that ReadTable can read, as a Welcome lists them."""
    found = (
        name
        for each in extensions(config.extensions)
        for name in (*(log.name for log in each.logs), *(table.name for table in each.found if not table.question))
    )
    return " ".join(found)
