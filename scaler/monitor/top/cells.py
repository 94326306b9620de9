"""Width of text on a terminal, in cells. Pure."""

from __future__ import annotations

import unicodedata

_NO_WIDTH = {"Mn", "Mc", "Me", "Cf", "Cc"}
# Hangul vowels and final consonants, and emoji skin tones, which join the preceding character.
_JOINED = {*map(chr, range(0x1160, 0x1200)), *map(chr, range(0x1F3FB, 0x1F400))}


def cell_len(text: str) -> int:
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
