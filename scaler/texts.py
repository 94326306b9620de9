"""Makes peers' texts safe for terminals, logs, and pages. Pure. Processors import this module instead of `logging`."""

from __future__ import annotations

import codecs
import re
import reprlib
from collections.abc import Sequence
from functools import lru_cache

from scaler.grammar import counted

MAX_MESSAGE_CHARACTERS = 16_384  # for a message and each line of its traceback, because peers choose the texts
MAX_PATTERN = 200  # characters of a message that identify a group of failures; later characters often vary

_SPACES = frozenset("\xa0\u1680\u202f\u205f\u3000").union(map(chr, range(0x2000, 0x200B)))
"""Spaces that `str.isprintable` rejects, although no terminal interprets them."""
_VARYING = re.compile(
    r"\b0x[0-9a-f]+\b"
    r"|\b(?=[0-9a-f-]*\d)[0-9a-f]{8}[0-9a-f-]*\b"  # ids
    r"|(?:(?<![\w.])[-+])?\d+(?:[.,:]\d+)*(?:e[-+]?\d+)?",
    re.IGNORECASE,
)
codecs.lookup("unicode_escape")  # preloads a module, so that `escaped` works when no descriptor is free


_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 200
_REPR.maxlist = _REPR.maxtuple = _REPR.maxdict = _REPR.maxset = _REPR.maxfrozenset = 10


def shortened(text: str, most: int = MAX_MESSAGE_CHARACTERS) -> str:
    """Truncate a text to `most` characters, and append the number of dropped characters."""
    return text if len(text) <= most else f"{text[:most]}… ({counted(len(text) - most, 'more character')})"


def escaped(text: str, most: int | None = None) -> str:
    """Return a text as one line, truncated after `most` characters, with escapes for invisible or interpreted
    characters. Escapes control characters, line ends, bidirectional marks and other format characters, unpaired
    surrogates, and unassigned code points."""
    if most is not None:
        text = shortened(text, most)
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each in _SPACES else each.encode("unicode_escape").decode() for each in text
    )


def escaped_lines(text: str) -> str:
    """Like `escaped`, but keeps line ends and tabs."""
    return "\n".join("\t".join(map(escaped, line.split("\t"))) for line in text.replace("\r\n", "\n").split("\n"))


def shown(value: object) -> str:
    """Return the short repr of a user's object for an error, even if its own `__repr__` raises."""
    try:
        return _REPR.repr(value)
    except Exception:  # noqa: BLE001 (it may even fail to report its class)
        return object.__repr__(value)


def aligned(rows: Sequence[Sequence[str]]) -> str:
    shown = [[*map(escaped, row)] for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in shown
    )


def readable(data: bytes, most: int | None = None) -> str:
    return escaped_lines(data[:most].decode("utf-8", "replace"))


@lru_cache(maxsize=4096)
def pattern(text: str) -> str:
    """Return the first line of a failure's message with … in place of numbers, ids, and addresses."""
    return _VARYING.sub("…", text.partition("\n")[0][:MAX_PATTERN])
