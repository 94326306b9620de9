"""Resources: memory, GPUs, CPUs, and limits of the cluster that tasks occupy, and their reservations for large tasks.

placement of the core -> core.py: reservations -> stocks.py: amounts per worker
                         cluster_limits.py: limits -> the table `limits`
memory of processors -> memory.py -> limits.py: processors to kill -> agent.py
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Annotated

from scaler.capabilities import amounts, parse_names
from scaler.config.setting import Setting, SettingsModel
from scaler.config.values import Check, taken_by
from scaler.plugins import Extension, FoundTable


@dataclass(frozen=True, kw_only=True)
class LimitSettings(SettingsModel):
    """Limits of the cluster."""

    limits: Annotated[
        dict[str, float],
        Check(partial(parse_names, what="limit", form="name=number, such as db=10,licence=4"), of_text=True),
        taken_by(partial(amounts, "limits")),
        Setting(default_text="none", metavar="LIMITS"),
    ] = field(default_factory=dict)
    """Amounts of resources outside the cluster that tasks may use at once, such as db=10,licence=4. A task's option
    limits names the amounts that it uses."""


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
