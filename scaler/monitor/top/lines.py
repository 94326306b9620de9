"""A list of lines with a cursor that draws only the visible lines.

With 500 rows, a redraw takes 24 ms. Textual's DataTable and OptionList take 150 and 95 ms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from scaler.monitor.top import formats

_CURSOR = Style(reverse=True)
_MOVES = {"up": -1, "down": 1, "home": -1_000_000, "end": 1_000_000}


class Lines(ScrollView, can_focus=True):
    """Lines of text with a cursor on the first line. Once moved, the cursor follows the key of its line."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(key, f"move({count})", show=False) for key, count in _MOVES.items()),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("enter", "choose", show=False),
    ]
    DEFAULT_CSS = "Lines { scrollbar-size: 1 1; overflow-x: hidden; }"

    class Chosen(Message):
        def __init__(self, lines: Lines, key: str) -> None:
            super().__init__()
            self.lines = lines
            self.key = key

        @property
        def control(self) -> Lines:
            """The list (Textual's name for the sender)."""
            return self.lines

    def __init__(self, *, id: str) -> None:  # noqa: A002 (Textual's own name for it)
        super().__init__(id=id)
        self.texts: tuple[str, ...] = ()
        self.cursor = 0
        self._keys: tuple[str, ...] = ()
        self._styles: Mapping[str, Style] = {}
        self._follows = False

    @property
    def key(self) -> str:
        return self._keys[self.cursor] if self._keys else ""

    def show(self, texts: Sequence[str], keys: Sequence[str], styles: Mapping[str, Style] | None = None) -> None:
        """Replace the lines. styles: by key, for lines that are not plain."""
        key, before = self.key if self._follows else "", self.cursor
        self.texts, self._keys, self._styles = tuple(texts), tuple(keys), styles or {}
        cursor = self._keys.index(key) if key in self._keys else before
        self.cursor = max(0, min(cursor, len(self._keys) - 1))
        self.virtual_size = Size(self.size.width, len(self.texts))
        if self.cursor != before:
            self._scroll()
        self.refresh()

    def render_line(self, y: int) -> Strip:
        index = y + self.scroll_offset.y
        if index >= len(self.texts):
            return Strip.blank(self.size.width, self.rich_style)
        style = self.rich_style + self._styles.get(self._keys[index], Style.null())
        if index == self.cursor:
            style += _CURSOR
        return Strip([Segment(formats.left(self.texts[index], self.size.width), style)], self.size.width)

    def action_move(self, count: int) -> None:
        self.cursor = max(0, min(self.cursor + count, len(self._keys) - 1))
        self._follows = self.cursor > 0
        self._scroll()
        self.refresh()

    def action_page(self, count: int) -> None:
        self.action_move(count * max(1, self.size.height - 1))

    def action_choose(self) -> None:
        if self.key:
            self.post_message(self.Chosen(self, self.key))

    def _scroll(self) -> None:
        self.scroll_to_region(Region(0, self.cursor, 1, 1), animate=False)


def text_of(lines: Sequence[str], style: str = "", *, has_head: bool = False) -> Text:
    """Return lines that are cropped to the available width. has_head: the first line is bold."""
    text = Text("\n".join(lines), style, no_wrap=True, overflow="crop", end="")
    if has_head:
        text.stylize("bold", 0, len(lines[0]))
    return text
