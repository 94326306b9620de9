"""The main screen of `scaler_top`: the panels, the table of workers, counts, and their keys."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import ClassVar

from rich.style import Style
from rich.text import Text
from textual import events, on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widgets import Input, Static

from scaler.monitor.connection import ModelSource
from scaler.monitor.top import formats, panels
from scaler.monitor.top.lines import Lines
from scaler.monitor.top.screens import DetailScreen, HelpScreen
from scaler.monitor.top.table import BY_KEY, Sorting, matching, sort, table
from scaler.protocol.monitor_rows import Status

REDRAW_SECONDS = 0.25
"""Shortest time between two redraws."""
QUIET_SECONDS = 5.0
"""Time without a report after which a connected scheduler counts as silent."""
SIDE_FROM = 120
"""From this width on, counts are beside the table; below it they are under it."""
SIDE_WIDTH = 44
STRIP_FROM = 20
"""Below this height there is no space for counts."""
TALL_FROM = 32
"""Below this height counts under the table are four lines, and more only where workers need no more."""
PANELS_FROM = 16
"""Below this height the panels are three lines."""

_ERROR = Style(color="red", bold=True)
_STYLES = {"away": Style(color="red"), "held": Style(color="magenta"), "ends": Style(color="yellow")}


_CSS = """\
Screen { layout: vertical; }
#panels, #keys, #totals, #head, #strip, #state { height: auto; width: 100%; }
#totals, #head, #state { height: 1; }
#body { height: 1fr; }
#left { width: 1fr; }
#workers { height: 1fr; }
#side { width: 46; padding-left: 2; height: 100%; }
#filter { height: 1; }
HelpScreen, DetailScreen { align: left top; }
#help { padding: 0 1; height: 1fr; }
#facts { height: auto; }
#tasks { height: 1fr; min-height: 3; }
#answer { height: 2fr; border-top: solid; }
#tasks_head, #hint { height: 1; }
"""


@dataclass(frozen=True, slots=True)
class Frozen:
    """A state of the cluster that stays on the screen. at: when it was frozen, in unix seconds."""

    status: Status
    per_second: float
    at: float


class TopApp(App[None]):
    """Draws the connection's model, a few times a second while it changes."""

    CSS = _CSS
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(key, f"sort('{key}')", f"sort by {column.title}", show=False) for key, column in BY_KEY.items()),
        Binding("less_than_sign", "step(-1)", show=False),
        Binding("greater_than_sign", "step(1)", show=False),
        Binding("slash", "filter", show=False),
        Binding("space", "freeze", show=False),
        Binding("question_mark", "help", show=False),
        Binding("escape", "clear", show=False),
        Binding("q", "quit", show=False),
        Binding("ctrl+c", "quit", show=False, priority=True),
    ]

    def __init__(self, source: ModelSource) -> None:
        super().__init__()
        self.source = source
        self.sorting = Sorting()
        self.frozen: Frozen | None = None
        # Attributes, not queries: a redraw while the screen is being removed would find nothing.
        self._panels_part, self._keys_part, self._totals_part = _texts("panels", "keys", "totals")
        self._head_part, self._side_part, self._strip_part, self._state_part = _texts("head", "side", "strip", "state")
        self._workers_part = Lines(id="workers")
        self._filter_part = Input(
            id="filter", placeholder="part of a name; enter keeps it, escape clears it", compact=True
        )
        self._drawn: object = None
        self._reported_at = time.monotonic()
        self._reported: Status | None = None

    @property
    def status(self) -> Status:
        return self.frozen.status if self.frozen is not None else self.source.model.status

    @property
    def _per_second(self) -> float:
        return self.frozen.per_second if self.frozen is not None else self.source.model.series.last("tasks_per_second")

    def compose(self) -> ComposeResult:
        yield self._panels_part
        yield self._keys_part
        yield self._totals_part
        with Horizontal(id="body"):
            with Vertical(id="left"):
                yield self._head_part
                yield self._workers_part
            yield self._side_part
        yield self._strip_part
        yield self._filter_part
        yield self._state_part

    def on_mount(self) -> None:
        self.theme = "ansi-dark"
        self._filter_part.display = False
        self._workers_part.focus()
        self.set_interval(REDRAW_SECONDS, self._tick)

    def on_resize(self, _event: events.Resize) -> None:
        self.call_after_refresh(self.redraw)

    # -- keys

    def action_sort(self, key: str) -> None:
        self.sorting = self.sorting.by(BY_KEY[key])
        self.redraw()

    def action_step(self, count: int) -> None:
        self.sorting = self.sorting.step(count)
        self.redraw()

    def action_filter(self) -> None:
        self._filter_part.display = True
        self._filter_part.focus()

    def action_clear(self) -> None:
        self._filter_part.value = ""
        self._leave_filter()

    def action_freeze(self) -> None:
        self.frozen = None if self.frozen is not None else Frozen(self.status, self._per_second, time.time())
        self.redraw()

    async def action_help(self) -> None:
        await self.push_screen(HelpScreen(), lambda _: self.redraw())

    @on(Input.Changed, "#filter")
    def _filter(self) -> None:
        self.redraw()

    @on(Input.Submitted, "#filter")
    def _leave_filter(self) -> None:
        self._filter_part.display = False
        self._workers_part.focus()
        self.redraw()

    @on(Lines.Chosen, "#workers")
    async def _detail(self, event: Lines.Chosen) -> None:
        screen = DetailScreen(self.source, event.key, lambda: self.status, lambda: self.frozen is not None)
        await self.push_screen(screen, lambda _: self.redraw())

    # -- drawing

    def _tick(self) -> None:
        status = self.source.model.status
        if status is not self._reported:
            self._reported, self._reported_at = status, time.monotonic()
        silent = int(time.monotonic() - self._reported_at) if self._silent_error() else 0
        now = (id(self.status), status.at, self.source.last_error, silent)
        if now != self._drawn:
            self._drawn = now
            self.redraw()

    def redraw(self) -> None:
        """Draw everything in the present size of the terminal."""
        if len(self.screen_stack) > 1:
            if isinstance(self.screen, DetailScreen):
                self.screen.redraw()
            return
        width, height = self.size
        above = self._draw_panels(width, height)
        # Totals, the head of the table and the state take a line each; the rest is for the workers.
        self._draw_counts(width, height, height - above - 3 - len(self.status.workers))
        self._draw_workers(width - SIDE_WIDTH - 3 if width >= SIDE_FROM else width)
        self._draw_state(width)

    def _draw_panels(self, width: int, height: int) -> int:
        """Draw the part above the table; return its height."""
        found = panels.panels(self.status, self._per_second)
        most = 3 if height < PANELS_FROM else max(7, min(14, height // 4))
        lines = panels.beside(found, width, panels.height_of(found, most))
        text = Text("\n".join([*lines, "-" * width]), no_wrap=True, overflow="crop", end="")
        text.stylize("bold", 0, len(lines[0]))
        self._panels_part.update(text)
        in_one_line = width > len(panels.KEY_HINTS + panels.MORE_KEY_HINTS)
        keys = (" " if in_one_line else "\n").join((panels.KEY_HINTS, panels.MORE_KEY_HINTS))
        self._keys_part.update(Text(keys, no_wrap=True, overflow="crop", style="dim"))
        self._keys_part.display = height >= PANELS_FROM
        return len(lines) + 1 + (keys.count("\n") + 1 if height >= PANELS_FROM else 0)

    def _draw_counts(self, width: int, height: int, spare: int) -> None:
        """Draw the counts. spare: lines that the table of workers leaves empty."""
        found = [panel for panel in panels.sides(self.status) if panel.pairs]
        side, strip = self._side_part, self._strip_part
        side.display = width >= SIDE_FROM
        strip.display = not side.display and bool(found) and height >= STRIP_FROM
        if side.display:
            lines: list[str] = []
            for panel in found:
                lines += [*panel.lines(SIDE_WIDTH, min(len(panel.pairs) + 1, max(4, height // 5))), ""]
            side.update(Text("\n".join(lines), no_wrap=True, overflow="crop"))
        elif strip.display:
            least = 4 if height < TALL_FROM else 6
            lines = panels.beside(found, width, panels.height_of(found, max(least, spare)))
            text = Text("\n".join(lines), no_wrap=True, overflow="crop")
            text.stylize("bold", 0, len(lines[0]))
            strip.update(text)

    def _draw_workers(self, width: int) -> None:
        listed = self.status.workers
        wanted = self._filter_part.value
        rows = sort(matching(listed, wanted), self.sorting)
        # One column of the terminal is the scroll bar's.
        shown = table(rows, self.sorting, width - 1)
        totals = panels.totals(self.status, len(listed), len(rows), wanted)
        self._totals_part.update(Text(f"{totals}; by {self.sorting.description}", no_wrap=True, overflow="ellipsis"))
        self._head_part.update(Text(shown.head, no_wrap=True, overflow="crop", style="bold underline"))
        styles = {row.id: _STYLES[row.state] for row in rows if row.state}
        self._workers_part.show(shown.lines, [row.id for row in rows], styles)

    def _draw_state(self, width: int) -> None:
        text = Text(no_wrap=True, overflow="ellipsis")
        error = self.source.last_error or self._silent_error()
        if error:
            age = formats.duration(max(0.0, time.monotonic() - self._reported_at))
            text.append(f"this is the state of {age} ago, trying again: {formats.safe(error)}", _ERROR)
        elif self.frozen is not None:
            at = time.strftime("%H:%M:%S", time.localtime(self.frozen.at))
            text.append(f"frozen at {at}; space goes on", Style(reverse=True))
        else:
            text.append(formats.safe(self.source.address), Style(dim=True))
        text.truncate(width)
        self._state_part.update(text)

    def _silent_error(self) -> str:
        seconds = time.monotonic() - self._reported_at
        return f"{self.source.address} has sent nothing for {seconds:.0f} s" if seconds > QUIET_SECONDS else ""


def _texts(*names: str) -> tuple[Static, ...]:
    return tuple(Static(id=name, markup=False) for name in names)
