"""The routes of `/api`: one table, from which the server answers and the OpenAPI document is made."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from scaler.errors import RefusedError, UnreachableError, UsageError, nearest
from scaler.ids import task_id_of
from scaler.monitor.asking import Asking
from scaler.monitor.findings import findings
from scaler.monitor.model import MAX_DECISIONS, MAX_FAILURES, MAX_INCIDENTS, NAMES
from scaler.monitor.network import network
from scaler.monitor.rows import FOUND, LISTS, LOGS, View, view
from scaler.monitor.trace import trace
from scaler.monitor.web.views import answer, refusal, status_view, task_view, timeline_view
from scaler.plugins import FoundTable
from scaler.protocol.history_rows import EventRow, FunctionTimesRow, PointRow
from scaler.protocol.link_rows import NetworkRow
from scaler.protocol.monitor_rows import (
    ConnectionRow,
    DecisionRow,
    FailureRow,
    FindingRow,
    IncidentRow,
    TaskRow,
)
from scaler.stack_profile import StackProfile, read_document
from scaler.texts import escaped_lines, readable

MAX_TASKS_ANSWERED = 1000
MAX_FRAMES = 100
"""Hottest frames in an answer."""
MAX_TIMELINE_SECONDS = 86_400.0
DAY_SECONDS = 86_400.0
MAX_QUERY_TEXT = 1000
"""Characters of a parameter."""

Query = Mapping[str, Any]


class UnknownTaskError(LookupError):
    """The model has no such task."""


@dataclass(frozen=True, slots=True)
class Source:
    """What routes answer from. connection: returns the state of the connection to the scheduler."""

    monitor: Asking
    connection: Callable[[], ConnectionRow]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a query, with the JSON schema of its values. One of type array may be given several times."""

    name: str
    text: str
    schema: Mapping[str, Any]

    def value(self, texts: Sequence[str]) -> Any:
        """Return the value of the given texts. Raises UsageError."""
        kind = self.schema["type"]
        if kind == "array":
            return tuple(self._text(text, self.schema["items"]["enum"]) for text in texts)
        if not texts:
            return self.schema.get("default", "")
        if len(texts) > 1:
            raise UsageError(f"{self.name} is given more than once")
        return self._text(texts[0], ()) if kind == "string" else self._number(texts[0])

    def _text(self, text: str, choices: Sequence[str]) -> str:
        if len(text) > MAX_QUERY_TEXT:
            raise UsageError(f"{self.name} is longer than {MAX_QUERY_TEXT} characters")
        if choices and text not in choices:
            raise UsageError(f"{self.name} = {text!r}: must be one of {', '.join(choices)}")
        return text

    def _number(self, text: str) -> float:
        is_whole, least, most = self.schema["type"] == "integer", self.schema["minimum"], self.schema["maximum"]
        wanted = "whole number" if is_whole else "number"
        try:
            number: float = int(text) if is_whole else float(text)
        except ValueError:
            raise UsageError(f"{self.name} = {text!r}: must be a {wanted}") from None
        if not least <= number <= most:
            raise UsageError(f"{self.name} = {text}: must be a {wanted} from {least:g} to {most:g}")
        return number


@dataclass(frozen=True, slots=True)
class ApiRoute:
    """One route. A parameter in the path is a task's id.

    name: of its operation and its answer in the OpenAPI document. parts: the types of the answer's values, `?` behind a
    name for optional ones; rows and names are references to schemas, and lists, tuples and objects hold such types.
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

    def values(self, query: QueryParams) -> dict[str, Any]:
        """Return the value of each parameter. Raises UsageError, also for an unknown one."""
        known = [parameter.name for parameter in self.parameters]
        for name in query:
            if name not in known:
                hint = nearest(name, known) if known else "; there are none here"
                raise UsageError(f"unknown parameter {name!r}{hint}")
        return {parameter.name: parameter.value(query.getlist(parameter.name)) for parameter in self.parameters}


def api_routes(source: Source) -> list[Route]:
    return [Route(route.path, _endpoint(route, source)) for route in ROUTES]


def _endpoint(route: ApiRoute, source: Source) -> Callable[[Request], Awaitable[Response]]:
    async def respond(request: Request) -> Response:
        try:
            query = route.values(request.query_params)
            if route.of_a_task:
                query["id"] = task_id_of(request.path_params["id"]).hex()
            found = route.answer(source, query)
            return answer(await found if isinstance(found, Awaitable) else found, route.headers)
        except UsageError as error:
            return refusal(400, str(error))
        except UnknownTaskError as error:
            return refusal(404, str(error))
        except (UnreachableError, RefusedError) as error:
            return refusal(503, str(error))

    return respond


# -- answers


async def _tasks(source: Source, query: Query) -> View:
    model = source.monitor.model
    found = await _found(source, query["search"])
    return {"tasks": [task_view(task) for task in model.tasks(**query, found=found)], "kept": model.task_count}


async def _found(source: Source, search: str) -> list[TaskRow]:
    return await source.monitor.find(search) if search and source.monitor.connected else []


async def _task(source: Source, query: Query) -> View:
    task = source.monitor.model.task(query["id"]) or next(iter(await _found(source, query["id"])), None)
    if task is None:
        raise UnknownTaskError(f"no task {query['id']} is known: it ended too long ago, or was never submitted")
    if task.failed and not task.traceback:
        with contextlib.suppress(UnreachableError):
            traceback = (await source.monitor.log(query["id"])).traceback
            task = task._replace(traceback=readable(traceback))
    return {"task": view(task, whole=True)}


def _failures(source: Source, query: Query) -> View:
    found = source.monitor.model.failures()
    return {"failures": [view(each) for each in found[: query["limit"]]], "kept": sum(each.times for each in found)}


def _findings(source: Source, _query: Query) -> View:
    return {"findings": [view(each) for each in findings(source.monitor.model)]}


async def _explain(source: Source, query: Query) -> View:
    return {"id": query["id"], "text": await source.monitor.explain(query["id"])}


async def _log(source: Source, query: Query) -> View:
    log = await source.monitor.log(query["id"])
    stdout, stderr = (escaped_lines(text.decode("utf-8", "backslashreplace")) for text in (log.stdout, log.stderr))
    return {"id": query["id"], "stdout": stdout, "stderr": stderr, "cut": log.truncated_bytes}


async def _profile(source: Source, query: Query) -> View:
    task = task_id_of(query["task"]).hex() if query["task"] else ""
    found = await source.monitor.profile(task, query["function"])
    stacks = read_document(found) if found["of"] else StackProfile()
    functions = [
        {"name": name, "samples": samples, "seconds": us / 1e6, "hottest": frame}
        for name, samples, us, frame in found.get("functions", ())
    ]
    hottest = [
        {"frame": each.frame, "own_seconds": each.own_us / 1e6, "total_seconds": each.total_us / 1e6}
        for each in stacks.hottest(MAX_FRAMES)
    ]
    name = str(found["name"]) or query["function"]
    return {"of": found["of"], "name": name, **stacks.document(), "hottest": hottest, "functions": functions}


async def _history(source: Source, query: Query) -> View:
    until = query["to"] or source.monitor.model.now or time.time()
    since = query["from"] or until - DAY_SECONDS
    if since >= until:
        raise UsageError(f"from = {since:.0f}: must be before to = {until:.0f}")
    found = await source.monitor.history(since, until)
    columns = zip(*found.points, strict=True) if found.points else ((),) * len(PointRow._fields)
    points = {name: list(column) for name, column in zip(PointRow._fields, columns, strict=True)}
    return {**view(found._replace(points=())), "points": points}


def _series(source: Source, query: Query) -> View:
    columns = source.monitor.model.series.columns(query["since"])
    return {name: columns[name] for name in ("at", *(query["name"] or NAMES))}


# -- the table


def _table(name: str, summary: str) -> ApiRoute:
    """Return the route of a list of rows of the last state."""

    def answered(source: Source, _query: Query) -> View:
        status = source.monitor.model.status
        return {name: [view(each) for each in getattr(status, name)], "total": getattr(status.totals, name)}

    return ApiRoute(f"/api/{name}", name, summary, {name: [LISTS[name]], "total": int}, answered)


def _newest(name: str, summary: str, row: type, most: int) -> ApiRoute:
    """Return the route of the model's decisions, incidents, or a log, the newest first."""

    def answered(source: Source, query: Query) -> View:
        model = source.monitor.model
        rows = model.logs[name] if name in LOGS else getattr(model, name)
        return {name: [view(each) for each in list(reversed(rows))[: query["limit"]]]}

    return ApiRoute(f"/api/{name}", name, summary, {name: [row]}, answered, (_limit(most),))


def _found_table(table: FoundTable) -> ApiRoute:
    """Return the route of a table that the scheduler is asked for."""
    parameter, purpose = table.parameter

    async def answered(source: Source, query: Query) -> View:
        found = await source.monitor.rows(table.name, query[parameter], query["limit"])
        return {table.name: [view(row) for row in found]}

    parameters = Parameter(parameter, purpose, _TEXT), _limit(table.most)
    return ApiRoute(f"/api/{table.name}", table.name, table.title, {table.name: [table.kind]}, answered, parameters)


def _number(name: str, text: str, kind: str, least: float, most: float, default: float) -> Parameter:
    return Parameter(name, text, {"type": kind, "minimum": least, "maximum": most, "default": default})


def _seconds(default: float) -> Parameter:
    text = "How far to look back from the scheduler's last state."
    return _number("seconds", text, "number", 1, MAX_TIMELINE_SECONDS, default)


def _limit(most: int) -> Parameter:
    return _number("limit", "How many, at most; the newest come first.", "integer", 1, most, 100)


_TEXT = {"type": "string"}
_STATES = "running, retrying, done, cancelled, in a search also ready, waiting, assigned, suspended"
_TASK_PARAMETERS = (
    Parameter("search", "A part of the id, function, client, worker, state or failure, in any case.", _TEXT),
    Parameter("state", f"{_STATES}, a failure's name, or failed for every failure.", _TEXT),
    *(Parameter(name, f"The {name}'s name.", _TEXT) for name in ("function", "worker", "client")),
    Parameter("failure", "The key of a group of failures.", _TEXT),
    _limit(MAX_TASKS_ANSWERED),
)
_SERIES_PARAMETERS = (
    Parameter("name", "Which series; all by default.", {"type": "array", "items": {**_TEXT, "enum": list(NAMES)}}),
    _number("since", "A time in unix seconds: older points are left out.", "number", 0, 1e15, 0.0),
)
_HISTORY_TIMES = (
    _number("from", "From this time on (unix seconds); 0: a day before `to`.", "number", 0, 1e15, 0.0),
    _number("to", "Up to this time (unix seconds); 0: until now.", "number", 0, 1e15, 0.0),
)
_TIMES = (
    _seconds(300),
    _number("since", "From this time on (unix seconds), instead of `seconds`.", "number", 0, 1e15, 0.0),
    _number("until", "Up to this time (unix seconds); 0: until now.", "number", 0, 1e15, 0.0),
    _number("resolution", "Tasks of fewer seconds are in blocks.", "number", 0, MAX_TIMELINE_SECONDS, 0.0),
)
_LANE = {
    "worker": str,
    "lane": int,
    "manager": str,
    "gone": bool,
    "bars": [(float, float, str, int, int, float, int, float)],
    "blocks": [(float, float, int, float, int, float)],
}
_TIMELINE = {
    "at": float,
    "since": float,
    "until": float,
    "oldest": float | None,
    "functions": [str],
    "states": [str],
    "lanes": [_LANE],
}
_SERIES = {"at": [float], **{f"{name}?": [float] for name in NAMES}}
_DOWNLOAD = {"Content-Disposition": 'attachment; filename="scaler-trace.json"'}

ROUTES: tuple[ApiRoute, ...] = (
    ApiRoute(
        "/api/status",
        "status",
        "Counts and sums, and the connection to the scheduler",
        {"connection": ConnectionRow, "status": "Status"},
        lambda source, _query: {"connection": view(source.connection()), "status": status_view(source.monitor.model)},
    ),
    _table("workers", "Workers with their processors"),
    _table("managers", "Worker managers and their units"),
    _table("clients", "Clients and their tasks"),
    _table("functions", "Functions and their tasks"),
    _table("calls", "Calls of clients: maps, graphs and single submits, and how far they are"),
    _table("costs", "What units have cost by function, client and key, and what idle slots have"),
    _table("scaling", "Worker managers: why they have their units, when the work ends, and what one more would do"),
    _table("waiting", "Waiting tasks by function and needs, and why they wait"),
    _table("stores", "Stores of objects: the object storage, and those of hosts"),
    _table("pairs", "What went from store to store, and which ones cannot reach each other"),
    _table("links", "Connections to the scheduler, those with the longest round trips"),
    _table("objects", "The largest objects, what made them, and which stores have them"),
    ApiRoute("/api/tasks", "tasks", "The latest tasks", {"tasks": [TaskRow], "kept": int}, _tasks, _TASK_PARAMETERS),
    ApiRoute("/api/tasks/{id}", "task", "One task", {"task": "WholeTask"}, _task),
    ApiRoute(
        "/api/tasks/{id}/explain", "explain", "Why a task waits, or how it ended", {"id": str, "text": str}, _explain
    ),
    ApiRoute(
        "/api/tasks/{id}/log",
        "log",
        "What a task has printed",
        {"id": str, "stdout": str, "stderr": str, "cut": int},
        _log,
    ),
    ApiRoute(
        "/api/failures",
        "failures",
        "The last failed tasks by function and message",
        {"failures": [FailureRow], "kept": int},
        _failures,
        (_limit(MAX_FAILURES),),
    ),
    ApiRoute(
        "/api/network",
        "network",
        "Whether the network or the cluster makes tasks wait",
        {"network": NetworkRow},
        lambda source, _query: {"network": view(network(source.monitor.model.status))},
    ),
    *map(_found_table, FOUND.values()),
    ApiRoute(
        "/api/profile",
        "profile",
        "Which code takes the time of a function or task",
        {
            "of": str,
            "name": str,
            "samples": int,
            "frames": [str],
            "stacks": [[int]],
            "hottest": [{"frame": str, "own_seconds": float, "total_seconds": float}],
            "functions": [{"name": str, "samples": int, "seconds": float, "hottest": str}],
        },
        _profile,
        (Parameter("function", "A function's name.", _TEXT), Parameter("task", "A task's id.", _TEXT)),
    ),
    ApiRoute("/api/findings", "findings", "What to change, with the evidence", {"findings": [FindingRow]}, _findings),
    ApiRoute(
        "/api/timeline",
        "timeline",
        "What ran on each lane of each worker",
        _TIMELINE,
        lambda source, query: timeline_view(source.monitor.model, **query),
        _TIMES,
    ),
    ApiRoute(
        "/api/history",
        "history",
        "What happened at a time, also in earlier runs",
        {
            "since": float,
            "until": float,
            "oldest": float,
            "left_out": int,
            "points": {name: [float] for name in PointRow._fields},
            "events": [EventRow],
            "failures": [FailureRow],
            "functions": [FunctionTimesRow],
        },
        _history,
        _HISTORY_TIMES,
    ),
    ApiRoute("/api/series", "series", "Figures over time, as columns", _SERIES, _series, _SERIES_PARAMETERS),
    _newest("decisions", "Decisions of the scaling policy", DecisionRow, MAX_DECISIONS),
    _newest("incidents", "Events worth an operator's attention", IncidentRow, MAX_INCIDENTS),
    *(_newest(name, log.title, log.kind, log.keep) for name, log in LOGS.items()),
    ApiRoute(
        "/api/trace",
        "trace",
        "The timeline for Chrome's and Perfetto's viewers",
        {"displayTimeUnit": str, "traceEvents": [{}]},
        lambda source, query: trace(source.monitor.model, query["seconds"]),
        (_seconds(MAX_TIMELINE_SECONDS),),
        _DOWNLOAD,
    ),
)
