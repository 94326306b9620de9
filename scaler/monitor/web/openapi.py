"""The OpenAPI document, made from the table of routes and the schema of rows. Pure."""

from __future__ import annotations

from typing import Any

from scaler._version import __version__
from scaler.monitor.rows import View, json_schema, object_schema, schema_of
from scaler.monitor.web.api import ROUTES, ApiRoute
from scaler.protocol.monitor_rows import (
    ClientRow,
    ConnectionRow,
    DecisionRow,
    FunctionRow,
    IncidentRow,
    ManagerRow,
    Status,
    TaskRow,
    WorkerRow,
)

_ROWS = (ConnectionRow, WorkerRow, ManagerRow, ClientRow, FunctionRow, TaskRow, DecisionRow, IncidentRow)
_STATUS_SUMS = {"tasks_per_second": float, "failed_per_second": float, "tasks_left_out": int}
"""What a status has besides its columns."""


def openapi() -> View:
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Scaler",
            "version": __version__,
            "description": "The state of a cluster. Read-only. Times are unix seconds. Fields may be added.",
        },
        "paths": {route.path: {"get": _operation(route)} for route in ROUTES},
        "components": {"schemas": _schemas()},
    }


def _operation(route: ApiRoute) -> View:
    parameters: list[View] = [
        {"name": each.name, "in": "query", "required": False, "description": each.text, "schema": dict(each.schema)}
        for each in route.parameters
    ]
    if route.of_a_task:
        schema = {"type": "string", "pattern": "^[0-9A-Fa-f]{32}$"}
        text = "The task's id, as future.task_id shows it."
        parameters = [{"name": "id", "in": "path", "required": True, "description": text, "schema": schema}]
    return {
        "summary": route.summary,
        "operationId": route.answer.__name__.strip("_") if route.of_a_task else route.path.removeprefix("/api/"),
        "parameters": parameters,
        "responses": {
            "200": {"description": route.summary, "content": _content(route.schema)},
            "default": {"description": "What is wrong, and what to do about it", "content": _content("Error")},
        },
    }


def _content(name: str) -> View:
    return {"application/json": {"schema": _schema(name)}}


def _schemas() -> dict[str, View]:
    status, sums = json_schema(Status), _schema(_STATUS_SUMS)
    return {
        **{_name(row): json_schema(row) for row in _ROWS},
        "Status": object_schema(status["properties"] | sums["properties"]),
        "WholeTask": json_schema(TaskRow, whole=True),
        "Error": _schema({"error": str}),
        **{route.schema: _schema(route.parts) for route in ROUTES},
    }


def _name(row: type) -> str:
    return row.__name__.removesuffix("Row")


def _schema(part: Any) -> View:
    """Return the schema of a part of an answer; see `ApiRoute`."""
    match part:
        case str():
            return {"$ref": f"#/components/schemas/{part}"}
        case {}:
            properties = {name.strip("?"): _schema(each) for name, each in part.items()}
            return object_schema(properties) | {"required": [name for name in part if name in properties]}
        case [items]:
            return {"type": "array", "items": _schema(items)}
        case (*items,):
            return {"type": "array", "prefixItems": [_schema(each) for each in items], "items": False}
        case _:
            return _schema(_name(part)) if part in _ROWS else schema_of(part)
