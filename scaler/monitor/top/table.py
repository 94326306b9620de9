"""The table of workers as text: columns of the schema, sorting, filter, and the columns that fit in a width. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from rich.cells import cell_len

from scaler.monitor.rows import columns
from scaler.monitor.top import formats
from scaler.protocol.monitor_rows import Column, Top, WorkerRow

SPACE = " "
WIDEST = 60
"""Width limit of a column where the table has one."""


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of `WorkerRow` in the table."""

    name: str
    top: Top
    schema: Column

    @property
    def title(self) -> str:
        return self.top.title

    @property
    def is_text(self) -> bool:
        """Texts are aligned left, get the spare width, and sort from A to Z; figures from the largest."""
        return self.schema.unit == "text"

    def text(self, row: WorkerRow) -> str:
        value = getattr(row, self.name)
        return "" if self.schema.zero_is_none and not value else formats.FORMATS[self.schema.unit](value)


COLUMNS = tuple(
    sorted(
        (
            TableColumn(name, column.top, column)
            for name, (column, _) in columns(WorkerRow).items()
            if column.top is not None
        ),
        key=lambda column: column.top.order,
    )
)
BY_TITLE: Mapping[str, TableColumn] = {column.title: column for column in COLUMNS}
BY_KEY: Mapping[str, TableColumn] = {column.top.key: column for column in COLUMNS if column.top.key}


@dataclass(frozen=True, slots=True)
class Sorting:
    """The sorted column; reverse: against its usual order."""

    column: TableColumn = BY_TITLE["cpu"]
    reverse: bool = False

    def by(self, column: TableColumn) -> Sorting:
        """Return the sorting by a column: the same column again reverses it."""
        return Sorting(column, not self.reverse) if column is self.column else Sorting(column)

    def step(self, count: int) -> Sorting:
        """Return the sorting by the column `count` places to the right."""
        return Sorting(COLUMNS[(COLUMNS.index(self.column) + count) % len(COLUMNS)])

    @property
    def description(self) -> str:
        if self.column.is_text:
            return f"{self.column.title} {'Z to A' if self.reverse else 'A to Z'}"
        return f"{self.column.title} {'lowest' if self.reverse else 'highest'} first"


@dataclass(frozen=True, slots=True)
class Table:
    """The table as lines of text, all of the same width."""

    head: str
    lines: tuple[str, ...]
    columns: tuple[TableColumn, ...]


def sort(workers: Iterable[WorkerRow], sorting: Sorting) -> list[WorkerRow]:
    """Return the workers in order; equal ones are sorted by name in both directions."""
    named = sorted(workers, key=lambda row: (row.name, row.id))
    return sorted(named, key=attrgetter(sorting.column.name), reverse=sorting.column.is_text == sorting.reverse)


def matching(workers: Iterable[WorkerRow], wanted: str) -> list[WorkerRow]:
    """Return the workers with this text, in any case, in a name: theirs, their function's, manager's, and so on."""
    text = wanted.casefold().strip()
    return [row for row in workers if not text or text in _searched(row)]


def table(rows: Sequence[WorkerRow], sorting: Sorting, width: int | None) -> Table:
    """Return rows as lines. width: of the terminal, in columns; None: nothing is cut."""
    chosen = _chosen(rows, sorting, width)
    cells = [[formats.safe(column.text(row)) for row in rows] for column in chosen]
    widths = _widths(chosen, cells, sorting, width)
    aligned = [
        [(formats.left if column.is_text else formats.right)(text, wide) for text in (_title(column, sorting), *texts)]
        for column, texts, wide in zip(chosen, cells, widths, strict=True)
    ]
    head, *lines = map(SPACE.join, zip(*aligned, strict=True))
    return Table(head, tuple(lines), chosen)


def _title(column: TableColumn, sorting: Sorting) -> str:
    return f"[{column.title}]" if column is sorting.column else column.title


def _least(column: TableColumn, sorting: Sorting) -> int:
    return max(column.top.width, len(_title(column, sorting)))


def _chosen(rows: Sequence[WorkerRow], sorting: Sorting, width: int | None) -> tuple[TableColumn, ...]:
    """Return the columns that fit: the names, then the sorted one, then by worth."""
    state = BY_TITLE["state"]
    has_states = sorting.column is state or any(row.state for row in rows)
    candidates = tuple(column for column in COLUMNS if column is not state or has_states)
    if width is None:
        return candidates
    chosen: set[str] = set()
    space = width + len(SPACE)

    def rank(column: TableColumn) -> tuple[bool, bool, int]:
        return column.top.worth > 0, column is not sorting.column, column.top.worth

    for column in sorted(candidates, key=rank):
        needed = _least(column, sorting) + len(SPACE)
        if needed <= space or not chosen:
            chosen.add(column.title)
            space -= needed
    return tuple(column for column in COLUMNS if column.title in chosen)


def _widths(
    chosen: Sequence[TableColumn], cells: Sequence[list[str]], sorting: Sorting, width: int | None
) -> list[int]:
    """Return the width of each column: texts get what they need while there is space."""
    least = [_least(column, sorting) for column in chosen]
    needed = [max(wide, *map(cell_len, texts), 0) for wide, texts in zip(least, cells, strict=True)]
    if width is None:
        return needed
    space = width - sum(least) - len(SPACE) * (len(chosen) - 1)
    # The first column is shown in any width.
    least[0] += min(space, 0)
    for index in sorted(range(len(chosen)), key=lambda index: (chosen[index].is_text, chosen[index].top.worth)):
        more = max(0, min(space, min(needed[index], WIDEST) - least[index]))
        least[index] += more
        space -= more
    return least


def _searched(row: WorkerRow) -> str:
    functions = [processor.function for processor in row.processors]
    return "\n".join((row.name, row.id, row.manager, row.unit, row.capabilities, row.state, *functions)).casefold()
