"""Columns of monitor rows: format and visibility. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Unit = Literal["text", "flags", "count", "bytes", "percent", "seconds", "micros", "time", "money", "heat"]
"""Unit of a value, from which views derive the format. percent: 100 is one CPU. time: unix seconds. money: in the
currency of unit_price. heat: severity from 0 to 100."""


@dataclass(frozen=True, slots=True)
class Top:
    """A column of scaler_top's worker table. order: position. width: minimum, in terminal columns. worth:
    columns with larger numbers are hidden first, 0 never. key: sorts by this column."""

    order: int
    title: str
    width: int
    worth: int
    key: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """Presentation of one value of a row.

    title: heading on the page, whose tables omit columns without a title. rank: 2 and 3 are hidden in narrow windows.
    help: text for tooltips, OpenAPI, and metrics. metric: name of its gauge in /metrics, after `scaler_`. after:
    predecessor of a computed column; default: at the end. volatile: changes constantly, so views round the value, and a
    change of this value alone is not sent. zero_is_none: 0 means unknown. whole: shown only in the view of a single
    row. internal: never shown.
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
