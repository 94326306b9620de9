"""Texts of peers, as terminals, logs and pages may have them. Pure: processors import it, and not `logging`."""

from __future__ import annotations

import codecs
import re
import reprlib
from collections.abc import Sequence
from functools import lru_cache

from scaler.grammar import counted

MAX_MESSAGE_CHARACTERS = 16_384  # of a message, and of each line of its traceback: peers choose texts
MAX_PATTERN = 200  # characters of a message by which failures are grouped; the rest often differs

_SPACES = frozenset("\xa0\u1680\u202f\u205f\u3000").union(map(chr, range(0x2000, 0x200B)))
"""Spaces that `str.isprintable` objects to, and which no terminal interprets."""
_VARYING = re.compile(
    r"\b0x[0-9a-f]+\b"
    r"|\b(?=[0-9a-f-]*\d)[0-9a-f]{8}[0-9a-f-]*\b"  # ids
    r"|(?:(?<![\w.])[-+])?\d+(?:[.,:]\d+)*(?:e[-+]?\d+)?",
    re.IGNORECASE,
)
codecs.lookup("unicode_escape")  # imports a module: `escaped` also works when no file descriptor is free


_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 200
_REPR.maxlist = _REPR.maxtuple = _REPR.maxdict = _REPR.maxset = _REPR.maxfrozenset = 10


def shortened(text: str, most: int = MAX_MESSAGE_CHARACTERS) -> str:
    """Return a text of at most `most` characters, and how many it had beyond these."""
    return text if len(text) <= most else f"{text[:most]}… ({counted(len(text) - most, 'more character')})"


def escaped(text: str, most: int | None = None) -> str:
    """Return a text as one line with escapes for what a terminal interprets or hides, cut after `most` characters.

    That is control characters, line ends, bidirectional marks and other format characters, unpaired surrogates, and
    what Unicode does not know.
    """
    if most is not None:
        text = shortened(text, most)
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each in _SPACES else each.encode("unicode_escape").decode() for each in text
    )


def escaped_lines(text: str) -> str:
    """Return a text as `escaped` does, except for line ends and tabs."""
    return "\n".join("\t".join(map(escaped, line.split("\t"))) for line in text.replace("\r\n", "\n").split("\n"))


def shown(value: object) -> str:
    """Return the short repr of a user's object for an error, also if its own `__repr__` raises."""
    try:
        return _REPR.repr(value)
    except Exception:  # noqa: BLE001 (it may even refuse to tell its class)
        return object.__repr__(value)


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return a table for a terminal, a line for each row, with each cell as `escaped` returns it."""
    shown = [[*map(escaped, row)] for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in shown
    )


def readable(data: bytes, most: int | None = None) -> str:
    """Return UTF-8 of a peer as `escaped_lines` does, of at most `most` bytes; never fails."""
    return escaped_lines(data[:most].decode("utf-8", "replace"))


@lru_cache(maxsize=4096)
def pattern(text: str) -> str:
    """Return the first line of a failure's message with … in place of each number, id and address."""
    return _VARYING.sub("…", text.partition("\n")[0][:MAX_PATTERN])
