"""What a column of a row of monitors is: how it is shown, and where. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Unit = Literal["text", "flags", "count", "bytes", "percent", "seconds", "micros", "time", "money", "heat"]
"""What a value is: views derive its format from this. percent: 100 is one CPU. time: unix seconds. money: in
the currency of unit_price. heat: how bad it is, from 0 to 100."""


@dataclass(frozen=True, slots=True)
class Top:
    """A column of scaler_top's table of workers. order: its position; width: the least, in columns of the terminal.

    worth: columns with larger numbers are hidden first, 0 never. key: sorts by this column.
    """

    order: int
    title: str
    width: int
    worth: int
    key: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """How one value of a row is shown.

    title: heading on the page, whose tables leave out columns without one. rank: 2 and 3 are hidden in narrow windows.
    help: for tooltips, the OpenAPI document and metrics. metric: name of its gauge in /metrics.
    after: the column that a computed one follows; without it, computed columns are last.
    volatile: changes all the time: rounded in views, and no reason to send anything. zero_is_none: 0 means unknown.
    whole: only in the view of a single row, not in lists. internal: in no view.
    """

    title: str = ""
    unit: Unit = "text"
    rank: int = 1
    help: str = ""
    top: Top | None = None
    metric: str = ""
    after: str = ""
    volatile: bool = False
    zero_is_none: bool = False
    whole: bool = False
    internal: bool = False


INTERNAL = Column(internal=True)


def gauge(metric: str, text: str, unit: Unit = "count") -> Column:
    return Column(help=text, metric=metric, unit=unit)
