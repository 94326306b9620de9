"""Definition of an `/api` route: parameters, answer, and their types. Pure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scaler.monitor.rows import View
from scaler.monitor.tables import Parameter, number

if TYPE_CHECKING:
    from scaler.monitor.asking import Asking
    from scaler.protocol.monitor_rows import ConnectionRow

MAX_TIMELINE_SECONDS = 86_400.0

Query = Mapping[str, Any]


class UnknownTaskError(LookupError):
    """The model has no such task."""


@dataclass(frozen=True, slots=True)
class Source:
    """Data source of routes. connection: returns the state of the connection to the scheduler."""

    monitor: Asking
    connection: Callable[[], ConnectionRow]


@dataclass(frozen=True, slots=True)
class ApiRoute:
    """One route. A parameter in the path is a task id.

    name: of the operation and its answer in the OpenAPI document. parts: types of the answer's values, with `?`
    after the names of optional values. Row types and names refer to schemas. Lists, tuples, and objects contain such
    types.
    """

    path: str
    name: str
    summary: str
    parts: Mapping[str, Any]
    answer: Callable[[Source, Query], View | Awaitable[View]]
    parameters: tuple[Parameter, ...] = ()
    headers: Mapping[str, str] | None = None

    @property
    def of_a_task(self) -> bool:
        return "{id}" in self.path


def seconds(default: float) -> Parameter:
    text = "How far to look back from the scheduler's latest state."
    return number("seconds", text, "number", 1, MAX_TIMELINE_SECONDS, default)
