"""The tables of a cluster. The API, its OpenAPI document, `scaler show`, and `client.table` derive from each table."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from scaler.errors import UsageError, nearest
from scaler.monitor.cluster_rows import FindingRow, SpendingRow, TaskRow
from scaler.monitor.data_rows import ObjectRow
from scaler.monitor.findings import findings
from scaler.monitor.model import Model, task_keys
from scaler.monitor.rows import FOUND, LISTS, View, view
from scaler.plugins import FoundTable, known_extensions, load

if TYPE_CHECKING:
    from scaler.monitor.connection import Asking

MAX_TASKS_ANSWERED = 1000
MAX_OBJECTS = 1_000
MAX_LISTED_TEXT = 300
MAX_QUERY_TEXT = 1000
TEXT = {"type": "string"}


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a question, with the JSON schema of its values. Array parameters may be repeated."""

    name: str
    text: str
    schema: Mapping[str, Any]

    def value(self, texts: Sequence[str]) -> Any:
        """Parse the given texts. Raises UsageError."""
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


def number(name: str, text: str, kind: str, least: float, most: float, default: float) -> Parameter:
    return Parameter(name, text, {"type": kind, "minimum": least, "maximum": most, "default": default})


def limit(most: int, default: int = 100, order: str = "the newest come first") -> Parameter:
    return number("limit", f"Maximum number of rows; {order}.", "integer", 1, most, default)


def values_of(parameters: Sequence[Parameter], given: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Parse all parameters. Raises UsageError for invalid values and unknown names."""
    known = [parameter.name for parameter in parameters]
    for name in given:
        if name not in known:
            raise UsageError(f"unknown parameter {name!r}{nearest(name, known) if known else '; there are none here'}")
    return {parameter.name: parameter.value(given.get(parameter.name, ())) for parameter in parameters}


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a cluster. read: returns the rows for the parameter values, or an awaitable of them. count: name and
    source of the number next to the rows in the API's answer. Rows with a property `line` are records: `scaler show`
    prints their lines, newest last."""

    name: str
    title: str
    kind: type[NamedTuple]
    read: Callable[..., Iterable[Any] | Awaitable[Iterable[Any]]]
    parameters: tuple[Parameter, ...] = ()
    count: tuple[str, Callable[[Model], int]] | None = None
    view: Callable[[Any], View] = view

    async def rows(self, asking: Asking, values: Mapping[str, Any]) -> list[Any]:
        """Return the rows. Raises RefusedError, and UnreachableError if the scheduler does not answer."""
        found = self.read(asking, **values)
        return [*(await found if isinstance(found, Awaitable) else found)]

    def counts(self, model: Model) -> dict[str, int]:
        return {self.count[0]: self.count[1](model)} if self.count else {}


def task_view(task: TaskRow) -> View:
    return {**view(task), "text": task.text[:MAX_LISTED_TEXT]}


async def _tasks(asking: Asking, search: str, **query: Any) -> list[TaskRow]:
    found = await asking.find(search) if search and asking.connected else []
    return asking.model.tasks(search=search, found=found, **query)


async def _objects(asking: Asking, limit: int) -> Sequence[ObjectRow]:
    known = asking.model.status.objects
    return known[:limit] if limit <= len(known) or not asking.connected else await asking.objects(limit)


def _listed(name: str, title: str, **more: Any) -> Table:
    more = {"read": lambda asking: getattr(asking.model.status, name), **more}
    return Table(name, title, LISTS[name], count=("total", lambda model: getattr(model.status.totals, name)), **more)


def _found(found: FoundTable) -> Table:
    def read(asking: Asking, limit: int, **search: str) -> Awaitable[list[Any]]:
        return asking.rows(found.name, search[found.parameter[0]], limit)

    parameters = Parameter(*found.parameter, TEXT), limit(found.most)
    return Table(found.name, found.title, found.kind, read, parameters)


_STATES = "running, retrying, done, cancelled, in a search also ready, waiting, assigned, suspended"
_TASK_PARAMETERS = (
    Parameter("search", "Text to find in the id, function, client, worker, state, or failure; ignores case.", TEXT),
    Parameter("state", f"{_STATES}, a failure's name, or failed for every failure.", TEXT),
    *(Parameter(name, key.help, TEXT) for name, key in task_keys().items()),
    limit(MAX_TASKS_ANSWERED),
)
_DECLARED = (
    _listed("workers", "Workers with their processors"),
    _listed("managers", "Worker managers and their units"),
    _listed("clients", "Clients and their tasks"),
    _listed("functions", "Functions and their tasks"),
    _listed("calls", "Clients' calls (maps, graphs, single submits) and their progress"),
    Table("costs", "Costs of units, and spending limits", SpendingRow, lambda asking: [asking.model.status.spending]),
    _listed("waiting", "Waiting tasks by function and needs, with the reason"),
    _listed("stores", "Object stores: the object storage and the hosts' stores"),
    _listed("pairs", "Traffic between stores, and pairs that cannot reach each other"),
    _listed("links", "Connections to the scheduler with the longest round trips"),
    _listed(
        "objects",
        "The largest objects, with their origin and location",
        read=_objects,
        parameters=(limit(MAX_OBJECTS, 50, "the largest come first"),),
    ),
    Table(
        "tasks", "The latest tasks", TaskRow, _tasks, _TASK_PARAMETERS, ("kept", attrgetter("task_count")), task_view
    ),
    Table("findings", "Suggested changes, with evidence", FindingRow, lambda asking: findings(asking.model)),
    *map(_found, FOUND.values()),
)
ADDED = [table for each in known_extensions() if each.tables for table in cast("tuple[Table, ...]", load(each.tables))]
"""Tables that extensions derive from the model."""
TABLES: Mapping[str, Table] = {table.name: table for table in (*_DECLARED, *ADDED)}


def table_named(name: str) -> Table:
    if name not in TABLES:
        raise UsageError(f"there is no table {name!r}; tables: {', '.join(TABLES)}")
    return TABLES[name]
