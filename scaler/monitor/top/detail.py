"""One worker on a screen of its own: its processors, its tasks, and what the scheduler says about one of them."""

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
from scaler.monitor.top.facts import TASKS_HEAD, facts, log_text, tasks_of
from scaler.monitor.top.lines import Lines
from scaler.protocol.monitor_rows import Status, TaskRow, WorkerRow

MAX_RECENT = 100
HINT = "explain[e] log[o] freeze[space] back[escape]"


class DetailScreen(ModalScreen[None]):
    """See the module. A worker that is gone stays as it was last."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,backspace", "dismiss(None)", show=False),
        Binding("e,enter", "explain", show=False),
        Binding("o", "log", show=False),
        Binding("space", "app.freeze", show=False),
    ]

    def __init__(
        self, watched: ModelSource, worker: str, status: Callable[[], Status], is_frozen: Callable[[], bool]
    ) -> None:
        """worker: its id. status: what is to be shown now. is_frozen: whether that is not how things are now."""
        super().__init__()
        self._watched = watched
        self._worker_id = worker
        self._status = status
        self._is_frozen = is_frozen
        self._recent: list[TaskRow] | None = None
        """The worker's tasks that are shown; None until the first ones are."""
        self._last = WorkerRow(id=worker)
        self._facts_part = Static(id="facts", markup=False)
        self._tasks_part = Lines(id="tasks")
        self._answer_part = VerticalScroll(id="answer", can_focus=False)
        self._text_part = Static(id="text", markup=False)

    def compose(self) -> ComposeResult:
        """Return the widgets (Textual's Screen)."""
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
        """Draw everything but the answer anew."""
        width, height = self.app.size
        found = next((row for row in self._status().workers if row.id == self._worker_id), None)
        self._last = found or self._last
        lines = facts(self._last, width, max(1, height // 4 - 2))
        if found is None:
            lines[0] = formats.cut(f"{lines[0]}; it is gone, or not among those that are listed now", width)
        text = Text("\n".join(lines), no_wrap=True, overflow="crop")
        text.stylize("bold", 0, len(lines[0]))
        self._facts_part.update(text)
        if self._recent is None or not self._is_frozen():
            self._recent = self._watched.model.tasks(worker=self._last.name, limit=MAX_RECENT)
        listed = tasks_of(self._last, self._recent)
        self._tasks_part.show([each.text for each in listed], [each.id for each in listed], {})

    def action_explain(self) -> None:
        self._ask(self._watched.explain)

    def action_log(self) -> None:
        async def log(task: str) -> str:
            return log_text(await self._watched.log(task))

        self._ask(log)

    def on_lines_chosen(self) -> None:
        self.action_explain()

    def _ask(self, question: Callable[[str], Awaitable[str]]) -> None:
        task = self._tasks_part.key
        if not task:
            self._say("this worker has no tasks that are listed")
            return

        async def ask() -> None:
            try:
                answer = await question(task)
            except ScalerError as error:
                answer = str(error)
            self._say(f"task {task}: " + "\n".join(formats.safe(line) for line in answer.split("\n")))

        self._say(f"task {formats.safe(task)}: asking")
        # A second question takes the place of one that still waits.
        self.run_worker(ask(), exclusive=True)

    def _say(self, text: str) -> None:
        self._text_part.update(Text(text))
        self._answer_part.scroll_home(animate=False)
