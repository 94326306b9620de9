"""Resources: memory, GPUs, CPUs, and limits of the cluster that tasks occupy, and their reservations for large tasks.

placement of the core -> core.py: reservations -> stocks.py: amounts per worker
                         cluster_limits.py: limits -> the table `limits`
memory of processors -> memory.py -> limits.py: processors to kill -> agent.py
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Annotated

from scaler.config.setting import Setting, SettingsModel
from scaler.config.values import Check, taken_by
from scaler.needs import amounts
from scaler.plugins import Extension, FoundTable


def parse_limits(text: str) -> dict[str, float]:
    """Parse `db=10,licence=4`. Raises ValueError."""
    found: dict[str, float] = {}
    for name, _, amount in (part.partition("=") for part in text.split(",") if part.strip()):
        if name.strip() in found or not amount.strip().replace(".", "", 1).isdigit():
            raise ValueError(f"{name.strip()!r} is given twice, or without a number: write name=number, such as db=10")
        found[name.strip()] = float(amount)
    return found


@dataclass(frozen=True, kw_only=True)
class LimitSettings(SettingsModel):
    """Limits of the cluster."""

    limits: Annotated[
        dict[str, float],
        Check(parse_limits, of_text=True),
        taken_by(partial(amounts, "limits")),
        Setting(default_text="none", metavar="LIMITS"),
    ] = field(default_factory=dict)
    """Resources outside of the cluster, and how much of them its tasks may use at once, such as db=10,licence=4. Tasks
    name what they use with the option limits."""


EXTENSION = Extension(
    "resources",
    settings="scaler.extensions.resources:LimitSettings",
    scheduler="scaler.extensions.resources.core:Counted",
    agent="scaler.extensions.resources.agent:limit_memory",
    found=(
        FoundTable(
            "limits",
            "Limits of the cluster",
            "scaler.extensions.resources.rows:LimitRow",
            most=2_000,
            parameter=("search", "Text to search for in the name."),
            page="clients",
        ),
    ),
)
