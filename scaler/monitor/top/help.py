"""The page of keys and columns."""

from scaler.monitor.top.panels import ASKED
from scaler.monitor.top.table import BY_KEY, COLUMNS

_SORTS = "\n".join(f"  {key}       sort by {column.title}; again: in reverse" for key, column in BY_KEY.items())
_ASKED = "\n".join(f"  {key}       {found.title}" for key, found in ASKED.items())
_COLUMNS = "\n".join(f"  {column.title:13} {column.schema.help}" for column in COLUMNS)
HELP = f"""\
Keys                                            escape or ? closes this page
{_SORTS}
  < >     sort by the column to the left or right of the sorted one
  /       only workers with a text in their name, manager, capabilities, function
  t       waiting tasks, and why they wait; there / searches all tasks
  u       units of the worker managers: state, reason, and cost
  b       the bytes that hosts store, and what moves between them
{_ASKED}
  space   freeze the screen; again: go on
  enter   a worker's processors and tasks; there e explains a task,
          o shows its output, p which code takes its time
  arrows, page up and down, home, end     move
  q       quit

Columns
{_COLUMNS}
Columns that do not fit are hidden; the sorted one is always shown.
"""
