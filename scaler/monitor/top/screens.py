"""The screens over the table of workers: one worker with its tasks, and the help page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from scaler.errors import ScalerError
from scaler.monitor.connection import ModelSource
from scaler.monitor.top import formats
from scaler.monitor.top.lines import Lines
from scaler.monitor.top.panels import TASKS_HEAD, log_text, task_lines, worker_lines
from scaler.monitor.top.table import BY_KEY, COLUMNS
from scaler.protocol.monitor_rows import Status, TaskRow, WorkerRow

MAX_RECENT = 100
HINT = "explain[e] log[o] freeze[space] back[escape]"


class DetailScreen(ModalScreen[None]):
    """One worker: its processors, its tasks, and the scheduler's answers about them.

    A terminated worker stays as it was last.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,backspace", "dismiss(None)", show=False),
        Binding("e,enter", "explain", show=False),
        Binding("o", "log", show=False),
        Binding("space", "app.freeze", show=False),
    ]

    def __init__(
        self, source: ModelSource, worker: str, status: Callable[[], Status], is_frozen: Callable[[], bool]
    ) -> None:
        """worker: its id. status: returns the shown state. is_frozen: returns whether it is an earlier one."""
        super().__init__()
        self._source = source
        self._status = status
        self._is_frozen = is_frozen
        self._recent: list[TaskRow] | None = None
        self._worker = WorkerRow(id=worker)
        self._facts_part = Static(id="facts", markup=False)
        self._tasks_part = Lines(id="tasks")
        self._answer_part = VerticalScroll(id="answer", can_focus=False)
        self._text_part = Static(id="text", markup=False)

    def compose(self) -> ComposeResult:
        yield self._facts_part
        yield Static(TASKS_HEAD, id="tasks_head", markup=False)
        yield self._tasks_part
        with self._answer_part:
            yield self._text_part
        yield Static(HINT, id="hint", markup=False)

    def on_mount(self) -> None:
        self._tasks_part.focus()
        self.redraw()

    def on_resize(self) -> None:
        self.call_after_refresh(self.redraw)

    def redraw(self) -> None:
        """Draw everything but the answer."""
        width, height = self.app.size
        found = next((row for row in self._status().workers if row.id == self._worker.id), None)
        self._worker = found or self._worker
        lines = worker_lines(self._worker, width, max(1, height // 4 - 2))
        if found is None:
            lines[0] = formats.cut(f"{lines[0]}; it has terminated, or is not listed any more", width)
        text = Text("\n".join(lines), no_wrap=True, overflow="crop")
        text.stylize("bold", 0, len(lines[0]))
        self._facts_part.update(text)
        if self._recent is None or not self._is_frozen():
            self._recent = self._source.model.tasks(worker=self._worker.name, limit=MAX_RECENT)
        tasks = task_lines(self._worker, self._recent)
        self._tasks_part.show(list(tasks.values()), list(tasks))

    def action_explain(self) -> None:
        self._ask(self._source.explain)

    def action_log(self) -> None:
        async def log(task: str) -> str:
            return log_text(await self._source.log(task))

        self._ask(log)

    def on_lines_chosen(self) -> None:
        self.action_explain()

    def _ask(self, question: Callable[[str], Awaitable[str]]) -> None:
        task = self._tasks_part.key
        if not task:
            self._show("this worker has no listed tasks")
            return

        async def ask() -> None:
            try:
                answer = await question(task)
            except ScalerError as error:
                answer = str(error)
            self._show(f"task {task}: " + "\n".join(map(formats.safe, answer.split("\n"))))

        self._show(f"task {formats.safe(task)}: asking")
        # A second question replaces one that still waits.
        self.run_worker(ask(), exclusive=True)

    def _show(self, text: str) -> None:
        self._text_part.update(Text(text))
        self._answer_part.scroll_home(animate=False)


_SORTS = "\n".join(f"  {key}       sort by {column.title}; again: in reverse" for key, column in BY_KEY.items())
_COLUMNS = "\n".join(f"  {column.title:13} {column.schema.help}" for column in COLUMNS)
HELP = f"""\
Keys                                            escape or ? closes this page
{_SORTS}
  < >     sort by the column to the left or right of the sorted one
  /       only workers with a text in their name, manager, capabilities, function
  space   freeze the screen; again: go on
  enter   a worker's processors and tasks; there e explains a task, o shows its output
  arrows, page up and down, home, end     move
  q       quit

Columns
{_COLUMNS}
Columns that do not fit are hidden; the sorted one is always shown.
"""


class HelpScreen(ModalScreen[None]):
    """The keys and the columns."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark,enter", "dismiss(None)", show=False),
    ]

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="help"):
            yield Static(HELP, markup=False)
