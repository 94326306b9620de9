"""The table of workers: what its columns are, how it is sorted and filtered, and what of it fits in a width. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from scaler.monitor.top import formats
from scaler.protocol.monitor_rows import WorkerRow

SPACE = " "
WIDEST = 60
"""No column is wider where there is a limit at all."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table."""

    title: str
    key: str
    """Sorts by this column; empty: only by stepping to it."""
    width: int
    """The least that it needs, at least that of the title."""
    text: Callable[[WorkerRow], str]
    order: Callable[[WorkerRow], str | float | int]
    worth: int
    """What matters less is hidden first: 0 is never hidden."""
    names: bool = False
    """Texts: at the left, with the room that is left over, and sorted from A to Z."""


COLUMNS: tuple[Column, ...] = (
    Column("worker", "n", 14, lambda row: row.name, lambda row: row.name, 0, names=True),
    Column("state", "", 5, lambda row: row.state, lambda row: row.state, 1, names=True),
    Column(
        "agt_cpu",
        "C",
        7,
        lambda row: formats.percent(row.agent_cpu_percent),
        lambda row: row.agent_cpu_percent,
        11,
    ),
    Column("agt_rss", "M", 7, lambda row: formats.size(row.agent_rss_bytes), lambda row: row.agent_rss_bytes, 12),
    Column("cpu", "c", 6, lambda row: formats.percent(row.cpu_percent), lambda row: row.cpu_percent, 2),
    Column("rss", "m", 6, lambda row: formats.size(row.rss_bytes), lambda row: row.rss_bytes, 3),
    Column("free", "f", 5, lambda row: formats.short_count(row.free), lambda row: row.free, 4),
    Column("sent", "w", 6, lambda row: formats.short_count(row.sent), lambda row: row.sent, 8),
    Column("queued", "d", 6, lambda row: formats.short_count(row.queued), lambda row: row.queued, 5),
    Column("suspended", "", 9, lambda row: formats.short_count(row.suspended), lambda row: row.suspended, 13),
    Column("lag", "l", 5, lambda row: formats.duration(row.latency_seconds), lambda row: row.latency_seconds, 9),
    Column("ITL", "", 3, lambda row: row.itl, lambda row: row.itl, 10),
    Column("manager", "", 9, lambda row: row.manager, lambda row: row.manager, 14, names=True),
    Column("capabilities", "", 12, lambda row: row.capabilities, lambda row: row.capabilities, 15, names=True),
    Column(
        "function",
        "",
        12,
        lambda row: row.function,
        lambda row: row.function,
        6,
        names=True,
    ),
    Column(
        "seconds",
        "",
        7,
        lambda row: formats.duration(row.function_seconds) if row.function else "",
        lambda row: row.function_seconds,
        7,
    ),
)
BY_TITLE: Mapping[str, Column] = {column.title: column for column in COLUMNS}
BY_KEY: Mapping[str, Column] = {column.key: column for column in COLUMNS if column.key}


@dataclass(frozen=True, slots=True)
class Sorting:
    """By which column, and whether against its usual order: figures from the largest, names from A."""

    column: Column = BY_TITLE["cpu"]
    against: bool = False

    def by(self, column: Column) -> Sorting:
        """Return the order after this column was asked for: the same one again turns it round."""
        return Sorting(column, not self.against) if column is self.column else Sorting(column)

    def step(self, count: int, shown: Sequence[Column] = COLUMNS) -> Sorting:
        """Return the order by the column that stands so many places to the right of this one."""
        place = shown.index(self.column) if self.column in shown else 0
        return Sorting(shown[(place + count) % len(shown)])

    @property
    def descending(self) -> bool:
        return self.column.names == self.against

    @property
    def words(self) -> str:
        """How the order is called."""
        if self.column.names:
            return f"{self.column.title} {'Z to A' if self.against else 'A to Z'}"
        return f"{self.column.title} {'lowest' if self.against else 'highest'} first"


@dataclass(frozen=True, slots=True)
class Table:
    """The table as lines of text, all of the same width."""

    head: str
    lines: tuple[str, ...]
    columns: tuple[Column, ...]


def sort(workers: Iterable[WorkerRow], sorting: Sorting) -> list[WorkerRow]:
    """Return the workers in order; those that are equal stay by name, whichever way it goes."""
    named = sorted(workers, key=lambda row: (row.name, row.id))
    return sorted(named, key=sorting.column.order, reverse=sorting.descending)


def matching(workers: Iterable[WorkerRow], wanted: str) -> list[WorkerRow]:
    """Return the workers with this text, in any case, in a name: theirs, their function's, manager's, and so on."""
    text = wanted.casefold().strip()
    return [row for row in workers if not text or text in _searched(row)]


def table(rows: Sequence[WorkerRow], sorting: Sorting, width: int | None) -> Table:
    """Return rows as lines. width: of the terminal, in columns; None: everything is shown in full."""
    columns = _chosen(rows, sorting, width)
    cells = {column.title: [formats.safe(column.text(row)) for row in rows] for column in columns}
    widths = _widths(columns, cells, sorting, width)
    fit = {column.title: formats.left if column.names else formats.right for column in columns}
    head = SPACE.join(fit[column.title](_title(column, sorting), widths[column.title]) for column in columns)
    lines = (
        SPACE.join(fit[column.title](text, widths[column.title]) for column, text in zip(columns, texts, strict=True))
        for texts in zip(*cells.values(), strict=True)
    )
    return Table(head, tuple(lines), columns)


def _title(column: Column, sorting: Sorting) -> str:
    return f"[{column.title}]" if column is sorting.column else column.title


def _least(column: Column, sorting: Sorting) -> int:
    return max(column.width, len(_title(column, sorting)))


def _chosen(rows: Sequence[WorkerRow], sorting: Sorting, width: int | None) -> tuple[Column, ...]:
    """Return the columns that fit: the names, then the one that sorts, then by worth."""
    troubled = any(row.state for row in rows)
    state = BY_TITLE["state"]
    candidates = [column for column in COLUMNS if column is not state or troubled or sorting.column is state]
    if width is None:
        return tuple(candidates)
    chosen: set[str] = set()
    room = width + len(SPACE)
    for column in sorted(candidates, key=lambda column: (column.worth > 0, column is not sorting.column, column.worth)):
        needed = _least(column, sorting) + len(SPACE)
        if needed <= room or not chosen:
            chosen.add(column.title)
            room -= needed
    return tuple(column for column in COLUMNS if column.title in chosen)


def _widths(
    columns: Sequence[Column], cells: Mapping[str, list[str]], sorting: Sorting, width: int | None
) -> dict[str, int]:
    """Return the columns of the terminal that each column has: what names need is given to them while there is room."""
    needed = {column.title: max([_least(column, sorting), *map(cell_len, cells[column.title])]) for column in columns}
    if width is None:
        return needed
    widths = {column.title: _least(column, sorting) for column in columns}
    room = width - sum(widths.values()) - len(SPACE) * (len(columns) - 1)
    # The first one is there however little room there is.
    widths[columns[0].title] += min(room, 0)
    for column in sorted(columns, key=lambda column: (column.names, column.worth)):
        more = max(0, min(room, min(needed[column.title], WIDEST) - widths[column.title]))
        widths[column.title] += more
        room -= more
    return widths


def _searched(row: WorkerRow) -> str:
    functions = [processor.function for processor in row.processors]
    parts = (row.name, row.id, row.manager, row.unit, row.capabilities, row.state, *functions)
    return "\n".join(parts).casefold()
