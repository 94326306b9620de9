"""The routes of `/api`: one table, from which the server answers and the OpenAPI document is made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from scaler.errors import RefusedError, UnreachableError, UsageError
from scaler.logs import escaped
from scaler.monitor.connection import task_id_of
from scaler.monitor.model import MAX_DECISIONS, MAX_INCIDENTS, Model
from scaler.monitor.series import FINE_SECONDS, NAMES
from scaler.monitor.trace import trace
from scaler.monitor.web.query import Parameter, values_of
from scaler.monitor.web.replies import answer, refusal
from scaler.monitor.web.views import (
    View,
    decision_view,
    incident_view,
    status_view,
    table_view,
    task_view,
    timeline_view,
    whole_task_view,
)
from scaler.protocol.messages import TaskLog

MAX_TASKS_ANSWERED = 1000
MAX_TIMELINE_SECONDS = FINE_SECONDS


class UnknownTaskError(LookupError):
    """Nothing is known of a task."""


class Monitor(Protocol):
    """What the web server needs of a `MonitorConnection`."""

    @property
    def model(self) -> Model: ...
    @property
    def address(self) -> str: ...
    @property
    def connected(self) -> bool: ...
    @property
    def trouble(self) -> str: ...
    async def explain(self, task_id: str) -> str: ...
    async def log(self, task_id: str) -> TaskLog: ...


@dataclass(frozen=True, slots=True)
class Source:
    """What routes answer from."""

    monitor: Monitor
    connection: Callable[[], View]
    """What is to be said about the connection to the scheduler."""

    @property
    def model(self) -> Model:
        return self.monitor.model


Query = Mapping[str, Any]
Answer = Callable[[Source, Query], View | Awaitable[View]]


@dataclass(frozen=True, slots=True)
class ApiRoute:
    """One route. A parameter that stands in the path is a task's id."""

    path: str
    summary: str
    schema: str
    """Name of what it answers in the OpenAPI document."""
    answer: Answer
    parameters: tuple[Parameter, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def of_a_task(self) -> bool:
        return "{id}" in self.path


def api_routes(source: Source) -> list[Route]:
    """Return the table as routes of Starlette."""
    return [Route(route.path, _endpoint(route, source)) for route in ROUTES]


def _endpoint(route: ApiRoute, source: Source) -> Callable[[Request], Awaitable[Response]]:
    async def respond(request: Request) -> Response:
        try:
            query = values_of(route.parameters, request.query_params)
            if route.of_a_task:
                query["id"] = task_id_of(request.path_params["id"]).hex()
            found = route.answer(source, query)
            document = await found if isinstance(found, Awaitable) else found
        except UsageError as error:
            return refusal(400, str(error))
        except UnknownTaskError as error:
            return refusal(404, str(error))
        except (UnreachableError, RefusedError) as error:
            return refusal(503, str(error))
        return answer(document, route.headers)

    return respond


def _status(source: Source, _query: Query) -> View:
    return {"connection": source.connection(), "status": status_view(source.model)}


def _table(name: str) -> Answer:
    def answered(source: Source, _query: Query) -> View:
        status = source.model.status
        return {name: table_view(status, name), "total": getattr(status.totals, name)}

    return answered


def _tasks(source: Source, query: Query) -> View:
    return {"tasks": [task_view(task) for task in source.model.tasks(**query)], "kept": source.model.kept}


def _task(source: Source, query: Query) -> View:
    task = source.model.task(query["id"])
    if task is None:
        raise UnknownTaskError(
            f"nothing was heard lately of a task {query['id']}: it may still wait, or have ended long ago; "
            f"ask /api/tasks/{query['id']}/explain"
        )
    return {"task": whole_task_view(task)}


async def _explain(source: Source, query: Query) -> View:
    return {"id": query["id"], "text": await source.monitor.explain(query["id"])}


async def _log(source: Source, query: Query) -> View:
    log = await source.monitor.log(query["id"])
    return {"id": query["id"], "stdout": _shown(log.stdout), "stderr": _shown(log.stderr), "cut": log.truncated_bytes}


def _timeline(source: Source, query: Query) -> View:
    return timeline_view(source.model, query["seconds"])


def _series(source: Source, query: Query) -> View:
    columns = source.model.series.columns(query["since"])
    return {name: column for name, column in columns.items() if name == "at" or name in (query["name"] or NAMES)}


def _decisions(source: Source, query: Query) -> View:
    newest = list(reversed(source.model.decisions))[: query["limit"]]
    return {"decisions": [decision_view(decision) for decision in newest]}


def _incidents(source: Source, query: Query) -> View:
    newest = list(reversed(source.model.incidents))[: query["limit"]]
    return {"incidents": [incident_view(incident) for incident in newest]}


def _trace(source: Source, query: Query) -> View:
    return trace(source.model, source.model.status.at - query["seconds"])


def _shown(output: bytes) -> str:
    """Return what a task has printed with its control characters escaped, all but ends of lines and tabs."""
    lines = output.decode("utf-8", "backslashreplace").replace("\r\n", "\n").split("\n")
    return "\n".join("\t".join(map(escaped, line.split("\t"))) for line in lines)


def _seconds(default: float) -> Parameter:
    text = "How far to look back from the scheduler's last state."
    return Parameter("seconds", "number", default, text, least=1, most=MAX_TIMELINE_SECONDS)


def _limit(most: int) -> Parameter:
    return Parameter("limit", "count", 100, "How many, at most; the newest come first.", least=1, most=most)


_TASK_PARAMETERS = (
    Parameter("search", "text", "", "A part of the id, function, client, worker, state or failure, in any case."),
    Parameter(
        "state", "text", "", "running, retrying, done, cancelled, a failure's name, or failed for every failure."
    ),
    Parameter("function", "text", "", "The function's name."),
    Parameter("worker", "text", "", "The worker's name."),
    Parameter("client", "text", "", "The client."),
    _limit(MAX_TASKS_ANSWERED),
)
_SERIES_PARAMETERS = (
    Parameter("name", "texts", (), "Which series; may stand several times. All when it is left out.", choices=NAMES),
    Parameter("since", "number", 0.0, "A time in unix seconds: older points are left out."),
)
_DOWNLOAD = {"Content-Disposition": 'attachment; filename="scaler-trace.json"'}

ROUTES: tuple[ApiRoute, ...] = (
    ApiRoute("/api/status", "Counts and sums, and the connection to the scheduler", "StatusAnswer", _status),
    ApiRoute("/api/workers", "Workers with their processors", "WorkersAnswer", _table("workers")),
    ApiRoute("/api/managers", "Worker managers and what they are told", "ManagersAnswer", _table("managers")),
    ApiRoute("/api/clients", "Clients and their tasks", "ClientsAnswer", _table("clients")),
    ApiRoute("/api/functions", "Functions and their tasks", "FunctionsAnswer", _table("functions")),
    ApiRoute("/api/tasks", "Tasks that were heard of last", "TasksAnswer", _tasks, _TASK_PARAMETERS),
    ApiRoute("/api/tasks/{id}", "One task", "TaskAnswer", _task),
    ApiRoute("/api/tasks/{id}/explain", "Why a task waits, or what became of it", "ExplainAnswer", _explain),
    ApiRoute("/api/tasks/{id}/log", "What a task has printed", "LogAnswer", _log),
    ApiRoute("/api/timeline", "What each worker did", "TimelineAnswer", _timeline, (_seconds(300),)),
    ApiRoute("/api/series", "Figures over time, as columns", "SeriesAnswer", _series, _SERIES_PARAMETERS),
    ApiRoute(
        "/api/decisions", "Decisions of the scaling policy", "DecisionsAnswer", _decisions, (_limit(MAX_DECISIONS),)
    ),
    ApiRoute("/api/incidents", "What people may want to know", "IncidentsAnswer", _incidents, (_limit(MAX_INCIDENTS),)),
    ApiRoute(
        "/api/trace",
        "The timeline for Chrome's and Perfetto's viewers",
        "TraceAnswer",
        _trace,
        (_seconds(MAX_TIMELINE_SECONDS),),
        _DOWNLOAD,
    ),
)
