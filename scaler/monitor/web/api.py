"""The routes of `/api`, including routes from extensions, and the OpenAPI document, which derives from the routes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Any, cast

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from scaler._version import __version__
from scaler.errors import RefusedError, UnreachableError, UsageError
from scaler.ids import task_id_of
from scaler.monitor.cluster_rows import ConnectionRow, FailureRow, Status, TaskRow
from scaler.monitor.data_rows import NetworkRow
from scaler.monitor.findings import network
from scaler.monitor.history_rows import EventRow, FunctionTimesRow, PointRow
from scaler.monitor.model import NAMES, Model
from scaler.monitor.rows import View, json_schema, object_schema, schema_of, view
from scaler.monitor.tables import TABLES, TEXT, Parameter, Table, number, values_of
from scaler.monitor.web.routes import ApiRoute, Query, Source, UnknownTaskError, answer, refusal, status_view
from scaler.plugins import known_extensions, load
from scaler.stack_profile import StackProfile, read_document
from scaler.texts import escaped_lines, readable

MAX_FRAMES = 100
DAY_SECONDS = 86_400.0


def api_routes(source: Source) -> list[Route]:
    return [Route(route.path, _endpoint(route, source)) for route in ROUTES]


def _endpoint(route: ApiRoute, source: Source) -> Callable[[Request], Awaitable[Response]]:
    async def respond(request: Request) -> Response:
        try:
            given = request.query_params
            query = values_of(route.parameters, {name: given.getlist(name) for name in given})
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


async def _task(source: Source, query: Query) -> View:
    task = source.monitor.model.task(query["id"])
    if task is None and source.monitor.connected:
        task = next(iter(await source.monitor.find(query["id"])), None)
    if task is None:
        raise UnknownTaskError(f"no task {query['id']} is known: it ended too long ago or was never submitted")
    if task.failed and not task.traceback:
        with contextlib.suppress(UnreachableError):
            traceback = (await source.monitor.log(query["id"])).traceback
            task = task._replace(traceback=readable(traceback))
    return {"task": view(task, whole=True)}


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


def _table(table: Table) -> ApiRoute:
    async def answered(source: Source, query: Query) -> View:
        rows = await table.rows(source.monitor, query)
        return {table.name: [table.view(row) for row in rows], **table.counts(source.monitor.model)}

    parts = {table.name: [table.kind], **dict.fromkeys(table.counts(Model()), int)}
    return ApiRoute(f"/api/{table.name}", table.title, parts, answered, table.parameters)


_SERIES_PARAMETERS = (
    Parameter("name", "Which series; all by default.", {"type": "array", "items": {**TEXT, "enum": list(NAMES)}}),
    number("since", "Unix seconds: omit older points.", "number", 0, 1e15, 0.0),
)
_HISTORY_TIMES = (
    number("from", "Start time (Unix seconds); 0: one day before `to`.", "number", 0, 1e15, 0.0),
    number("to", "End time (Unix seconds); 0: now.", "number", 0, 1e15, 0.0),
)
_SERIES = {"at": [float], **{f"{name}?": [float] for name in NAMES}}

ROUTES: tuple[ApiRoute, ...] = (
    ApiRoute(
        "/api/status",
        "Totals and the connection to the scheduler",
        {"connection": ConnectionRow, "status": "Status"},
        lambda source, _query: {"connection": view(source.connection()), "status": status_view(source.monitor.model)},
    ),
    *map(_table, TABLES.values()),
    ApiRoute("/api/tasks/{id}", "One task", {"task": "WholeTask"}, _task),
    ApiRoute("/api/tasks/{id}/explain", "Why a task waits, or how it ended", {"id": str, "text": str}, _explain),
    ApiRoute("/api/tasks/{id}/log", "A task's output", {"id": str, "stdout": str, "stderr": str, "cut": int}, _log),
    ApiRoute(
        "/api/network",
        "Whether tasks wait for the network or the cluster",
        {"network": NetworkRow},
        lambda source, _query: {"network": view(network(source.monitor.model.status))},
    ),
    ApiRoute(
        "/api/profile",
        "Where a function or task spends its time",
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
        (Parameter("function", "A function's name.", TEXT), Parameter("task", "A task's id.", TEXT)),
    ),
    ApiRoute(
        "/api/history",
        "Events at a time, including earlier runs",
        {
            **dict.fromkeys(("since", "until", "oldest"), float),
            "left_out": int,
            "points": {name: [float] for name in PointRow._fields},
            "events": [EventRow],
            "failures": [FailureRow],
            "functions": [FunctionTimesRow],
        },
        _history,
        _HISTORY_TIMES,
    ),
    ApiRoute("/api/series", "Figures over time, in columns", _SERIES, _series, _SERIES_PARAMETERS),
    *(route for each in known_extensions() if each.routes for route in cast("tuple[ApiRoute, ...]", load(each.routes))),
)


_STATUS_SUMS = {"tasks_per_second": float, "failed_per_second": float, "tasks_left_out": int}
"""Values of a status in addition to its columns."""


def openapi() -> View:
    status = json_schema(Status)["properties"] | {name: schema_of(kind) for name, kind in _STATUS_SUMS.items()}
    error = object_schema({"error": schema_of(str)})
    schemas = {"Status": object_schema(status), "WholeTask": json_schema(TaskRow, whole=True), "Error": error}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Scaler",
            "version": __version__,
            "description": "The state of a cluster. Read-only. Times are Unix seconds. Fields may be added.",
        },
        "paths": {route.path: {"get": _operation(route, schemas)} for route in ROUTES},
        "components": {"schemas": schemas},
    }


def _operation(route: ApiRoute, schemas: dict[str, View]) -> View:
    parameters: list[View] = [
        {"name": each.name, "in": "query", "required": False, "description": each.text, "schema": dict(each.schema)}
        for each in route.parameters
    ]
    if route.of_a_task:
        schema = {"type": "string", "pattern": "^[0-9A-Fa-f]{32}$"}
        text = "The task's id, as future.task_id shows it."
        parameters = [{"name": "id", "in": "path", "required": True, "description": text, "schema": schema}]
    name = f"{route.name.capitalize()}Answer"
    schemas[name] = _schema(route.parts, schemas)
    return {
        "summary": route.summary,
        "operationId": route.name,
        "parameters": parameters,
        "responses": {
            "200": {"description": route.summary, "content": _content(name)},
            "default": {"description": "The error, and how to fix it", "content": _content("Error")},
        },
    }


def _content(name: str) -> View:
    return {"application/json": {"schema": _reference(name)}}


def _reference(name: str) -> View:
    return {"$ref": f"#/components/schemas/{name}"}


def _schema(part: Any, schemas: dict[str, View]) -> View:
    """Return the schema of a part of an answer (see `ApiRoute`), and add the schemas of its rows."""
    match part:
        case str():
            return _reference(part)
        case {}:
            properties = {name.strip("?"): _schema(each, schemas) for name, each in part.items()}
            return object_schema(properties) | {"required": [name for name in part if name in properties]}
        case [items]:
            return {"type": "array", "items": _schema(items, schemas)}
        case (*items,):
            return {"type": "array", "prefixItems": [_schema(each, schemas) for each in items], "items": False}
        case type(__name__=name) if name.endswith("Row"):
            name = name.removesuffix("Row")
            schemas[name] = json_schema(part)
            return _reference(name)
        case _:
            return schema_of(part)
