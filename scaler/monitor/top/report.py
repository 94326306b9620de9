"""The same as the screen shows, once: as plain text for people and `grep`, or as one JSON document. Pure."""

from __future__ import annotations

import json
from typing import Any

from scaler.monitor.model import Model
from scaler.monitor.rows import KEYS, view
from scaler.monitor.top import panels
from scaler.monitor.top.table import Sorting, sort, table

VERSION = 1
MAX_PANEL_LINES = 40
PANELS_WIDTH = 120
"""Where nothing limits the width."""


def as_text(model: Model, width: int | None) -> str:
    """Return panels, totals, all workers that are listed, and the counts. width: of the terminal; None: no limit."""
    status = model.status
    found, sides = panels.panels(status), panels.sides(status)
    rows = sort(status.workers, Sorting())
    shown = table(rows, Sorting(), width)
    across = PANELS_WIDTH if width is None else width
    lines = panels.beside(found, across, panels.height_of(found, MAX_PANEL_LINES))
    lines += ["", panels.totals(status, len(rows), len(rows), ""), shown.head.rstrip()]
    lines += [line.rstrip() for line in shown.lines]
    for side in sides:
        if side.pairs:
            wide = min(max(side.natural, side.least), across)
            lines += ["", *(line.rstrip() for line in side.lines(wide, 1 + len(side.pairs)))]
    return "\n".join(lines) + "\n"


def as_json(model: Model, address: str) -> str:
    """Return one JSON document: the scheduler's last state as rows, with the computed columns."""
    status = model.status
    document: dict[str, Any] = {"version": VERSION, "address": address, **view(status)}
    document["incarnation"] = status.incarnation
    document["messages"] = {"sent": document.pop("sent"), "received": document.pop("received")}
    for name in KEYS:
        document[name] = [view(row, whole=True) for row in getattr(status, name)]
    return json.dumps(document) + "\n"
