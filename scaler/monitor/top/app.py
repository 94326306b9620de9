"""The screens of `scaler_top`: overview, worker details, and help."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from rich.style import Style
from rich.text import Text
from textual import events, on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from scaler.errors import ScalerError
from scaler.grammar import counted
from scaler.monitor.cluster_rows import Status, TaskRow, WaitingRow, WorkerRow
from scaler.monitor.connection import MonitorConnection
from scaler.monitor.top import formats, panels
from scaler.monitor.top.lines import Lines, text_of
from scaler.monitor.top.table import BY_KEY, Sorting, data_lines, matching, sort, table, table_of, units_lines
from scaler.plugins import FoundTable

REDRAW_SECONDS = 0.25
QUIET_SECONDS = 5.0
"""Time without a report after which a connected scheduler counts as silent."""
SIDE_FROM = 120
"""Minimum width for counts next to the table. In narrower terminals, the counts are below the table."""
SIDE_WIDTH = 44
STRIP_FROM = 20
TALL_FROM = 32
"""Minimum height for more than four lines of counts below the table, if workers leave space."""
PANELS_FROM = 16
"""Minimum height for panels of more than three lines."""
MAX_RECENT = 100
ASK_SECONDS = 1.0
"""Interval between queries for an extension's table."""
_TEXTS_OF: Mapping[str, Callable[[Any], str]] = {"log": panels.log_text, "profile": panels.profile_text}
HINT = "explain[e] log[o] profile[p] freeze[space] back[escape]"

_ERROR = Style(color="red", bold=True)
_STYLES = {"away": Style(color="red"), "held": Style(color="magenta"), "ends": Style(color="yellow")}


@dataclass(frozen=True, slots=True)
class Frozen:
    status: Status
    per_second: float
    at: float


class TopApp(App[None]):
    CSS_PATH = "app.tcss"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        *((key, f"sort('{key}')", f"sort by {column.title}") for key, column in BY_KEY.items()),
        ("less_than_sign", "step(-1)"),
        ("greater_than_sign", "step(1)"),
        ("slash", "filter"),
        *((key, f"open('{key}')") for key in ("t", "b", "u", "question_mark", *panels.ASKED)),
        ("space", "freeze"),
        ("escape", "clear"),
        ("q", "quit"),
        Binding("ctrl+c", "quit", show=False, priority=True),
    ]

    def __init__(self, source: MonitorConnection) -> None:
        super().__init__()
        self.source = source
        self.sorting = Sorting()
        self.frozen: Frozen | None = None
        # Attributes instead of queries, which would find nothing in a redraw while the screen is being removed.
        self._panels_part, self._keys_part, self._totals_part = _texts("panels", "keys", "totals")
        self._head_part, self._side_part, self._strip_part, self._state_part = _texts("head", "side", "strip", "state")
        self._workers_part = Lines(id="workers")
        self._filter_part = Input(id="filter", placeholder="part of a name; enter keeps, escape clears", compact=True)
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

    async def action_open(self, key: str) -> None:
        await self.push_screen(SCREENS[key](self), lambda _: self.redraw())

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
        await self.push_screen(DetailScreen(self, event.key), lambda _: self.redraw())

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
        if len(self.screen_stack) > 1:
            if isinstance(self.screen, DetailScreen | TextScreen):
                self.screen.redraw()
            return
        width, height = self.size
        above = self._draw_panels(width, height)
        # Totals, the table head, and the state take one line each. Workers get the rest.
        self._draw_counts(width, height, height - above - 3 - len(self.status.workers))
        self._draw_workers(width - SIDE_WIDTH - 3 if width >= SIDE_FROM else width)
        self._draw_state(width)

    def _draw_panels(self, width: int, height: int) -> int:
        found = panels.panels(self.status, self._per_second)
        most = 3 if height < PANELS_FROM else max(7, min(14, height // 4))
        lines = panels.beside(found, width, panels.height_of(found, most))
        self._panels_part.update(text_of([*lines, "-" * width], has_head=True))
        keys = [panels.KEY_HINTS, panels.MORE_KEY_HINTS]
        if width > len("".join(keys)):
            keys = [" ".join(keys)]
        self._keys_part.update(text_of(keys, "dim"))
        self._keys_part.display = height >= PANELS_FROM
        return len(lines) + 1 + (len(keys) if height >= PANELS_FROM else 0)

    def _draw_counts(self, width: int, height: int, spare: int) -> None:
        found = [panel for panel in panels.sides(self.source.model, self.status) if panel.pairs]
        side, strip = self._side_part, self._strip_part
        side.display = width >= SIDE_FROM
        strip.display = not side.display and bool(found) and height >= STRIP_FROM
        if side.display:
            lines: list[str] = []
            for panel in found:
                lines += [*panel.lines(SIDE_WIDTH, min(len(panel.pairs) + 1, max(4, height // 5))), ""]
            side.update(text_of(lines))
        elif strip.display:
            most = panels.height_of(found, max(4 if height < TALL_FROM else 6, spare))
            strip.update(text_of(panels.beside(found, width, most), has_head=True))

    def _draw_workers(self, width: int) -> None:
        listed = self.status.workers
        wanted = self._filter_part.value
        rows = sort(matching(listed, wanted), self.sorting)
        # one column of the terminal for the scroll bar
        head, *lines = table(rows, self.sorting, width - 1)
        totals = panels.totals(self.status, len(listed), len(rows), wanted)
        self._totals_part.update(Text(f"{totals}; by {self.sorting.description}", no_wrap=True, overflow="ellipsis"))
        self._head_part.update(text_of([head], "bold underline"))
        styles = {row.id: _STYLES[row.state] for row in rows if row.state}
        self._workers_part.show(lines, [row.id for row in rows], styles)

    def _draw_state(self, width: int) -> None:
        text, style = formats.safe(self.source.address), Style(dim=True)
        error = self.source.last_error or self._silent_error()
        if error:
            age = formats.duration(max(0.0, time.monotonic() - self._reported_at))
            text, style = f"showing the state of {age} ago; reconnecting: {formats.safe(error)}", _ERROR
        elif self.frozen is not None:
            at = time.strftime("%H:%M:%S", time.localtime(self.frozen.at))
            text, style = f"frozen at {at}; space resumes", Style(reverse=True)
        elif failures := panels.disk_failures(self.status):
            text, style = "; ".join(failures), _ERROR
        elif advice := panels.first_finding(self.source.model):
            text, style = f"{text}: {advice}", Style()
        elif waits := panels.first_waiting(self.status):
            text, style = f"{text}: {waits}", Style()
        shown = Text(text, style, no_wrap=True, overflow="ellipsis")
        shown.truncate(width)
        self._state_part.update(shown)

    def _silent_error(self) -> str:
        seconds = time.monotonic() - self._reported_at
        return f"{self.source.address} has sent nothing for {seconds:.0f} s" if seconds > QUIET_SECONDS else ""


def _texts(*names: str) -> tuple[Static, ...]:
    return tuple(Static(id=name, markup=False) for name in names)


class DetailScreen(ModalScreen[None]):
    """One worker in its last state: processors, tasks, and the scheduler's answers about tasks."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("escape,q,backspace", "dismiss(None)"),
        *((keys, f"ask('{question}')") for keys, question in (("e,enter", "explain"), ("o", "log"), ("p", "profile"))),
        ("space", "app.freeze"),
    ]
    hint = HINT

    def __init__(self, top: TopApp, worker: str) -> None:
        super().__init__()
        self._top = top
        self._recent: list[TaskRow] | None = None
        self._worker = WorkerRow(id=worker)
        self._facts_part, self._text_part = _texts("facts", "text")
        self._head_part = Static(panels.TASKS_HEAD, id="tasks_head", markup=False)
        self._tasks_part = Lines(id="tasks")
        self._answer_part = VerticalScroll(id="answer", can_focus=False)

    def compose(self) -> ComposeResult:
        yield self._facts_part
        yield self._head_part
        yield self._tasks_part
        with self._answer_part:
            yield self._text_part
        yield Static(self.hint, id="hint", markup=False)

    def on_mount(self) -> None:
        self._tasks_part.focus()
        self.redraw()

    def on_resize(self) -> None:
        self.call_after_refresh(self.redraw)

    def redraw(self) -> None:
        width, height = self.app.size
        found = next((row for row in self._top.status.workers if row.id == self._worker.id), None)
        self._worker = found or self._worker
        lines = panels.worker_lines(self._worker, width, max(1, height // 4 - 2))
        if found is None:
            lines[0] = formats.cut(f"{lines[0]}; it has ended, or is no longer listed", width)
        self._facts_part.update(text_of(lines, has_head=True))
        if self._recent is None or self._top.frozen is None:
            self._recent = self._top.source.model.tasks(worker=self._worker.name, limit=MAX_RECENT)
        tasks = panels.task_lines(self._worker, self._recent)
        self._tasks_part.show(list(tasks.values()), list(tasks))

    def on_lines_chosen(self) -> None:
        self.action_ask("explain")

    def action_ask(self, question: str) -> None:
        """question: a method of the connection, called with the id of the chosen task."""
        task = self._tasks_part.key
        if not task:
            self._show("no task is listed")
            return

        async def ask() -> None:
            try:
                answer = _TEXTS_OF.get(question, str)(await getattr(self._top.source, question)(task))
            except ScalerError as error:
                answer = str(error)
            self._show(f"task {task}: " + "\n".join(map(formats.safe, answer.split("\n"))))

        self._show(f"task {formats.safe(task)}: asking")
        # a second question replaces a pending one
        self.run_worker(ask(), exclusive=True)

    def _show(self, text: str) -> None:
        self._text_part.update(Text(text))
        self._answer_part.scroll_home(animate=False)


class TasksScreen(DetailScreen):
    BINDINGS: ClassVar[list[BindingType]] = [("slash", "search")]
    hint = f"search[/] {HINT}"

    def __init__(self, top: TopApp) -> None:
        super().__init__(top, "")
        self._search_part = Input(id="search", placeholder="beginning of an id, or part of a name", compact=True)
        self._search = ""
        self._found: list[TaskRow] = []

    def compose(self) -> ComposeResult:
        yield from super().compose()
        yield self._search_part

    def on_mount(self) -> None:
        self._search_part.display = False
        super().on_mount()

    def redraw(self) -> None:
        status = self._top.status
        if self._search:
            lines, head = panels.found_lines(self._found), panels.TASKS_HEAD
            first = "the first " if len(self._found) == MAX_RECENT else ""
            facts = f"{first}{counted(len(self._found), 'task')} found with {formats.safe(self._search)!r}"
        else:
            head, *rows = table_of(WaitingRow, status.waiting, self.app.size.width)
            lines = dict(zip((row.oldest or row.id for row in status.waiting), rows, strict=True))
            facts = f"waiting tasks: {counted(status.totals.waiting, 'group')}"
        self._facts_part.update(text_of([facts], has_head=True))
        self._head_part.update(head)
        self._tasks_part.show(list(lines.values()), list(lines))

    def action_search(self) -> None:
        self._search_part.display = True
        self._search_part.focus()

    @on(Input.Submitted, "#search")
    def _submitted(self) -> None:
        self._search_part.display = False
        self._tasks_part.focus()
        self.run_worker(self._find(self._search_part.value), exclusive=True)

    async def _find(self, search: str) -> None:
        source, self._search, self._found = self._top.source, search, []
        try:
            found = await source.find(search) if search else []
            self._found = source.model.tasks(search=search, limit=MAX_RECENT, found=found)
        except ScalerError as error:
            self._show(str(error))
        self.redraw()


class TextScreen(ModalScreen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [
        ("escape,q,b,u,question_mark,enter,backspace", "dismiss(None)"),
        ("space", "app.freeze"),
    ]

    def __init__(self, top: TopApp, lines: Callable[[Status, int | None], list[str]]) -> None:
        """lines: returns the text for a state and a width."""
        super().__init__()
        self._top = top
        self._lines = lines
        (self._text_part,) = _texts("text")

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="data"):
            yield self._text_part
        yield Static("freeze[space] back[escape]", id="hint", markup=False)

    def on_mount(self) -> None:
        self.redraw()

    def on_resize(self) -> None:
        self.call_after_refresh(self.redraw)

    def redraw(self) -> None:
        self._text_part.update(text_of(self._lines(self._top.status, self.app.size.width - 3), has_head=True))


class AskedScreen(TextScreen):
    """A table of an extension."""

    BINDINGS: ClassVar[list[BindingType]] = [(key, "dismiss(None)") for key in panels.ASKED]

    def __init__(self, top: TopApp, asked: FoundTable) -> None:
        self._asked, self._rows = asked, list[Any]()
        super().__init__(top, lambda _, width: [asked.title, "", *table_of(asked.kind, self._rows, width)])

    def on_mount(self) -> None:
        self.set_interval(ASK_SECONDS, self._read)
        self.call_after_refresh(self._read)

    async def _read(self) -> None:
        if self._top.frozen is None:
            with contextlib.suppress(ScalerError):
                self._rows = await self._top.source.rows(self._asked.name)
                self.redraw()


SCREENS: Mapping[str, Callable[[TopApp], ModalScreen[None]]] = {
    "t": TasksScreen,
    "b": partial(TextScreen, lines=data_lines),
    "u": partial(TextScreen, lines=units_lines),
    **{key: partial(AskedScreen, asked=found) for key, found in panels.ASKED.items()},
    "question_mark": partial(TextScreen, lines=lambda _status, _width: panels.HELP.splitlines()),
}
"""Screens by their keys."""
