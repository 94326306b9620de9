"""What the keys do and the columns mean, on a screen of its own."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from scaler.monitor.top.table import BY_KEY

_SORTS = "\n".join(f"  {key}       sort by {column.title}; again: the other way" for key, column in BY_KEY.items())

TEXT = f"""\
Keys                                            escape or ? closes this page
{_SORTS}
  < >     sort by the column to the left or right of the sorted one
  /       only workers with a text in their name, manager, capabilities, function
  space   freeze what is shown; again: go on
  enter   a worker's processors and tasks; there e explains a task, o shows what it printed
  arrows, page up and down, home, end     move
  q       quit

Columns
  state         away: out of contact; held: too many failures, no tasks; ends: no new tasks
  agt_cpu/rss   load of the worker's agent
  cpu, rss      load of its processors together; 100% is one CPU
  free          tasks that it would still take
  sent          tasks sent to it so far
  queued        tasks that wait on it
  suspended     tasks that wait for tasks of their own
  lag           time that a message takes from it to the scheduler
  ITL           all processors are initialised, any has a task, any holds a slot
  function      what it runs for longest; +2: and two more tasks
  seconds       for how long
Columns that do not fit are hidden; the sorted one is always shown.
"""


class HelpScreen(ModalScreen[None]):
    """See the module."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark,enter", "dismiss(None)", show=False),
    ]

    def compose(self) -> ComposeResult:
        """Return the widgets (Textual's Screen)."""
        with VerticalScroll(id="help"):
            yield Static(TEXT, markup=False)
