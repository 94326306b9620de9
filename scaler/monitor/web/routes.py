"""Definition of an `/api` route (parameters, answer, and their types), and the JSON answers of the web server. Pure."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from scaler.monitor.model import Model
from scaler.monitor.rows import View, view
from scaler.monitor.tables import Parameter, number

if TYPE_CHECKING:
    from scaler.monitor.cluster_rows import ConnectionRow
    from scaler.monitor.connection import Asking


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
    """One route. A parameter in the path is a task id. parts: types of the answer's values, with `?` after the names of
    optional values. Row types and names refer to schemas. Lists, tuples, and objects contain such types."""

    path: str
    summary: str
    parts: Mapping[str, Any]
    answer: Callable[[Source, Query], View | Awaitable[View]]
    parameters: tuple[Parameter, ...] = ()
    headers: Mapping[str, str] | None = None

    @property
    def of_a_task(self) -> bool:
        return "{id}" in self.path

    @property
    def name(self) -> str:
        """Name of the operation and its answer in the OpenAPI document."""
        return "task" if self.path.endswith("{id}") else self.path.rpartition("/")[2]


def seconds(default: float) -> Parameter:
    text = "How far to look back from the scheduler's latest state."
    return number("seconds", text, "number", 1, MAX_TIMELINE_SECONDS, default)


def status_view(model: Model) -> View:
    rates = {name: model.series.last(name) for name in ("tasks_per_second", "failed_per_second")}
    return {**view(model.status), **rates, "tasks_left_out": model.dropped}


# -- responses


def dump(document: object) -> bytes:
    """Return a document as ASCII JSON, because texts may contain unpaired surrogates, which UTF-8 cannot encode. Raises
    ValueError for a number that JSON cannot express."""
    return json.dumps(document, separators=(",", ":"), allow_nan=False).encode()


def answer(document: object, headers: Mapping[str, str] | None = None, status: int = 200) -> Response:
    return Response(dump(document), status, headers, "application/json")


def refusal(status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return an error. text: cause and remedy."""
    return answer({"error": text}, headers, status)
