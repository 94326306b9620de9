"""A list in which one line is chosen: draws what is on the screen only, however many rows there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from scaler.monitor.top import formats

_CURSOR = Style(reverse=True)
_PLAIN = Style()


class Lines(ScrollView, can_focus=True):
    """Lines of text, one of which is chosen: the first, until another is chosen by hand.

    A line is known by its key, so that the choice survives another order.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", show=False),
        Binding("down", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("home", "move(-1000000)", show=False),
        Binding("end", "move(1000000)", show=False),
        Binding("enter", "choose", show=False),
    ]
    DEFAULT_CSS = "Lines { scrollbar-size: 1 1; overflow-x: hidden; }"

    class Chosen(Message):
        """Enter, or a click on the line that is chosen already."""

        def __init__(self, lines: Lines, key: str) -> None:
            super().__init__()
            self.lines = lines
            self.key = key

        @property
        def control(self) -> Lines:
            """The list that says it (as Textual calls it)."""
            return self.lines

    def __init__(self, *, id: str) -> None:  # noqa: A002 (Textual's own name for it)
        super().__init__(id=id)
        self.texts: tuple[str, ...] = ()
        self._keys: tuple[str, ...] = ()
        self._styles: dict[int, Style] = {}
        self._place = 0
        self._by_hand = False

    @property
    def key(self) -> str:
        """The key of the chosen line; empty when there is none."""
        return self._keys[self._place] if self._keys else ""

    @property
    def place(self) -> int:
        """Which line is chosen, from 0."""
        return self._place

    def show(self, texts: Sequence[str], keys: Sequence[str], styles: dict[int, Style]) -> None:
        """Show other lines; a choice by hand stays with its key, or else in its place.

        styles: by line, where not plain.
        """
        chosen = self.key if self._by_hand else ""
        self.texts, self._keys, self._styles = tuple(texts), tuple(keys), styles
        place = self._keys.index(chosen) if chosen in self._keys else self._place
        moved = place != self._place
        self._place = max(0, min(place, len(self._keys) - 1))
        self.virtual_size = Size(self.size.width, len(self.texts))
        if moved:
            self._follow()
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """Return one line of the screen (Textual's ScrollView)."""
        place = y + self.scroll_offset.y
        if place >= len(self.texts):
            return Strip.blank(self.size.width, self.rich_style)
        style = self.rich_style + self._styles.get(place, _PLAIN)
        if place == self._place:
            style += _CURSOR
        text = formats.left(self.texts[place], self.size.width)
        return Strip([Segment(text, style)], self.size.width)

    def action_move(self, count: int) -> None:
        self._place = max(0, min(self._place + count, len(self._keys) - 1))
        self._by_hand = self._place > 0
        self._follow()
        self.refresh()

    def action_page(self, count: int) -> None:
        self.action_move(count * max(1, self.size.height - 1))

    def action_choose(self) -> None:
        if self.key:
            self.post_message(self.Chosen(self, self.key))

    def _follow(self) -> None:
        self.scroll_to_region(Region(0, self._place, 1, 1), animate=False)
