"""The width of text on a terminal, in cells. Pure."""

from __future__ import annotations

import unicodedata

_NO_WIDTH = {"Mn", "Mc", "Me", "Cf", "Cc"}
_WIDE = {"W", "F"}


def cell_len(text: str) -> int:
    """Return how many cells a terminal takes for a text."""
    return len(text) if text.isascii() and text.isprintable() else sum(map(_width, text))


def set_cell_size(text: str, cells: int) -> str:
    """Cut a text or add spaces, so that it takes this many cells."""
    kept, left = [], cells
    for character in text:
        left -= _width(character)
        if left < 0:
            left += _width(character)
            break
        kept.append(character)
    return "".join(kept) + " " * left


def _width(character: str) -> int:
    if unicodedata.category(character) in _NO_WIDTH:
        return 0
    return 2 if unicodedata.east_asian_width(character) in _WIDE else 1
