"""Short texts for figures and names, and panels of these texts, for a terminal. Pure."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from scaler.monitor.cluster_rows import ClientRow, FunctionRow
from scaler.monitor.columns import Unit
from scaler.monitor.data_rows import CallRow
from scaler.texts import escaped

MARK = "+"
"""End of a truncated text."""

_UNITS = ("", "k", "m", "g", "t", "p")
_MINUTE = 60
_HOUR = 60 * _MINUTE
_DAY = 24 * _HOUR
_NO_WIDTH = {"Mn", "Mc", "Me", "Cf", "Cc"}
# Hangul vowels and final consonants, and emoji skin tones, which join the preceding character.
_JOINED = {*map(chr, range(0x1160, 0x1200)), *map(chr, range(0x1F3FB, 0x1F400))}


def size(size_bytes: float) -> str:
    """Return bytes as `130.1m`, in powers of 1024. `0` for none."""
    amount = max(0.0, size_bytes)
    for unit in _UNITS:
        # Compare as printed: 1023.96 would print as 1024.0.
        if round(amount, 1) < 1024 or unit == _UNITS[-1]:
            break
        amount /= 1024
    return f"{amount:.1f}{unit}" if unit else f"{amount:.0f}"


def percent(value: float) -> str:
    """Return a share of one processor as `0.5%`, without decimals from 1000 % on."""
    return f"{value:.0f}%" if value >= 999.95 else f"{value:.1f}%"


def money(amount: float) -> str:
    """Return an amount with its significant digits: `0.0012`, `4.31`, `1234`."""
    return f"{amount:.4f}" if amount < 1 else f"{amount:.2f}" if amount < 1000 else f"{amount:.0f}"


def duration(seconds: float) -> str:
    """Return a time as `0.7ms`, `12ms`, `3.4s`, `2m05s`, `3h04m`, or `2d03h`."""
    value = max(0.0, seconds)
    if value < 0.00995:
        return f"{value * 1000:.1f}".removesuffix(".0") + "ms"
    if value < 0.9995:
        return f"{value * 1000:.0f}ms"
    if value < 59.95:
        return f"{value:.1f}s"
    whole = round(value)
    if whole < _HOUR:
        return f"{whole // _MINUTE}m{whole % _MINUTE:02d}s"
    if whole < _DAY:
        return f"{whole // _HOUR}h{whole % _HOUR // _MINUTE:02d}m"
    return f"{whole // _DAY}d{whole % _DAY // _HOUR:02d}h"


def short_count(value: int) -> str:
    """Return a number in at most six characters: `12,345`, `1.2M`, `34G`."""
    if abs(value) < 100_000:
        return f"{value:,}"
    amount = float(value)
    for unit in "KMGT":
        amount /= 1000
        if abs(amount) < 999.5 or unit == "T":
            return f"{amount:.0f}{unit}" if abs(amount) >= 9.95 else f"{amount:.1f}{unit}"
    raise AssertionError("the last unit takes everything")


def cell_len(text: str) -> int:
    """Return the width of a text on a terminal, in cells."""
    return len(text) if text.isascii() and text.isprintable() else sum(map(_width, text))


def set_cell_size(text: str, cells: int) -> str:
    for place, character in enumerate(text):
        if _width(character) > cells:
            return text[:place] + " " * cells
        cells -= _width(character)
    return text + " " * cells


def _width(character: str) -> int:
    if unicodedata.category(character) in _NO_WIDTH or character in _JOINED:
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


def safe(text: str) -> str:
    """Return a text with unprintable characters escaped and emoji variation selectors removed."""
    return escaped(text.replace("\ufe0f", ""))  # terminals disagree about the width of a symbol with it


def cut(text: str, width: int | None) -> str:
    """Return a safe text of at most this width. None: no limit."""
    shown = safe(text)
    if width is None or cell_len(shown) <= max(0, width):
        return shown
    return set_cell_size(shown, width - len(MARK)) + MARK if width > 0 else ""


def left(text: str, width: int) -> str:
    return set_cell_size(cut(text, width), max(0, width))


def right(text: str, width: int) -> str:
    shown = cut(text, width)
    return " " * (width - cell_len(shown)) + shown


def spread(least: Iterable[int], wanted: Iterable[int], space: int) -> list[int]:
    """Return the minimum widths, with the remaining space distributed to the first columns that need more."""
    widths = []
    for width, most in zip(least, wanted, strict=True):
        more = max(0, min(space, most - width))
        widths.append(width + more)
        space -= more
    return widths


FORMATS: Mapping[Unit, Callable[[Any], str]] = {
    "text": str,
    "flags": str,
    "count": short_count,
    "bytes": size,
    "percent": percent,
    "seconds": duration,
    "micros": lambda micros: duration(micros / 1e6),
    "time": lambda at: datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S"),
    "money": money,
    "heat": lambda heat: str(heat or ""),
}
"""Formatter of a table value by unit."""


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
        widest = max((cell_len(safe(name)) + 1 + len(value) for name, value in self.pairs), default=0)
        return max(len(self.title) + 1 + len(self.head), widest)

    def lines(self, width: int, height: int) -> list[str]:
        """Return exactly `height` lines of this width. The last line counts the pairs that do not fit."""
        shown = self.pairs if len(self.pairs) < height else self.pairs[: max(0, height - 2)]
        lines = [
            left(f"{left(name, width - len(value) - 1)} {value}" if value else name, width)
            for name, value in [(self.title, self.head), *shown]
        ]
        if len(shown) < len(self.pairs) and height > 1:
            lines.append(right(f"{len(self.pairs) - len(shown)} more", width))
        return lines[:height] + [" " * width] * (height - len(lines))


def counts(row: FunctionRow | ClientRow | CallRow) -> str:
    numbers = (row.queued, row.running, row.ended - row.failed - row.cancelled, row.failed)
    return " ".join(right(short_count(number), 6) for number in numbers)
