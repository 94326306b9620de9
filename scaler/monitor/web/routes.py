"""What a route of `/api` is: its parameters, its answer, and their types. Pure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scaler.monitor.rows import View
from scaler.monitor.tables import Parameter, number

if TYPE_CHECKING:
    from scaler.monitor.asking import Asking
    from scaler.monitor.model import Model
    from scaler.protocol.monitor_rows import ConnectionRow

MAX_TIMELINE_SECONDS = 86_400.0

Query = Mapping[str, Any]


class UnknownTaskError(LookupError):
    """The model has no such task."""


@dataclass(frozen=True, slots=True)
class Source:
    """What routes answer from. connection: returns the state of the connection to the scheduler."""

    monitor: Asking
    connection: Callable[[], ConnectionRow]


@dataclass(frozen=True, slots=True)
class ApiRoute:
    """One route. A parameter in the path is a task's id.

    name: of its operation and its answer in the OpenAPI document. parts: the types of the answer's values, `?` behind a
    name for optional ones; rows and names are references to schemas, and lists, tuples and objects hold such types.
    saved: returns the query whose answer is in reports, where every query has this answer; None: there is none.
    """

    path: str
    name: str
    summary: str
    parts: Mapping[str, Any]
    answer: Callable[[Source, Query], View | Awaitable[View]]
    parameters: tuple[Parameter, ...] = ()
    headers: Mapping[str, str] | None = None
    saved: Callable[[Model], Query | None] = lambda _model: None

    @property
    def of_a_task(self) -> bool:
        return "{id}" in self.path


def seconds(default: float) -> Parameter:
    """Return the parameter of how far to look back."""
    text = "How far to look back from the scheduler's last state."
    return number("seconds", text, "number", 1, MAX_TIMELINE_SECONDS, default)
