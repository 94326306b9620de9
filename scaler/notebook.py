"""Small tables that show objects in a notebook. All text is escaped. Pure."""

from __future__ import annotations

import html
from collections.abc import Mapping

from scaler.texts import escaped

MAX_CHARACTERS = 1000  # of a cell; longer text is truncated
_CUT = "…"
_LEFT = "text-align: left; vertical-align: top"


class PageLink(str):
    """Text that tables show as a link to itself."""

    __slots__ = ()


def short(text: str, most: int = MAX_CHARACTERS) -> str:
    """Escape control characters, and truncate with an ellipsis."""
    text = escaped(text[: most + 1])
    return text if len(text) <= most else text[: most - 1] + _CUT


def table(title: str, rows: Mapping[str, object]) -> str:
    lines = [
        f'<tr><th scope="row" style="{_LEFT}">{_cell(name)}</th><td style="{_LEFT}">{_cell(value)}</td></tr>'
        for name, value in rows.items()
        if value is not None and value != ""
    ]
    return f'<table><caption style="{_LEFT}"><strong>{_cell(title)}</strong></caption>{"".join(lines)}</table>'


def _cell(value: object) -> str:
    text = html.escape(short(str(value)))
    if isinstance(value, PageLink) and value.startswith(("http://", "https://")):
        return f'<a href="{text}" target="_blank" rel="noopener">{text}</a>'
    return text
