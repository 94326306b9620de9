"""Tasks that start together. Here: refused. The `gangs` extension places them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scaler.needs import Needs

MISSING = "gangs need the extension 'gangs', which this scheduler lacks"


class GangRules:
    """Interface of the `gangs` extension. Without it, gangs are refused."""

    def refusal(self, needs: Needs) -> str:
        """Return why tasks with these needs are refused, or an empty string."""
        return MISSING if needs.gang else ""

    def begin(self, placement: Any, tasks: Any) -> None:
        """Called once, before the first step, with the core's `Placement` and `Tasks`."""

    def began(self, group: Any) -> None:
        """Called for a group with `Needs.gang` and its first live task."""

    def place(self, _queue: Any, _now: float, /) -> int:
        """Place all tasks of a queue with `Needs.gang`, or none. Returns the number of tasks placed."""
        return 0

    def shortage(self, _queue: Any, _willing: Sequence[Any], /) -> str:
        """Return why the tasks of a queue wait, although these workers accept tasks."""
        return ""
