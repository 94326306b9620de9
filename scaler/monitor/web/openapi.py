"""The OpenAPI document, made from the table of routes and from what they would answer for rows of defaults. Pure."""

from __future__ import annotations

from typing import Any

from scaler._version import __version__
from scaler.monitor.model import Model
from scaler.monitor.rows import (
    ClientRow,
    Decision,
    FunctionRow,
    Incident,
    ManagerRow,
    ProcessorRow,
    TaskRow,
    WorkerRow,
)
from scaler.monitor.series import NAMES
from scaler.monitor.web.api import ROUTES, ApiRoute
from scaler.monitor.web.query import Parameter
from scaler.monitor.web.views import (
    client_view,
    decision_view,
    function_view,
    incident_view,
    manager_view,
    status_view,
    task_view,
    timeline_view,
    whole_task_view,
    worker_view,
)

Schema = dict[str, Any]

_NULLABLE = {"desired": 0, "ended_at": 0.0, "age_seconds": 0.0, "oldest": 0.0}
"""Fields that may be null, with what else they are."""
_TEXTS = {"functions", "states"}
"""Fields of the timeline that are lists of texts."""
_BAR = [{"type": kind} for kind in ("number", "number", "string", "integer", "integer")]
"""Start, end, task, function and state of a bar in the timeline."""


def openapi(connection: dict[str, Any]) -> Schema:
    """Return the document. connection: an example of what is said about the connection to the scheduler."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Scaler",
            "version": __version__,
            "description": "What goes on in a cluster. Read-only. Times are unix seconds. Fields may be added.",
        },
        "paths": {route.path: {"get": _operation(route)} for route in ROUTES},
        "components": {"schemas": _schemas(connection)},
    }


def _operation(route: ApiRoute) -> Schema:
    parameters = [_parameter(parameter) for parameter in route.parameters]
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


def _parameter(parameter: Parameter) -> Schema:
    kinds = {"text": "string", "texts": "string", "count": "integer", "number": "number"}
    schema: Schema = {"type": kinds[parameter.kind]}
    if parameter.kind in ("count", "number"):
        schema |= {"minimum": parameter.least, "maximum": parameter.most}
    if parameter.choices:
        schema["enum"] = list(parameter.choices)
    if parameter.kind == "texts":
        schema = {"type": "array", "items": schema}
    elif parameter.default != "":
        schema["default"] = parameter.default
    return {
        "name": parameter.name,
        "in": "query",
        "required": False,
        "description": parameter.text,
        "schema": schema,
    }


def _content(schema: str) -> Schema:
    return {"application/json": {"schema": _reference(schema)}}


def _reference(schema: str) -> Schema:
    return {"$ref": f"#/components/schemas/{schema}"}


def _schemas(connection: dict[str, Any]) -> dict[str, Schema]:
    count, text, objects = {"type": "integer"}, {"type": "string"}, {"type": "array", "items": {"type": "object"}}
    rows = {
        "Connection": connection,
        "Status": status_view(Model()),
        "Worker": worker_view(WorkerRow(processors=(ProcessorRow(),))),
        "Manager": manager_view(ManagerRow()),
        "Client": client_view(ClientRow()),
        "Function": function_view(FunctionRow()),
        "Task": task_view(TaskRow("")),
        "WholeTask": whole_task_view(TaskRow("")),
        "Decision": decision_view(Decision()),
        "Incident": incident_view(Incident()),
        "Timeline": {**timeline_view(Model(), 300.0), "lanes": [{"worker": "", "manager": "", "gone": False}]},
    }
    schemas = {name: _schema_of(row) for name, row in rows.items()}
    timeline = schemas.pop("Timeline")
    timeline["properties"]["lanes"]["items"]["properties"]["bars"] = {
        "type": "array",
        "items": {"type": "array", "prefixItems": _BAR, "items": False},
    }
    return {
        **schemas,
        "Error": _object({"error": text}),
        "StatusAnswer": _object({"connection": _reference("Connection"), "status": _reference("Status")}),
        **{f"{name}sAnswer": _list_of(name, {"total": count}) for name in ("Worker", "Manager", "Client", "Function")},
        "TasksAnswer": _list_of("Task", {"kept": count}),
        "TaskAnswer": _object({"task": _reference("WholeTask")}),
        "ExplainAnswer": _object({"id": text, "text": text}),
        "LogAnswer": _object({"id": text, "stdout": text, "stderr": text, "cut": count}),
        "TimelineAnswer": timeline,
        "SeriesAnswer": _series(),
        "DecisionsAnswer": _list_of("Decision", {}),
        "IncidentsAnswer": _list_of("Incident", {}),
        "TraceAnswer": _object({"displayTimeUnit": text, "traceEvents": objects}),
    }


def _series() -> Schema:
    column = {"type": "array", "items": {"type": "number"}}
    return {"type": "object", "properties": dict.fromkeys(("at", *NAMES), column), "required": ["at"]}


def _list_of(name: str, more: dict[str, Schema]) -> Schema:
    return _object({f"{name.lower()}s": {"type": "array", "items": _reference(name)}, **more})


def _object(properties: dict[str, Schema]) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _schema_of(value: object, name: str = "") -> Schema:
    """Return the schema of an example. name: the field that it is the value of."""
    if name in _NULLABLE:
        kind = _schema_of(_NULLABLE[name])["type"]
        return {"type": [kind, "null"]}
    match value:
        case {} if not value:  # all of them are counts by name
            return {"type": "object", "additionalProperties": {"type": "integer"}}
        case bool():
            return {"type": "boolean"}
        case int():
            return {"type": "integer"}
        case float():
            return {"type": "number"}
        case str():
            return {"type": "string"}
        case dict():
            return _object({key: _schema_of(item, key) for key, item in value.items()})
        case list():
            items = {"type": "string"} if name in _TEXTS else _schema_of(value[0])
            return {"type": "array", "items": items}
        case _:
            raise TypeError(f"{name} has no type in JSON: {value!r}")
