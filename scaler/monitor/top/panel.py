"""A panel of `scaler_top`. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scaler.monitor.top import formats
from scaler.protocol.call_rows import CallRow
from scaler.protocol.monitor_rows import ClientRow, FunctionRow

Pairs = Sequence[tuple[str, str]]
COUNTS = "queued    run   done failed"


@dataclass(frozen=True, slots=True)
class Panel:
    """A titled list of names and values. least, most: width in columns of the terminal. head: heading of the values."""

    title: str
    pairs: Pairs
    least: int
    most: int
    head: str = ""

    @property
    def natural(self) -> int:
        widest = max((formats.cell_len(formats.safe(name)) + 1 + len(value) for name, value in self.pairs), default=0)
        return max(len(self.title) + 1 + len(self.head), widest)

    def lines(self, width: int, height: int) -> list[str]:
        """Return exactly `height` lines of this width. The last line counts the pairs that do not fit."""
        shown = self.pairs if len(self.pairs) < height else self.pairs[: max(0, height - 2)]
        lines = [
            formats.left(f"{formats.left(name, width - len(value) - 1)} {value}" if value else name, width)
            for name, value in [(self.title, self.head), *shown]
        ]
        if len(shown) < len(self.pairs) and height > 1:
            lines.append(formats.right(f"{len(self.pairs) - len(shown)} more", width))
        return lines[:height] + [" " * width] * (height - len(lines))


def counts(row: FunctionRow | ClientRow | CallRow) -> str:
    numbers = (row.queued, row.running, row.ended - row.failed - row.cancelled, row.failed)
    return " ".join(formats.right(formats.short_count(number), 6) for number in numbers)
