"""Tables as text. Workers have an order, a filter, and a selection of columns by width. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

from scaler.grammar import counted
from scaler.monitor.cluster_rows import FunctionRow, ManagerRow, SpendingRow, Status, WorkerRow
from scaler.monitor.columns import Column, Top
from scaler.monitor.data_rows import ObjectRow, PairRow, StoreRow
from scaler.monitor.findings import network
from scaler.monitor.rows import columns, natural
from scaler.monitor.top import formats

SPACE = " "
WIDEST = 60
"""Maximum width of a column in a table with a width limit."""


@dataclass(frozen=True, slots=True, eq=False)
class TableColumn:
    name: str
    top: Top
    schema: Column

    @property
    def title(self) -> str:
        return self.top.title

    @property
    def is_text(self) -> bool:
        """Text columns are left-aligned, get the spare width, and sort from A to Z. Figures sort from the largest."""
        return self.schema.unit == "text"


_SHOWN = [TableColumn(name, column.top, column) for name, (column, _) in columns(WorkerRow).items() if column.top]
COLUMNS = tuple(sorted(_SHOWN, key=lambda column: column.top.order))
BY_TITLE: Mapping[str, TableColumn] = {column.title: column for column in COLUMNS}
BY_KEY: Mapping[str, TableColumn] = {column.top.key: column for column in COLUMNS if column.top.key}


@dataclass(frozen=True, slots=True)
class Sorting:
    """The sorted column. reverse: whether its usual order is reversed."""

    column: TableColumn = BY_TITLE["cpu"]
    reverse: bool = False

    def by(self, column: TableColumn) -> Sorting:
        """Return the order for a chosen column. Choosing the current column again reverses the order."""
        return Sorting(column, not self.reverse) if column is self.column else Sorting(column)

    def step(self, count: int) -> Sorting:
        return Sorting(COLUMNS[(COLUMNS.index(self.column) + count) % len(COLUMNS)])

    @property
    def description(self) -> str:
        if self.column.is_text:
            return f"{self.column.title} {'Z to A' if self.reverse else 'A to Z'}"
        return f"{self.column.title} {'lowest' if self.reverse else 'highest'} first"


def sort(workers: Iterable[WorkerRow], sorting: Sorting) -> list[WorkerRow]:
    """Return the workers in order. Ties are sorted by name in both directions, with cloud-2 before cloud-10."""
    by = attrgetter(sorting.column.name)
    named = sorted(workers, key=lambda row: (natural(row.name), row.id))
    key = (lambda row: natural(str(by(row)))) if sorting.column.is_text else by
    return sorted(named, key=key, reverse=sorting.column.is_text == sorting.reverse)


def matching(workers: Iterable[WorkerRow], wanted: str) -> list[WorkerRow]:
    """Return the workers that match a case-insensitive text in any name: worker, function, manager, and so on."""
    text = wanted.casefold().strip()
    return [row for row in workers if not text or text in _searched(row)]


def table(rows: Sequence[WorkerRow], sorting: Sorting, width: int | None) -> list[str]:
    """Return a heading and a line for each worker. width: width of the terminal, None for no cutting."""
    titles = {column: f"[{column.title}]" if column is sorting.column else column.title for column in COLUMNS}
    least = {column: max(column.top.width, len(title)) for column, title in titles.items()}
    if not any(row.state for row in rows) and sorting.column.title != "state":
        del least[BY_TITLE["state"]]
    chosen = tuple(least) if width is None else _chosen(least, sorting, width)
    cells = {column: [_text(column.schema, getattr(row, column.name)) for row in rows] for column in chosen}
    needed = {column: max(least[column], *map(formats.cell_len, texts), 0) for column, texts in cells.items()}
    widths = needed if width is None else _widths([(column, least[column]) for column in chosen], needed, width)
    aligned = (_aligned([titles[each], *texts], each.schema.unit, widths[each]) for each, texts in cells.items())
    return [*map(SPACE.join, zip(*aligned, strict=True))]


def _chosen(least: Mapping[TableColumn, int], sorting: Sorting, width: int) -> tuple[TableColumn, ...]:
    chosen: set[TableColumn] = set()
    space = width + len(SPACE)
    for column in sorted(least, key=lambda each: (each.top.worth > 0, each is not sorting.column, each.top.worth)):
        if not chosen or least[column] + len(SPACE) <= space:
            chosen.add(column)
            space -= least[column] + len(SPACE)
    return tuple(column for column in COLUMNS if column in chosen)


def _widths(
    least: Sequence[tuple[TableColumn, int]], needed: Mapping[TableColumn, int], width: int
) -> Mapping[TableColumn, int]:
    """Return the width of each column. Text columns grow while there is space."""
    space = width - sum(wide + len(SPACE) for _, wide in least) + len(SPACE)
    (first, wide), *others = least
    # The first column is always shown.
    ordered = sorted([(first, wide + min(space, 0)), *others], key=lambda each: (each[0].is_text, each[0].top.worth))
    chosen = [column for column, _ in ordered]
    wanted = (min(needed[column], WIDEST) for column in chosen)
    return dict(zip(chosen, formats.spread((wide for _, wide in ordered), wanted, space), strict=True))


def _searched(row: WorkerRow) -> str:
    functions = [processor.function for processor in row.processors]
    texts = row.name, row.id, row.host, row.manager, row.unit, row.capabilities, row.state, *functions
    return "\n".join(texts).casefold()


_GAP = "  "
MAX_OBJECTS = MAX_FUNCTIONS = 20
MAX_LAST_CELLS = 40
"""Maximum width reserved for the last column when columns with higher ranks are hidden."""
_TIMES = ("seconds_total", "p50_seconds", "p95_seconds", "max_seconds", "trend_percent")
FUNCTION_COLUMNS = ("name", *_TIMES, "memory_peak_bytes", "memory_mean_bytes")


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
    """Return a heading and a line for each row. names: columns, or all. Omits columns of higher ranks that do not fit
    in the width, and cuts long texts of the last column."""
    shown = [
        (name, column) for name, (column, _) in columns(kind).items() if column.title and (not names or name in names)
    ]
    for rank in (3, 2, 1):
        chosen = [(name, column) for name, column in shown if column.rank <= rank]
        cells = [
            [column.title.lower(), *(_text(column, getattr(row, name)) for row in rows)] for name, column in chosen
        ]
        widths = [max(map(formats.cell_len, texts)) for texts in cells]
        *fixed, last = widths
        if width is None or sum(fixed) + len(_GAP) * len(fixed) + min(last, MAX_LAST_CELLS) <= width:
            break
    lines = [_aligned(texts, column.unit, wide) for texts, (_, column), wide in zip(cells, chosen, widths, strict=True)]
    return [formats.cut(_GAP.join(parts).rstrip(), width) for parts in zip(*lines, strict=True)]


def _text(column: Column, value: Any) -> str:
    if value is None or (column.zero_is_none and not value):
        return ""
    return formats.safe(formats.FORMATS[column.unit](value))


def _aligned(texts: Iterable[str], unit: str, width: int) -> list[str]:
    return [(formats.left if unit == "text" else formats.right)(text, width) for text in texts]
