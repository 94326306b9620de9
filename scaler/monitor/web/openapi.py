"""The OpenAPI document, generated from the table of routes and the schema of rows. Pure."""

from __future__ import annotations

from typing import Any

from scaler._version import __version__
from scaler.monitor.rows import View, json_schema, object_schema, schema_of
from scaler.monitor.web.api import ROUTES
from scaler.monitor.web.routes import ApiRoute
from scaler.protocol.monitor_rows import Status, TaskRow

_STATUS_SUMS = {"tasks_per_second": float, "failed_per_second": float, "tasks_left_out": int}
"""Values of a status in addition to its columns."""


def openapi() -> View:
    status = json_schema(Status)["properties"] | {name: schema_of(kind) for name, kind in _STATUS_SUMS.items()}
    schemas = {
        "Status": object_schema(status),
        "WholeTask": json_schema(TaskRow, whole=True),
        "Error": object_schema({"error": schema_of(str)}),
    }
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
            "default": {"description": "What is wrong, and what to do about it", "content": _content("Error")},
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
