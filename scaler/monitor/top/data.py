"""Tables of stores, transfers, units, and costs, as text. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from scaler.grammar import counted
from scaler.monitor.network import network
from scaler.monitor.rows import columns
from scaler.monitor.top import formats
from scaler.protocol.data_rows import ObjectRow, PairRow, StoreRow
from scaler.protocol.monitor_rows import FunctionRow, ManagerRow, SpendingRow, Status

_SPACE = "  "
MAX_OBJECTS = MAX_FUNCTIONS = 20
MAX_LAST_CELLS = 40
"""Width of the last column that columns of higher ranks leave."""
FUNCTION_COLUMNS = (
    "name",
    "seconds_total",
    "p50_seconds",
    "p95_seconds",
    "max_seconds",
    "trend_percent",
    "memory_peak_bytes",
    "memory_mean_bytes",
)


def data_lines(status: Status, width: int | None) -> list[str]:
    """Return lines about stores, unreachable pairs, transfers, the largest objects, and functions."""
    total = f"{counted(status.totals.stores, 'store')}, {formats.size(status.totals.moved_bytes)} moved between them"
    stores = sorted(status.stores, key=lambda row: -row.bytes)
    lines = [total, f"network: {network(status).text}", "", *table_of(StoreRow, stores, width)]
    if apart := [row for row in status.pairs if row.unreachable]:
        text = f"no connection between {counted(status.totals.unreachable, 'pair')} of hosts; using the object storage"
        lines += ["", text, *(f"  {row.source} -> {row.target}" for row in apart)]
    if moved := sorted((row for row in status.pairs if row.bytes), key=lambda row: -row.bytes):
        lines += ["", *table_of(PairRow, moved, width)]
    if status.objects:
        lines += ["", *table_of(ObjectRow, status.objects[:MAX_OBJECTS], width)]
    if functions := function_lines(status, width):
        lines += ["", *functions]
    return [formats.cut(line, width) for line in lines]


def units_lines(status: Status, width: int | None) -> list[str]:
    """Return the worker managers with the reasons for their units, then the costs. width: None for no limit."""
    managers = table_of(ManagerRow, status.managers, width) if status.managers else ["no worker manager is connected"]
    return [*managers, "", *table_of(SpendingRow, [status.spending], width)]


def function_lines(status: Status, width: int | None) -> list[str]:
    known = sorted((row for row in status.functions if row.seconds_total), key=lambda row: -row.seconds_total)
    return table_of(FunctionRow, known[:MAX_FUNCTIONS], width, FUNCTION_COLUMNS) if known else []


def table_of(
    kind: type[NamedTuple], rows: Sequence[NamedTuple], width: int | None, names: Collection[str] = ()
) -> list[str]:
    """Return a heading and a line for each row. names: columns, or all.

    Omits columns of higher ranks that do not fit in the width, and cuts long texts of the last column.
    """
    shown = [
        (name, column) for name, (column, _) in columns(kind).items() if column.title and (not names or name in names)
    ]
    for rank in (3, 2, 1):
        chosen = [(name, column) for name, column in shown if column.rank <= rank]
        cells = [
            _aligned([column.title.lower(), *(_text(column, getattr(row, name)) for row in rows)], column.unit)
            for name, column in chosen
        ]
        *fixed, last = (formats.cell_len(head) for head, *_ in cells)
        if width is None or sum(fixed) + len(_SPACE) * len(fixed) + min(last, MAX_LAST_CELLS) <= width:
            break
    return [formats.cut(_SPACE.join(parts).rstrip(), width) for parts in zip(*cells, strict=True)]


def _text(column: Any, value: Any) -> str:
    return (
        ""
        if value is None or (column.zero_is_none and not value)
        else formats.safe(formats.FORMATS[column.unit](value))
    )


def _aligned(texts: Iterable[str], unit: str) -> list[str]:
    texts = list(texts)
    widest = max(map(formats.cell_len, texts))
    return [(formats.left if unit == "text" else formats.right)(text, widest) for text in texts]
