"""Decodes rows from JSON by their schema, and derives views and JSON schemas from it. Pure.

Missing and mistyped values get the default and unknown values are ignored, because schedulers differ in version."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache, partial
from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from scaler.monitor.cluster_rows import ProcessorRow, SpendingRow, Status, TaskRow
from scaler.monitor.columns import Column
from scaler.monitor.history_rows import FunctionTimesRow
from scaler.plugins import FoundTable, known_extensions

Document = Mapping[str, Any]
View = dict[str, Any]

MAX_NUMBER = 1e30
"""Larger numbers are invalid."""
DIGITS = 3
"""Decimals of volatile numbers in views."""


R = TypeVar("R", bound=NamedTuple)

LISTS: Mapping[str, type[NamedTuple]] = {
    name: get_args(hint)[0] for name, hint in get_type_hints(Status).items() if get_origin(hint) is tuple
}
"""Row type of each list in a `Status`."""
KEYS = {name: "id" if "id" in kind._fields else "name" for name, kind in LISTS.items()}
"""Key column of each list."""

NOTES = (
    FoundTable("decisions", "Decisions of the scaling policy", "scaler.monitor.cluster_rows:DecisionRow", 500),
    FoundTable("incidents", "Events that need an operator's attention", "scaler.monitor.cluster_rows:IncidentRow", 500),
)
FOUND: Mapping[str, FoundTable] = {
    table.name: table for table in (*NOTES, *(each for extension in known_extensions() for each in extension.found))
}
"""Tables that are requested from the scheduler, by name. `NOTES` needs no extension."""


@cache
def columns(kind: type[NamedTuple]) -> Mapping[str, tuple[Column, Any]]:
    """Return the columns of a row type with their value types, by name, in display order."""
    hints = get_type_hints(kind, include_extras=True)
    found = {name: _column(hint) for name, hint in hints.items()}
    for name, member in vars(kind).items():
        if isinstance(member, property):
            hint = get_type_hints(member.fget, include_extras=True)["return"]
            if get_origin(hint) is Annotated:
                found[name] = _column(hint)
    names = list(found)

    def depth(name: str) -> int:
        after = found[name][0].after
        return 1 + depth(after) if after else 0

    for name in sorted(found, key=depth):
        column, _ = found[name]
        if column.after:
            names.remove(name)
            names.insert(names.index(column.after) + 1, name)
    return {name: found[name] for name in names if not found[name][0].internal}


def _column(hint: Any) -> tuple[Column, Any]:
    return (hint.__metadata__[0], hint.__origin__) if get_origin(hint) is Annotated else (Column(), hint)


def natural(text: str) -> list[str | int]:
    """Return a sort key that orders numbers in text by value: cloud-2 before cloud-10."""
    parts: list[str | int] = [*re.split(r"(\d+)", text)]
    parts[1::2] = map(int, parts[1::2])
    return parts


# -- decoding

MALFORMED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Exceptions raised while reading an invalid document."""


def decode(kind: type[R], values: object) -> R:
    known = values if isinstance(values, dict) else {}
    return kind._make(
        default if (value := take(known.get(name))) is None else value for name, default, take in _fields(kind)
    )


def decode_list(kind: type[R], table: object) -> tuple[R, ...]:
    return tuple(decode(kind, each) for each in objects(table))


def objects(table: object) -> list[Any]:
    """Return the rows of a table as JSON objects, and lists of objects unchanged. Skips malformed rows."""
    if isinstance(table, list):
        return table
    columns, rows = (table.get("columns"), table.get("rows")) if isinstance(table, dict) else (None, None)
    if not (isinstance(columns, list) and isinstance(rows, list)):
        return []
    inner = {each[0]: each[1] for each in columns if isinstance(each, list)}
    names = [each[0] if isinstance(each, list) else each for each in columns]
    rows = [values for values in rows if isinstance(values, list)]
    found = [dict(zip(names, values, strict=True)) for values in rows if len(values) == len(names)]
    for name, columns in inner.items():
        for each in found:
            each[name] = objects({"columns": columns, "rows": each[name]})
    return found


def decode_status(document: Document) -> Status:
    messages = document.get("messages")
    return decode(Status, {**document, **messages} if isinstance(messages, dict) else document)


@cache
def _fields(kind: type[NamedTuple]) -> tuple[tuple[str, Any, Callable[[Any], Any]], ...]:
    hints = get_type_hints(kind)
    return tuple((name, default, _decoder(hints[name])) for name, default in kind._field_defaults.items())


def _decoder(hint: Any) -> Callable[[Any], Any]:
    """Return a function that converts a JSON value to this type, and an unsuitable value to None."""
    kind = _kind_of(hint)
    if kind is tuple:
        return partial(decode_list, get_args(hint)[0])
    if kind is Mapping:
        return _counts
    if kind is float:
        return _finite
    if kind in (bool, str):
        return lambda value: value if isinstance(value, kind) else None
    if kind is int:
        return lambda value: value if isinstance(value, int) and not isinstance(value, bool) else None
    return partial(decode, kind)


def _kind_of(hint: Any) -> Any:
    if isinstance(hint, UnionType):
        return next(each for each in get_args(hint) if each is not NoneType)
    return get_origin(hint) or hint


def _counts(value: object) -> dict[str, int] | None:
    if not isinstance(value, dict):
        return None
    return {key: count for key, count in value.items() if isinstance(count, int) and not isinstance(count, bool)}


def _finite(value: object) -> float | None:
    """Return a finite number, or None. JSON has no NaN, and larger numbers would overflow sums."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if -MAX_NUMBER < value < MAX_NUMBER else None


# -- views


def view(row: NamedTuple, *, whole: bool = False) -> View:
    """Return a row as a JSON object of its columns. whole: include columns that lists omit."""
    return {
        name: shown(getattr(row, name)) if shown else getattr(row, name) for name, shown in _viewed(type(row), whole)
    }


@cache
def _viewed(kind: type[NamedTuple], whole: bool) -> tuple[tuple[str, Callable[[Any], Any] | None], ...]:
    return tuple(
        (name, _viewer(column, hint)) for name, (column, hint) in columns(kind).items() if whole or not column.whole
    )


def _viewer(column: Column, hint: Any) -> Callable[[Any], Any] | None:
    kind = _kind_of(hint)
    if column.volatile:
        return lambda value: round(value, DIGITS) if isinstance(value, float) else value
    if kind is tuple:
        return lambda rows: [view(row) for row in rows]
    return None if kind in (bool, int, float, str, Mapping) else view


# -- schemas


def json_schema(kind: type[NamedTuple], *, whole: bool = False) -> View:
    shown = {name: columns(kind)[name] for name, _ in _viewed(kind, whole)}
    properties = {
        name: schema_of(hint) | ({"description": column.help} if column.help else {})
        for name, (column, hint) in shown.items()
    }
    return object_schema(properties)


def object_schema(properties: View) -> View:
    return {"type": "object", "properties": properties, "required": list(properties)}


def schema_of(hint: Any) -> View:
    kind = _kind_of(hint)
    if kind is tuple:
        return {"type": "array", "items": json_schema(get_args(hint)[0])}
    if kind is Mapping:  # counts by name
        return {"type": "object", "additionalProperties": {"type": "integer"}}
    name = {bool: "boolean", int: "integer", float: "number", str: "string"}.get(kind)
    if name is None:
        return json_schema(kind)
    return {"type": [name, "null"] if isinstance(hint, UnionType) else name}


def page_schema(answered: Mapping[str, type[NamedTuple]]) -> View:
    """Return the columns of the page's tables, by row type. answered: row types of extensions' tables."""
    own = {"tasks": TaskRow, "processors": ProcessorRow, "times": FunctionTimesRow, "costs": SpendingRow}
    asked = {name: table.kind for name, table in FOUND.items()}
    return {
        kind: [
            {"name": name, "title": column.title, "unit": column.unit, "rank": column.rank, "help": column.help}
            | ({"zeroIsNone": True} if column.zero_is_none else {})
            for name, (column, _) in columns(row).items()
            if column.title
        ]
        for kind, row in {**own, **asked, **LISTS, **answered}.items()
    }
