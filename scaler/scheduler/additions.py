"""Extensions' additions to the cluster's status. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from scaler.net.connection import LinkFigures
from scaler.scheduler.core.state import Group


class Reader(NamedTuple):
    """The reader of a status. at: Unix seconds. sees: returns whether the reader may see the objects of a key.

    sees_all: whether the reader may see everything. seconds_today: seconds since local midnight. figures: returns
    measurements of a peer's connection. running: number of running tasks by group. storage: a
    `scaler.protocol.monitor_rows.StorageRow`.
    """

    at: float
    sees: Callable[[str], bool]
    sees_all: bool
    seconds_today: float
    figures: Callable[[bytes], LinkFigures]
    running: Mapping[Group, int] = {}
    storage: Any = None


class Additions(NamedTuple):
    """An extension's additions to the cluster's status.

    head: values by key. tables: whole tables as JSON, by name. columns: values by table, row id, and column. totals:
    counts by name. ranks: importance of workers by id, for tables that cannot show all workers.
    """

    head: Mapping[str, object] = {}
    tables: Mapping[str, str] = {}
    columns: Mapping[str, Mapping[str, Mapping[str, Any]]] = {}
    totals: Mapping[str, int] = {}
    ranks: Mapping[str, int] = {}


def additions_of(parts: Iterable[Any], reader: Reader) -> Additions:
    """Return the additions from all scheduler parts."""
    head, tables, totals, ranks = dict[str, object](), dict[str, str](), dict[str, int](), dict[str, int]()
    columns: defaultdict[str, defaultdict[str, dict[str, Any]]] = defaultdict(lambda: defaultdict(dict))
    for part in parts:
        added = part.add_to_status(reader)
        head |= added.head
        tables |= added.tables
        totals |= added.totals
        ranks |= added.ranks
        for table, rows in added.columns.items():
            for row, values in rows.items():
                columns[table][row] |= values
    return Additions(head, tables, columns, totals, ranks)
